//! The results of one burst of reads, checked against the tier's contract.
//!
//! A wrong length or a wrong checksum (where the catalog has one) becomes an error. A panic of a
//! tier fails only the read in which it happened. A read whose sample the catalog cannot locate
//! fails with the catalog's error.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use foreread_dataset::SampleChecksum;
use foreread_tier::{
    Charge, ErrorKind, Lifetime, Object, ReadBlock, ReadFuture, ReadRequest, Sample, Span, StorageServer,
    Tier, TierError,
};
use foreread_types::{DatasetId, SampleKey, Tick};
use futures_buffered::FuturesUnordered;

use crate::locate::{Location, location_by_key};
use crate::panics::{catch_panic, panic_error};

/// A dataset and the index of a block in it.
pub(crate) type BlockId = (DatasetId, usize);

/// One read in flight.
#[derive(Debug)]
pub(crate) struct PendingRead {
    pub(crate) tick: Tick,
    pub(crate) key: SampleKey,
    /// The block that it is read with, whether or not a use waits for it.
    pub(crate) block: Option<(BlockId, Arc<ReadBlock>)>,
    pub(crate) bytes: u64,
    /// The budget charge of the bytes.
    pub(crate) charge: Charge,
    /// The expected checksum, where the sample's format has one and no lower layer has checked it.
    pub(crate) check: Option<Checksum>,
    /// The storage server of the sample, if the catalog knows it.
    pub(crate) server: Option<StorageServer>,
    /// How long the sample will be in memory.
    pub(crate) lifetime: Lifetime,
    /// Whether a checksum mismatch is an error. Otherwise the sample is read once more.
    pub(crate) is_last_try: bool,
}

impl PendingRead {
    /// A read of a sample of `bytes` bytes.
    pub(crate) fn new(tick: Tick, key: SampleKey, bytes: u64, charge: Charge) -> Self {
        let (lifetime, check, server) = (Lifetime::Passing, None, None);
        Self { tick, key, block: None, bytes, charge, check, server, lifetime, is_last_try: true }
    }

    /// Adds the expected checksum.
    pub(crate) fn checked(self, checksum: Option<SampleChecksum>) -> Self {
        Self { check: checksum.map(|sum| Checksum { sum, at: 0 }), ..self }
    }

    /// Sets the storage server of the sample.
    pub(crate) fn with_server(self, server: Option<StorageServer>) -> Self {
        Self { server, ..self }
    }

    /// Sets how long the sample will be in memory.
    pub(crate) fn with_lifetime(self, lifetime: Lifetime) -> Self {
        Self { lifetime, ..self }
    }

    /// The request for the bytes of `object` at the sample's `span`.
    fn request(&mut self, object: Object, span: Span) -> Arc<ReadRequest> {
        if let (Some(check), Span::Range(range)) = (&mut self.check, &span) {
            check.at = range.start;
        }
        let block = self.block.as_ref().map(|(_, block)| Arc::clone(block));
        let (server, lifetime) = (self.server, self.lifetime);
        Arc::new(ReadRequest {
            block,
            server,
            lifetime,
            ..ReadRequest::new(self.key, object, span, self.tick)
        })
    }

    /// Checks the tier's result against the request.
    fn finish(self, tier: &str, received: Result<Bytes, TierError>) -> ReadResult {
        let Self { tick, key, block, bytes, charge, check, is_last_try, .. } = self;
        let data = match received {
            Ok(data) if data.len() as u64 == bytes => match check {
                Some(check) => check.passed(tier, &data).map(|()| data),
                None => Ok(data),
            },
            Ok(data) => Err(TierError::new(ErrorKind::Changed, tier)
                .with_detail(format!("{} bytes instead of {bytes}", data.len()))),
            Err(error) => Err(error),
        };
        let (result, retry_charge) = match data {
            Ok(data) => (Ok(Sample::new(data, charge)), None),
            Err(error) if !is_last_try && check.is_some() && error.kind() == ErrorKind::Corrupt => {
                (Err(error), Some(charge))
            }
            Err(error) => (Err(error), None),
        };
        ReadResult { tick, key, block: block.map(|(id, _)| id), result, retry_charge }
    }
}

/// A read that is ready to start: its request, or the catalog's error.
pub(crate) type LocatedRead = (PendingRead, Result<Arc<ReadRequest>, TierError>);

/// Calls `locate` for each read.
pub(crate) fn locate_reads(
    pending: impl IntoIterator<Item = PendingRead>,
    mut locate: impl FnMut(SampleKey) -> Result<Location, TierError>,
) -> impl Iterator<Item = LocatedRead> {
    pending.into_iter().map(move |mut pending| {
        let request = locate(pending.key).map(|(object, span)| pending.request(object, span));
        (pending, request)
    })
}

