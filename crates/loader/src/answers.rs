//! The answers to one batch of reads, held to the tier's contract.
//!
//! Whatever a tier does, every read that was issued is answered once: tags that are unknown or come twice are dropped,
//! a wrong length or a wrong checksum (where the catalog has one) becomes an error, and reads that a tier forgot when its
//! stream ended, or when it panicked, fail by name, as do those of which the catalog cannot say where they lie. An engine
//! that trusted a tier here would wait for ever.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use foreread_tier::{Charge, Completions, ErrorKind, Object, ReadRequest, Sample, Span, Tier, TierError};
use foreread_types::{SampleKey, Tick};
use futures::{FutureExt, Stream, StreamExt};

use crate::blocks::BlockId;
use crate::locate::{Place, by_key};

/// Why a read fails that a tier's stream ended without.
const UNANSWERED: &str = "the tier ended without an answer";

/// One read that is under way: of one sample, or of a block that begins with it.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) tick: Tick,
    pub(crate) key: SampleKey,
    /// The block, and its bytes in the sample's object.
    pub(crate) block: Option<(BlockId, Range<u64>)>,
    pub(crate) bytes: u64,
    /// What the bytes are counted in.
    pub(crate) charge: Charge,
    /// What the bytes must add up to, where the sample's format says so and nothing below has checked it.
    pub(crate) check: Option<Check>,
    /// Whether bytes that do not add up are an error; else they are asked for once more.
    pub(crate) last: bool,
}

impl Pending {
    /// A read of a sample of so many bytes.
    pub(crate) fn new(tick: Tick, key: SampleKey, bytes: u64, charge: Charge) -> Self {
        Self { tick, key, block: None, bytes, charge, check: None, last: true }
    }

    /// The same, whose bytes must add up to this.
    pub(crate) fn checked(self, crc32c: Option<u32>) -> Self {
        Self { check: crc32c.map(|crc32c| Check { crc32c, at: 0 }), ..self }
    }

    /// The request for what begins in `object` at the sample's `span`.
    fn request(&mut self, tag: u32, object: Object, span: Span) -> ReadRequest {
        if let (Some(check), Span::Range(range)) = (&mut self.check, &span) {
            check.at = range.start;
        }
        let span = self.block.as_ref().map_or(span, |(_, range)| Span::Range(range.clone()));
        ReadRequest { tag, key: self.key, object, span, due: self.tick }
    }

    fn failed(self, error: TierError) -> Answer {
        let Self { tick, key, block, .. } = self;
        Answer { tick, key, block: block.map(|(id, _)| id), result: Err(error), again: None }
    }
}

/// A batch of reads, and where they lie.
#[derive(Debug, Default)]
pub(crate) struct Located {
    /// `pending[tag]` is the one with that tag.
    pub(crate) requests: Vec<ReadRequest>,
    pub(crate) pending: Vec<Pending>,
    /// Those of which the catalog could not say where they lie.
    pub(crate) failed: Vec<Answer>,
}

impl Located {
    /// Asks `locate` where each of these lies.
    pub(crate) fn of(
        pending: Vec<Pending>,
        mut locate: impl FnMut(SampleKey) -> Result<Place, TierError>,
    ) -> Self {
        let mut located = Self::default();
        for mut pending in pending {
            match locate(pending.key) {
                Ok((object, span)) => {
                    let tag = located.requests.len() as u32;
                    located.requests.push(pending.request(tag, object, span));
                    located.pending.push(pending);
                }
                Err(error) => located.failed.push(pending.failed(error)),
            }
        }
        located
    }

    /// Those of a tier that knows samples by their keys.
    pub(crate) fn by_key(mut pending: Vec<Pending>) -> Self {
        let request = |(pending, tag): (&mut Pending, u32)| {
            let (object, span) = by_key(pending.bytes);
            pending.request(tag, object, span)
        };
        let requests = pending.iter_mut().zip(0..).map(request).collect();
        Self { requests, pending, failed: Vec::new() }
    }
}

/// The CRC-32C of a sample's bytes, and where in its object they begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    pub(crate) crc32c: u32,
    pub(crate) at: u64,
}

impl Check {
    /// `data`, if it is what was written. It is bytes that came from far away, so this costs little beside their way (5
    /// us for 110 KB).
    pub(crate) fn passed(self, tier: &str, data: Bytes) -> Result<Bytes, TierError> {
        let found = crc32c::crc32c(&data);
        if found == self.crc32c {
            return Ok(data);
        }
        let why = format!(
            "the checksum of its {} bytes from byte {} on is {found:08x}, and its shard says {:08x}",
            data.len(),
            self.at,
            self.crc32c
        );
        Err(TierError::new(ErrorKind::Corrupt, tier).with_detail(why))
    }
}

