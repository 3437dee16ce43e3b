//! What the contract promises, as functions that a backend's tests call.
//!
//! * [`origin`] for an origin that holds the objects of [`samples`] (and beside them those of [`HIDDEN`], which it
//!   must not list) and nothing else.
//! * [`cache`] for an empty cache; it stores and removes by itself.
//! * [`tier`] for whatever answers reads of known samples: a peer, a layer around any of the above. The other two
//!   call it.
//!
//! Each panics with what was promised and what came instead, and treats a minute without an answer as none. On a
//! paused clock that minute may pass at once, so a tier with threads of its own is tested on a running one.

mod cache;
mod origin;
mod tier;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use foreread_tier::{Completions, ErrorKind, ReadRequest, Tier, TierError};
use futures::StreamExt;

pub use self::cache::cache;
pub use self::origin::origin;
pub use self::tier::tier;

use crate::Known;

/// Paths (and sizes) of objects that an origin may hold beside [`samples`] without ever listing them.
pub const HIDDEN: &[(&str, u64)] = &[(".hidden", 10), ("b/.hidden", 11), (".git/config", 12)];

/// What an origin under test holds: samples of many lengths, empty ones too, in directories whose names are
/// prefixes of each other, with names that are no ASCII or have blanks in them.
pub fn samples(seed: u64) -> Vec<Known> {
    Known::generate(
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

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

type Answers = BTreeMap<u32, Result<Bytes, TierError>>;

/// All answers of a stream.
///
/// # Panics
/// If a tag is answered twice, or the stream does not end.
async fn collect(what: &str, mut stream: Completions) -> Answers {
    let mut answers = Answers::new();
    loop {
        match tokio::time::timeout(PATIENCE, stream.next()).await {
            Ok(Some(completion)) => {
                let before = answers.insert(completion.tag, completion.result);
                assert!(before.is_none(), "{what}: tag {} was answered twice", completion.tag);
            }
            Ok(None) => return answers,
            Err(_) => panic!("{what}: no answer in {PATIENCE:?}; {} came before", answers.len()),
        }
    }
}

/// Reads a batch and checks that exactly its tags are answered.
async fn read<T: Tier + ?Sized>(what: &str, tier: &T, batch: Vec<ReadRequest>) -> Answers {
    let mut tags: Vec<u32> = batch.iter().map(|request| request.tag).collect();
    tags.sort_unstable();
    let answers = collect(what, tier.read(batch)).await;
    assert_eq!(answers.keys().copied().collect::<Vec<_>>(), tags, "{what}: one answer for each tag");
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
            assert!(error.object().is_some(), "{what}: the error names what was asked for: {error}");
        }
    }
}