/// Locates reads of a tier that knows samples by their keys.
pub(crate) fn locate_by_key(
    pending: impl IntoIterator<Item = PendingRead>,
) -> impl Iterator<Item = LocatedRead> {
    pending.into_iter().map(|mut pending| {
        let (object, span) = location_by_key(pending.bytes);
        let request = pending.request(object, span);
        (pending, Ok(request))
    })
}

/// The checksum of a sample's bytes, and their offset in the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checksum {
    pub(crate) sum: SampleChecksum,
    pub(crate) at: u64,
}

impl Checksum {
    /// Compares the checksum of `data`.
    pub(crate) fn passed(self, tier: &str, data: &[u8]) -> Result<(), TierError> {
        let found = self.sum.of(data);
        if found == self.sum.expected() {
            return Ok(());
        }
        let why = format!(
            "the checksum of its {} bytes from byte {} on is {found:08x}, expected {:08x} as in its shard",
            data.len(),
            self.at,
            self.sum.expected()
        );
        Err(TierError::new(ErrorKind::Corrupt, tier).with_detail(why))
    }
}

/// The reads in flight. Yields their results.
pub(crate) type ReadsInFlight = FuturesUnordered<ReadInFlight>;

/// One read in flight.
pub(crate) struct ReadInFlight {
    tier: Arc<str>,
    /// `None` after the end of the read.
    pending: Option<PendingRead>,
    answer: Result<ReadFuture, TierError>,
}

/// Starts a burst of reads and adds them to `answers`. Free slots are granted in their order.
pub(crate) fn begin(
    tier: &dyn Tier,
    locate_reads: impl IntoIterator<Item = LocatedRead>,
    answers: &mut ReadsInFlight,
) {
    let name: Arc<str> = tier.name().into();
    for (pending, request) in locate_reads {
        let answer = request.and_then(|request| {
            let read = catch_unwind(AssertUnwindSafe(|| tier.read(request)));
            read.map_err(|panic| panic_error(&name, &*panic))
        });
        // A second look-up would fail, too.
        let is_last_try = pending.is_last_try || answer.is_err();
        answers.push(ReadInFlight {
            tier: Arc::clone(&name),
            pending: Some(PendingRead { is_last_try, ..pending }),
            answer,
        });
    }
    if catch_unwind(AssertUnwindSafe(|| tier.submit())).is_err() {
        tracing::debug!(
            tier = &*name,
            "the tier panicked in submit(); the first poll of a read submits, too"
        );
    }
}

/// Reads one sample and waits for it.
pub(crate) async fn read_alone(
    tier: &(impl Tier + ?Sized),
    request: ReadRequest,
) -> Result<Bytes, TierError> {
    catch_panic(tier.name(), async move { tier.read(Arc::new(request)).await }).await
}

/// The result of one read.
#[derive(Debug)]
pub(crate) struct ReadResult {
    pub(crate) tick: Tick,
    pub(crate) key: SampleKey,
    /// The block that it was read with.
    pub(crate) block: Option<BlockId>,
    pub(crate) result: Result<Sample, TierError>,
    /// The charge of the read, where the sample is to be read once more after its first checksum
    /// mismatch.
    pub(crate) retry_charge: Option<Charge>,
}

