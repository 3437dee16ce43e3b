//! The contract as functions that a tier's tests call.
//!
//! * [`origin`] for an origin that contains the objects of [`samples`], perhaps those of [`HIDDEN`]
//!   (which it must not list), and nothing else.
//! * [`cache`] for an empty cache. The suite stores and removes samples.
//! * [`reads_allocate_what_is_charged`] for an empty cache, in a program that counts allocations.
//! * [`tier`] for any tier with known samples: a peer, or a layer around any of the above. The
//!   other two call it.
//!
//! Each panics with the broken rule and the actual result. A minute without an answer counts as no
//! answer. On a paused clock that minute may pass at once, so a tier with its own threads must be
//! tested on a running clock.

mod cache;
mod origin;
mod tier;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use foreread_tier::{ErrorKind, ReadRequest, Tier, TierError};
use futures::StreamExt;

pub use self::cache::{cache, reads_allocate_what_is_charged};
pub use self::origin::origin;
pub use self::tier::tier;

use crate::{Answered, KnownSample, ReadAll};

/// Paths (and sizes) of objects that an origin may contain in addition to [`samples`] and must not
/// list.
pub const HIDDEN: &[(&str, u64)] = &[(".hidden", 10), ("b/.hidden", 11), (".git/config", 12)];

/// The objects of an origin under test: samples of many lengths, including 0. Directory names are
/// prefixes of each other, and names contain blanks or are not ASCII.
pub fn samples(seed: u64) -> Vec<KnownSample> {
    KnownSample::generate(
        seed,
        [
            ("a/0", 0),
            ("a/1", 1),
            ("a/2", 4095),
            ("a/3", 4096),
            ("a/4", 4097),
            ("a.b/5", 77),
            ("ab/6", 100_003),
            ("b/c/d/7", 1_048_577),
            ("b/c/8", 20_000),
            ("b/e f+g%20.jpg", 333),
            ("b/\u{e9}\u{4e16}.png", 4444),
            ("top", 12_345),
        ],
    )
}

/// The time that an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

type AnswersByTag = BTreeMap<u32, Result<Bytes, TierError>>;

/// Reads in one burst. Returns the answers by the position of their requests.
///
/// # Panics
/// If an answer does not come.
async fn read<T: Tier + ?Sized>(what: &str, tier: &T, requests: Vec<ReadRequest>) -> AnswersByTag {
    let (expected, mut reads) = (requests.len(), tier.read_all(requests));
    let mut answers = AnswersByTag::new();
    loop {
        match tokio::time::timeout(ANSWER_TIMEOUT, reads.next()).await {
            Ok(Some(Answered { tag, result })) => drop(answers.insert(tag, result)),
            Ok(None) => break,
            Err(_) => panic!("{what}: no answer in {ANSWER_TIMEOUT:?}; {} came before", answers.len()),
        }
    }
    assert_eq!(answers.len(), expected, "{what}: one answer for each request");
    answers
}

#[track_caller]
fn assert_bytes(what: &str, answer: &Result<Bytes, TierError>, expected: &[u8]) {
    match answer {
        Ok(bytes) if bytes == expected => {}
        Ok(bytes) if bytes.len() == expected.len() => panic!("{what}: other bytes of the same length"),
        Ok(bytes) => panic!("{what}: {} bytes instead of {}", bytes.len(), expected.len()),
        Err(error) => panic!("{what}: {error}"),
    }
}