pub(crate) struct Answers {
    tier: String,
    completions: Option<Completions>,
    pending: Vec<Option<Pending>>,
    /// What was not even sent.
    failed: Vec<Answer>,
    /// Why reads that are still pending when the stream has ended fail.
    ended: String,
}

/// Reads one sample by itself, and waits for it.
pub(crate) async fn answer_of(tier: &(impl Tier + ?Sized), request: ReadRequest) -> Result<Bytes, TierError> {
    let answer = async move {
        match tier.read(vec![request]).next().await {
            Some(completion) => completion.result,
            None => Err(TierError::new(ErrorKind::Closed, tier.name()).with_detail(UNANSWERED)),
        }
    };
    caught(tier.name(), answer).await
}

/// What `work` comes to; a panic in it is an error of the tier.
pub(crate) async fn caught<T>(
    tier: &str,
    work: impl Future<Output = Result<T, TierError>>,
) -> Result<T, TierError> {
    AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|panic| {
        Err(TierError::new(ErrorKind::Closed, tier).with_detail(panic_detail(&*panic)))
    })
}

fn panic_detail(panic: &(dyn Any + Send)) -> String {
    format!("the tier panicked: {}", panic_message(panic))
}

/// How one read ended.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) tick: Tick,
    pub(crate) key: SampleKey,
    pub(crate) block: Option<BlockId>,
    pub(crate) result: Result<Sample, TierError>,
    /// What the read holds of the look-ahead, where it is to be repeated: what came was not what was written, for the first
    /// time.
    pub(crate) again: Option<Charge>,
}

impl Answers {
    /// Starts a batch.
    pub(crate) fn of(tier: &dyn Tier, Located { requests, pending, failed }: Located) -> Self {
        let mut answers = Self {
            tier: tier.name().to_owned(),
            completions: None,
            pending: pending.into_iter().map(Some).collect(),
            failed,
            ended: UNANSWERED.to_owned(),
        };
        match catch_unwind(AssertUnwindSafe(|| tier.read(requests))) {
            Ok(completions) => answers.completions = Some(completions),
            Err(panic) => answers.panicked(&*panic),
        }
        answers
    }

    /// Nothing of the tier's is used after this, so it does not matter in which state the panic has left it.
    fn panicked(&mut self, panic: &(dyn Any + Send)) {
        self.ended = panic_detail(panic);
        self.completions = None;
    }
}

/// What a panic has said.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(|text| &**text)).unwrap_or("without a message")
}

impl Stream for Answers {
    type Item = Answer;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Answer>> {
        let this = &mut *self;
        if let Some(answer) = this.failed.pop() {
            return Poll::Ready(Some(answer));
        }
        while let Some(completions) = &mut this.completions {
            let completion = match catch_unwind(AssertUnwindSafe(|| completions.poll_next_unpin(context))) {
                Ok(Poll::Pending) => return Poll::Pending,
                Ok(Poll::Ready(Some(completion))) => completion,
                Ok(Poll::Ready(None)) => {
                    this.completions = None;
                    break;
                }
                Err(panic) => {
                    this.panicked(&*panic);
                    break;
                }
            };
            let Some(pending) = this.pending.get_mut(completion.tag as usize).and_then(Option::take) else {
                continue;
            };
            let Pending { tick, key, block, bytes, charge, check, last } = pending;
            let data = match completion.result {
                Ok(data) if data.len() as u64 == bytes => match check {
                    Some(check) => check.passed(&this.tier, data),
                    None => Ok(data),
                },
                Ok(data) => Err(TierError::new(ErrorKind::Changed, &*this.tier)
                    .with_detail(format!("{} bytes instead of {bytes}", data.len()))),
                Err(error) => Err(error),
            };
            let (result, again) = match data {
                Ok(data) => (Ok(Sample::new(data, charge)), None),
                Err(error) if !last && check.is_some() && error.kind() == ErrorKind::Corrupt => {
                    (Err(error), Some(charge))
                }
                Err(error) => (Err(error), None),
            };
            let block = block.map(|(id, _)| id);
            return Poll::Ready(Some(Answer { tick, key, block, result, again }));
        }
        let forgotten = this.pending.iter_mut().find_map(Option::take);
        Poll::Ready(forgotten.map(|pending| {
            let error = TierError::new(ErrorKind::Closed, &*this.tier).with_detail(&*this.ended);
            pending.failed(error)
        }))
    }
}

