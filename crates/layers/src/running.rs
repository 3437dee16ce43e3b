//! Several streams of completions as one.

use std::task::{Context, Poll};

use foreread_tier::{Completion, Completions};
use futures::StreamExt;
use futures::stream::SelectAll;

/// Batches that are under way in the tier below. The first needs no set to be kept in; in the common case it is the
/// only one.
#[derive(Default)]
pub(crate) struct Running {
    first: Option<Completions>,
    others: Option<SelectAll<Completions>>,
}

impl Running {
    pub(crate) fn push(&mut self, batch: Completions) {
        match self.first {
            None => self.first = Some(batch),
            Some(_) => self.others.get_or_insert_default().push(batch),
        }
    }

    /// The next answer of any of them; `None` when all have ended (for now: more can be pushed).
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Completion>> {
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
