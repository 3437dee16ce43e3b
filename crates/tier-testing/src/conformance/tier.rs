//! The contract of every tier.

use std::sync::Arc;

use foreread_tier::Tier;
use futures::StreamExt;
use futures::future::join_all;

use super::{ANSWER_TIMEOUT, assert_bytes, read};
use crate::{KnownSample, ReadAll};

/// Checks the contract of every tier: whole reads of `known` samples (at least one), in bursts of
/// all kinds.
///
/// # Panics
/// If the tier breaks the contract.
pub async fn tier<T: Tier + ?Sized>(tier: &T, known: &[KnownSample]) {
    assert!(!known.is_empty(), "the suite needs samples to read");
    name_and_profile(tier);
    nothing_is_submitted(tier);
    without_submitting(tier, known).await;
    all_at_once_and_one_by_one(tier, known).await;
    one_sample_many_times(tier, known).await;
    answers_have_allocations_of_their_own(tier, known).await;
    answers_begin_at_cache_lines(tier, known).await;
    dropped_half_way(tier, known).await;
    batches_side_by_side(tier, known).await;
}

fn name_and_profile<T: Tier + ?Sized>(tier: &T) {
    let name = tier.name();
    assert!(!name.is_empty() && name.len() <= 32, "a short name: {name:?}");
    assert!(
        name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c)),
        "{name:?}"
    );
    assert_eq!(name, tier.name(), "the name stays");
    let profile = tier.profile();
    assert!(profile.parallelism > 0, "{profile:?}");
}

fn nothing_is_submitted<T: Tier + ?Sized>(tier: &T) {
    tier.submit();
    tier.submit();
}

/// The first poll also submits.
async fn without_submitting<T: Tier + ?Sized>(tier: &T, known: &[KnownSample]) {
    let reads: Vec<_> = wholes(known).into_iter().map(|request| tier.read(Arc::new(request))).collect();
    let Ok(answers) = tokio::time::timeout(ANSWER_TIMEOUT, join_all(reads)).await else {
        panic!("unsubmitted reads: no answer in {ANSWER_TIMEOUT:?}")
    };
    for (sample, answer) in known.iter().zip(&answers) {
        assert_bytes(&format!("{} without a submit", sample.object.path), answer, &sample.content);
    }
}

fn wholes(known: &[KnownSample]) -> Vec<foreread_tier::ReadRequest> {
    known.iter().zip(0..).map(|(sample, tag)| sample.whole(tag)).collect()
}

async fn all<T: Tier + ?Sized>(what: &str, tier: &T, known: &[KnownSample]) {
    let answers = read(what, tier, wholes(known)).await;
    for (sample, answer) in known.iter().zip(answers.values()) {
        assert_bytes(&format!("{what}: {}", sample.object.path), answer, &sample.content);
    }
}

async fn all_at_once_and_one_by_one<T: Tier + ?Sized>(tier: &T, known: &[KnownSample]) {
    all("all in one batch", tier, known).await;
    for sample in known {
        let what = format!("{} alone", sample.object.path);
        assert_bytes(&what, &read(&what, tier, vec![sample.whole(9)]).await[&0], &sample.content);
    }
}

async fn one_sample_many_times<T: Tier + ?Sized>(tier: &T, known: &[KnownSample]) {
    let what = "one sample many times in a batch";
    for sample in known.iter().take(3).chain(known.last()) {
        let answers = read(what, tier, (0..5).map(|tag| sample.whole(tag)).collect()).await;
        for answer in answers.values() {
            assert_bytes(what, answer, &sample.content);
        }
    }
}

/// An answer that is a slice of a joined read would keep that whole read in memory. Two slices of
/// one allocation are as far apart as in the object. Separate allocations are multiples of 8 apart.
async fn answers_have_allocations_of_their_own<T: Tier + ?Sized>(tier: &T, known: &[KnownSample]) {
    let answers = read("allocations", tier, wholes(known)).await;
    let full: Vec<_> = answers.values().flatten().filter(|bytes| !bytes.is_empty()).collect();
    for pair in full.windows(2) {
        let [first, second] = pair else { continue };
        let apart = (second.as_ptr() as usize).wrapping_sub(first.as_ptr() as usize);
        let touching = apart == first.len() && !first.len().is_multiple_of(8);
        assert!(!touching, "two answers lie end to end in one allocation");
    }
}

/// The kernel copies three to five times slower to 16 bytes after a page.
async fn answers_begin_at_cache_lines<T: Tier + ?Sized>(tier: &T, known: &[KnownSample]) {
    for bytes in read("addresses", tier, wholes(known)).await.values().flatten() {
        let is_aligned = bytes.is_empty() || bytes.as_ptr().addr().is_multiple_of(64);
        assert!(is_aligned, "{} bytes begin at {:p}: not at a cache line", bytes.len(), bytes.as_ptr());
    }
}

async fn dropped_half_way<T: Tier + ?Sized>(tier: &T, known: &[KnownSample]) {
    for taken in 0..known.len().min(3) {
        let mut stream = tier.read_all(wholes(known));
        for _ in 0..taken {
            assert!(stream.next().await.is_some(), "an answer before the stream is dropped");
        }
        drop(stream);
        all("after a stream was dropped", tier, known).await;
    }
    drop(tier.read_all(wholes(known))); // never polled
}

async fn batches_side_by_side<T: Tier + ?Sized>(tier: &T, known: &[KnownSample]) {
    join_all((0..8).map(|_| all("one of several batches", tier, known))).await;
}