impl Future for ReadInFlight {
    type Output = ReadResult;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<ReadResult> {
        let this = &mut *self;
        let result = match &mut this.answer {
            Err(error) => Err(error.clone()),
            Ok(answer) => match catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(cx))) {
                Ok(answer) => ready!(answer),
                // Nothing uses the read after this, so its state after the panic does not matter.
                Err(panic) => Err(panic_error(&this.tier, &*panic)),
            },
        };
        match this.pending.take() {
            Some(pending) => Poll::Ready(pending.finish(&this.tier, result)),
            None => Poll::Pending, // polled after its end, which no stream does
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use foreread_tier::{Budget, TierProfile};
    use foreread_types::{DatasetId, SampleId};
    use futures::{FutureExt, StreamExt};

    use super::*;

    /// Returns the given bytes, by the tick of the request. Panics at any other tick.
    #[derive(Debug)]
    struct Odd(HashMap<Tick, &'static [u8]>);

    impl Tier for Odd {
        fn name(&self) -> &str {
            "odd"
        }

        fn profile(&self) -> &TierProfile {
            const PROFILE: TierProfile = TierProfile::new(1);
            &PROFILE
        }

        fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
            let answer = self.0.get(&request.due).copied();
            assert!(answer.is_some() || request.due.0.is_multiple_of(2), "at once");
            Box::pin(async move { Ok(Bytes::from_static(answer.expect("later"))) })
        }

        fn submit(&self) {}
    }

    fn whole() -> (Object, Span) {
        (Object { path: "x".into(), size: 2, version: None }, Span::Whole)
    }

    #[test]
    // semantics: FAIL-22
    fn faulty_or_panicking_tier_answers_every_read_once() {
        let budget = Budget::new(100);
        let pending = |tick| PendingRead {
            tick: Tick(tick),
            key: SampleKey::default(),
            block: None,
            bytes: 2,
            charge: budget.charge(2),
            check: (tick == 11)
                .then_some(Checksum { sum: SampleChecksum::Crc32c(crc32c::crc32c(b"ab")), at: 5 }),
            server: None,
            lifetime: Lifetime::Passing,
            is_last_try: false,
        };
        let odd = Odd([(Tick(10), &b"abc"[..]), (Tick(11), b"ab")].into());
        let pending = (10..14).map(pending);
        let mut answers = ReadsInFlight::new();
        begin(&odd, locate_reads(pending, |_| Ok(whole())), &mut answers);
        let mut got: Vec<ReadResult> = answers.collect().now_or_never().unwrap();
        got.sort_by_key(|answer| answer.tick);
        assert_eq!(got.iter().map(|answer| answer.tick.0).collect::<Vec<_>>(), [10, 11, 12, 13]);
        assert_eq!(got[0].result.as_ref().unwrap_err().kind(), ErrorKind::Changed);
        assert_eq!(&got[1].result.as_ref().unwrap()[..], b"ab");
        for (answer, message) in got[2..].iter().zip(["later", "at once"]) {
            let error = answer.result.as_ref().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Closed);
            assert!(error.to_string().contains(&format!("the tier panicked: {message}")), "{error}");
        }
        drop(got);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn checksum_mismatch_is_read_once_more_then_corrupt() {
        let budget = Budget::new(100);
        for is_last_try in [false, true] {
            let check = Some(Checksum { sum: SampleChecksum::Crc32c(crc32c::crc32c(b"ab")), at: 0 });
            let pending = PendingRead {
                tick: Tick(1),
                key: SampleKey::default(),
                block: None,
                bytes: 2,
                charge: budget.charge(2),
                check,
                server: None,
                lifetime: Lifetime::Passing,
                is_last_try,
            };
            let locate_reads = locate_reads([pending], |_| {
                Ok((Object { path: "x".into(), size: 5000, version: None }, Span::Range(1234..1236)))
            });
            let mut answers = ReadsInFlight::new();
            begin(&Odd([(Tick(1), &b"aB"[..])].into()), locate_reads, &mut answers);
            let got: Vec<ReadResult> = answers.collect().now_or_never().unwrap();
            let error = got[0].result.as_ref().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().contains("2 bytes from byte 1234 on"), "{error}");
            assert_eq!(got[0].retry_charge.is_none(), is_last_try);
            assert_eq!(budget.used(), if is_last_try { 0 } else { 2 });
        }
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn unlocated_reads_fail_and_others_are_sent() {
        let budget = Budget::new(100);
        let key = |id| SampleKey::new(DatasetId(0), SampleId(id));
        let pending = (0..4).map(|id| PendingRead::new(Tick(id), key(id), 2, budget.charge(2)));
        let locate_reads = locate_reads(pending, |key| match key.id.0 {
            1 => Err(TierError::new(ErrorKind::Invalid, "catalog")),
            2 => Err(TierError::new(ErrorKind::Other, "catalog").with_detail("the catalog panicked")),
            id => Ok((Object { path: id.to_string().into(), size: 2, version: None }, Span::Whole)),
        });
        let odd = Odd([0, 3].map(|tick| (Tick(tick), &b"ab"[..])).into());
        let mut answers = ReadsInFlight::new();
        begin(&odd, locate_reads, &mut answers);
        let got: Vec<ReadResult> = answers.collect().now_or_never().unwrap();
        assert_eq!(budget.used(), 4, "what is not read is not counted");
        let mut right: Vec<u64> =
            got.iter().filter(|answer| answer.result.is_ok()).map(|answer| answer.tick.0).collect();
        right.sort_unstable();
        assert_eq!((right, got.len()), (vec![0, 3], 4));
        assert!(got.iter().any(|answer| format!("{:?}", answer.result).contains("the catalog panicked")));
    }
}