#[cfg(test)]
mod tests {
    use foreread_tier::{Budget, Completion, TierProfile};
    use foreread_types::{DatasetId, SampleId};
    use futures::stream;

    use super::*;

    /// Says what it was given to say, whatever it is asked.
    #[derive(Debug)]
    struct Odd(Vec<Completion>);

    impl Tier for Odd {
        fn name(&self) -> &str {
            "odd"
        }

        fn profile(&self) -> &TierProfile {
            const PROFILE: TierProfile = TierProfile::new(1);
            &PROFILE
        }

        fn read(&self, _: Vec<ReadRequest>) -> Completions {
            stream::iter(self.0.clone()).boxed()
        }
    }

    #[test]
    fn a_tier_that_lies_still_answers_every_read_once() {
        let budget = Budget::new(100);
        let pending = |tick| Pending {
            tick: Tick(tick),
            key: SampleKey::default(),
            block: None,
            bytes: 2,
            charge: budget.charge(2),
            check: (tick == 11).then_some(Check { crc32c: crc32c::crc32c(b"ab"), at: 5 }),
            last: false,
        };
        let say = |tag, bytes: &'static [u8]| Completion { tag, result: Ok(Bytes::from_static(bytes)) };
        let told = vec![say(9, b"ab"), say(1, b"ab"), say(1, b"cd"), say(0, b"abc")];
        let pending = vec![pending(10), pending(11), pending(12)];
        let answers = Answers::of(&Odd(told), Located { pending, ..Located::default() });
        let got: Vec<Answer> = answers.collect().now_or_never().unwrap();
        assert_eq!(got.iter().map(|answer| answer.tick.0).collect::<Vec<_>>(), [11, 10, 12]);
        assert_eq!(&got[0].result.as_ref().unwrap()[..], b"ab");
        assert_eq!(got[1].result.as_ref().unwrap_err().kind(), ErrorKind::Changed);
        assert_eq!(got[2].result.as_ref().unwrap_err().kind(), ErrorKind::Closed);
        drop(got);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn bytes_that_do_not_add_up_are_asked_for_once_more_and_then_corrupt() {
        let budget = Budget::new(100);
        for last in [false, true] {
            let check = Some(Check { crc32c: crc32c::crc32c(b"ab"), at: 1234 });
            let pending = Pending {
                tick: Tick(1),
                key: SampleKey::default(),
                block: None,
                bytes: 2,
                charge: budget.charge(2),
                check,
                last,
            };
            let told = vec![Completion { tag: 0, result: Ok(Bytes::from_static(b"aB")) }];
            let located = Located { pending: vec![pending], ..Located::default() };
            let answers = Answers::of(&Odd(told), located);
            let got: Vec<Answer> = answers.collect().now_or_never().unwrap();
            let error = got[0].result.as_ref().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().contains("2 bytes from byte 1234 on"), "{error}");
            assert_eq!(got[0].again.is_none(), last);
            assert_eq!(budget.used(), if last { 0 } else { 2 });
        }
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn reads_that_no_catalog_knows_fail_and_the_others_are_sent() {
        let budget = Budget::new(100);
        let key = |id| SampleKey::new(DatasetId(0), SampleId(id));
        let pending = (0..4).map(|id| Pending::new(Tick(id), key(id), 2, budget.charge(2))).collect();
        let located = Located::of(pending, |key| match key.id.0 {
            1 => Err(TierError::new(ErrorKind::Invalid, "catalog")),
            2 => Err(TierError::new(ErrorKind::Other, "catalog").with_detail("the catalog panicked")),
            id => Ok((Object { path: id.to_string().into(), size: 2, version: None }, Span::Whole)),
        });
        assert_eq!(
            located.requests.iter().map(|request| (request.tag, request.key)).collect::<Vec<_>>(),
            [(0, key(0)), (1, key(3))]
        );
        assert_eq!(budget.used(), 4, "what is not read is not counted");
        let told = (0..2).map(|tag| Completion { tag, result: Ok(Bytes::from_static(b"ab")) }).collect();
        let got: Vec<Answer> = Answers::of(&Odd(told), located).collect().now_or_never().unwrap();
        let mut right: Vec<u64> =
            got.iter().filter(|answer| answer.result.is_ok()).map(|answer| answer.tick.0).collect();
        right.sort_unstable();
        assert_eq!((right, got.len()), (vec![0, 3], 4));
        assert!(got.iter().any(|answer| format!("{:?}", answer.result).contains("the catalog panicked")));
    }
}
