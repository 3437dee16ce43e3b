//! The answers to one batch of reads, held to the tier's contract.
//!
//! Whatever a tier does, every read that was issued is answered once: tags that are unknown or come twice are dropped,
//! a wrong length becomes an error, and reads that a tier forgot when its stream ended fail by name. An engine that
//! trusted a tier here would wait for ever.

use std::pin::Pin;
use std::task::{Context, Poll};

use foreread_tier::{Charge, Completions, ErrorKind, Sample, Tier, TierError};
use foreread_types::{SampleKey, Tick};
use futures::{Stream, StreamExt};

/// One read that is under way.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) tick: Tick,
    pub(crate) key: SampleKey,
    pub(crate) bytes: u64,
    pub(crate) charge: Charge,
}

pub(crate) struct Answers {
    tier: String,
    completions: Option<Completions>,
    pending: Vec<Option<Pending>>,
}

/// How one read ended.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) tick: Tick,
    pub(crate) key: SampleKey,
    pub(crate) result: Result<Sample, TierError>,
}

impl Answers {
    /// `pending[tag]` is the read with that tag.
    pub(crate) fn new(tier: &dyn Tier, completions: Completions, pending: Vec<Pending>) -> Self {
        Self {
            tier: tier.name().to_owned(),
            completions: Some(completions),
            pending: pending.into_iter().map(Some).collect(),
        }
    }
}

impl Stream for Answers {
    type Item = Answer;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Answer>> {
        let this = &mut *self;
        while let Some(completions) = &mut this.completions {
            let completion = match completions.poll_next_unpin(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(completion)) => completion,
                Poll::Ready(None) => {
                    this.completions = None;
                    break;
                }
            };
            let Some(pending) = this.pending.get_mut(completion.tag as usize).and_then(Option::take) else {
                continue;
            };
            let result = match completion.result {
                Ok(data) if data.len() as u64 == pending.bytes => Ok(Sample::new(data, pending.charge)),
                Ok(data) => Err(TierError::new(ErrorKind::Changed, &*this.tier)
                    .with_detail(format!("{} bytes instead of {}", data.len(), pending.bytes))),
                Err(error) => Err(error),
            };
            return Poll::Ready(Some(Answer { tick: pending.tick, key: pending.key, result }));
        }
        let forgotten = this.pending.iter_mut().find_map(Option::take);
        Poll::Ready(forgotten.map(|pending| {
            let error = TierError::new(ErrorKind::Closed, &*this.tier).with_detail("the tier ended without an answer");
            Answer { tick: pending.tick, key: pending.key, result: Err(error) }
        }))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use foreread_tier::{Budget, Completion, ReadRequest, TierProfile};
    use futures::stream;

    use super::*;

    #[derive(Debug)]
    struct Nameless;

    impl Tier for Nameless {
        fn name(&self) -> &str {
            "odd"
        }

        fn profile(&self) -> &TierProfile {
            const PROFILE: TierProfile = TierProfile::new(1);
            &PROFILE
        }

        fn read(&self, _: Vec<ReadRequest>) -> Completions {
            stream::empty().boxed()
        }
    }

    #[test]
    fn a_tier_that_lies_still_answers_every_read_once() {
        let budget = Budget::new(100);
        let pending = |tick| Pending { tick: Tick(tick), key: SampleKey::default(), bytes: 2, charge: budget.charge(2) };
        let say = |tag, bytes: &'static [u8]| Completion { tag, result: Ok(Bytes::from_static(bytes)) };
        let told = vec![say(9, b"ab"), say(1, b"ab"), say(1, b"cd"), say(0, b"abc")];
        let answers =
            Answers::new(&Nameless, stream::iter(told).boxed(), vec![pending(10), pending(11), pending(12)]);
        let got: Vec<Answer> = futures::executor::block_on(answers.collect());
        assert_eq!(got.iter().map(|answer| answer.tick.0).collect::<Vec<_>>(), [11, 10, 12]);
        assert_eq!(&got[0].result.as_ref().unwrap()[..], b"ab");
        assert_eq!(got[1].result.as_ref().unwrap_err().kind(), ErrorKind::Changed);
        assert_eq!(got[2].result.as_ref().unwrap_err().kind(), ErrorKind::Closed);
        drop(got);
        assert_eq!(budget.used(), 0);
    }
}
