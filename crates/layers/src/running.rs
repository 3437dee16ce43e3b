//! Several streams of completions as one.

use std::pin::Pin;
use std::task::{Context, Poll};

use foreread_tier::{Completion, Completions};
use futures::stream::SelectAll;
use futures::{Stream, StreamExt};
use tokio::time::Instant;

use crate::rates::Marked;

/// Batches that are under way in the tier below. The first needs no set to be kept in; in the common case it is the
/// only one.
pub(crate) struct Running<S = Completions> {
    first: Option<S>,
    others: Option<SelectAll<S>>,
}

impl<S> Default for Running<S> {
    fn default() -> Self {
        Self { first: None, others: None }
    }
}

/// A batch that remembers when it started and what its requests are counted under, where somebody wants to know.
pub(crate) struct Since {
    pub(crate) started: Option<Instant>,
    /// By tag; those that are answered leave.
    pub(crate) marks: Vec<(u32, Marked)>,
    pub(crate) answers: Completions,
}

impl Stream for Since {
    type Item = (Option<Instant>, Option<Marked>, Completion);

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.answers.poll_next_unpin(cx).map(|next| {
            let completion = next?;
            let at = self.marks.iter().position(|(tag, _)| *tag == completion.tag);
            let mark = at.map(|at| self.marks.remove(at).1);
            Some((self.started, mark, completion))
        })
    }
}

impl<S: Stream + Unpin> Running<S> {
    pub(crate) fn push(&mut self, batch: S) {
        match self.first {
            None => self.first = Some(batch),
            Some(_) => self.others.get_or_insert_default().push(batch),
        }
    }

    /// The next answer of any of them; `None` when all have ended (for now: more can be pushed).
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<S::Item>> {
        if let Some(first) = &mut self.first {
            match first.poll_next_unpin(cx) {
                Poll::Ready(Some(completion)) => return Poll::Ready(Some(completion)),
                Poll::Ready(None) => self.first = None,
                Poll::Pending => {}
            }
        }
        match self
            .others
            .as_mut()
            .filter(|others| !others.is_empty())
            .map(|others| others.poll_next_unpin(cx))
        {
            Some(Poll::Ready(Some(completion))) => Poll::Ready(Some(completion)),
            Some(Poll::Pending) => Poll::Pending,
            None | Some(Poll::Ready(None)) if self.first.is_some() => Poll::Pending,
            None | Some(Poll::Ready(None)) => Poll::Ready(None),
        }
    }
}