#[track_caller]
fn assert_kind(what: &str, answer: &Result<Bytes, TierError>, tier: &str, expected: ErrorKind) {
    match answer {
        Ok(bytes) => panic!("{what}: {} bytes instead of the error \"{expected}\"", bytes.len()),
        Err(error) => {
            assert_eq!(error.kind(), expected, "{what}: {error}");
            assert_eq!(error.tier(), tier, "{what}: the error names its tier");
            assert!(error.object().is_some(), "{what}: the error names the object: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use foreread_tier::{Object, OriginTier, ReadFuture, TierProfile};
    use futures::FutureExt;
    use futures::future::BoxFuture;
    use futures::stream::BoxStream;

    use super::*;
    use crate::{FailingTier, FakeOrigin, Fault, When};

    fn right() -> FakeOrigin {
        let objects = samples(3).into_iter().map(|known| (known.object.path, known.object.size));
        FakeOrigin::new(objects).with_seed(3)
    }

    async fn suite_with(when: When, fault: Fault) {
        origin(&FailingTier::new(Arc::new(right())).on(when, fault), &samples(3)).await;
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "bytes instead of")]
    async fn suite_detects_a_missing_byte() {
        suite_with(When::Read(43), Fault::Short).await;
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "other bytes of the same length")]
    async fn suite_detects_a_flipped_bit() {
        suite_with(When::Read(43), Fault::Flip).await;
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "no answer in")]
    async fn suite_detects_a_missing_answer() {
        suite_with(When::Read(43), Fault::Never).await;
    }

    static LONGEST: std::sync::OnceLock<Bytes> = std::sync::OnceLock::new();

    /// Breaks one rule of the contract.
    #[derive(Debug)]
    struct BrokenOrigin(FakeOrigin, BrokenPromise);

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum BrokenPromise {
        MergesRanges,
        ListsTwice,
        IgnoresAfter,
        TakesPrefixesForNames,
    }

    impl Tier for BrokenOrigin {
        fn name(&self) -> &str {
            self.0.name()
        }

        fn profile(&self) -> &TierProfile {
            self.0.profile()
        }

        fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
            let answer = self.0.read(Arc::clone(&request));
            let (BrokenPromise::MergesRanges, foreread_tier::Span::Range(range)) =
                (self.1, request.span.clone())
            else {
                return answer;
            };
            // All answers are slices of one allocation.
            let longest = LONGEST.get_or_init(|| {
                samples(3).into_iter().max_by_key(|known| known.content.len()).unwrap().content
            });
            let (longest, range) = (longest.clone(), range.start as usize..range.end as usize);
            let merge = move |bytes: Bytes| match longest.get(range.clone()) == Some(&bytes[..]) {
                true => longest.slice(range),
                false => bytes,
            };
            answer.map(|result| result.map(merge)).boxed()
        }

        fn submit(&self) {
            self.0.submit();
        }
    }

    impl OriginTier for BrokenOrigin {
        fn place(&self) -> &str {
            self.0.place()
        }

        fn list(&self, prefix: &str, after: Option<&str>) -> BoxStream<'static, Result<Object, TierError>> {
            match self.1 {
                BrokenPromise::ListsTwice => {
                    self.0.list(prefix, after).chain(self.0.list(prefix, after)).boxed()
                }
                BrokenPromise::IgnoresAfter => self.0.list(prefix, None),
                BrokenPromise::TakesPrefixesForNames => {
                    let prefix = prefix.to_owned();
                    let below = move |object: &Result<Object, _>| {
                        std::future::ready(
                            object.as_ref().is_ok_and(|object| object.path.starts_with(&prefix)),
                        )
                    };
                    self.0.list("", after).filter(below).boxed()
                }
                _ => self.0.list(prefix, after),
            }
        }

        fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
            self.0.stat(path)
        }

        fn layouts(&self, paths: Vec<Arc<str>>) -> Option<foreread_tier::LayoutsFuture> {
            self.0.layouts(paths)
        }
    }

    #[tokio::test]
    #[should_panic(expected = "slices of one allocation")]
    async fn suite_detects_slices_of_a_joined_read() {
        let known: Vec<KnownSample> =
            samples(3).into_iter().filter(|known| !(3003..1 << 20).contains(&known.object.size)).collect();
        let objects = known.iter().map(|known| (Arc::clone(&known.object.path), known.object.size));
        let merging = FakeOrigin::new(objects).with_seed(3);
        origin(&BrokenOrigin(merging, BrokenPromise::MergesRanges), &known).await;
    }

    #[tokio::test]
    #[should_panic(expected = "top twice")]
    async fn suite_detects_a_duplicate_in_a_listing() {
        let known: Vec<KnownSample> =
            samples(3).into_iter().filter(|known| &*known.object.path == "top").collect();
        let top = FakeOrigin::new([("top", 12_345)]).with_seed(3);
        origin(&BrokenOrigin(top, BrokenPromise::ListsTwice), &known).await;
    }

    #[tokio::test]
    #[should_panic(expected = "listing after")]
    async fn suite_detects_a_listing_that_ignores_after() {
        origin(&BrokenOrigin(right(), BrokenPromise::IgnoresAfter), &samples(3)).await;
    }

    #[tokio::test]
    #[should_panic(expected = "listing below \"a\"")]
    async fn suite_detects_a_prefix_that_splits_a_name() {
        origin(&BrokenOrigin(right(), BrokenPromise::TakesPrefixesForNames), &samples(3)).await;
    }
}
