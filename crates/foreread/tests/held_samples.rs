//! Resident memory of a trainer that keeps samples for ever: the promise, and at most a huge page
//! for each of them. Each case is a process, because the size of pages is a property of one: small
//! pages alone, huge ones where foreread wants them, and huge ones for all memory. Nothing here is
//! shared with other processes, so that resident memory is also the proportional one.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

use std::path::Path;
use std::process::Command;

use foreread::{Loader, Memory};
use foreread_tier_testing::until;

/// The directory and the kind of pages of a child.
const JOB: &str = "FOREREAD_TEST_HELD_SAMPLES";

const MIB: u64 = 1 << 20;
const SAMPLES: u64 = 300;
const BATCH: u64 = 4;

/// Epochs, and those of a soak.
const EPOCHS: u64 = 4;
const SOAK_EPOCHS: u64 = 100;
const MEMORY: u64 = 24 * MIB;
const LOOK_AHEAD: u64 = 8 * MIB;

/// Threads, tables, partly used pages and idle memory.
const OVERHEAD: u64 = 64 * MIB;

/// Most are short, some are empty, and one is longer than a region of the arena.
fn length(id: u64) -> usize {
    let mixed = id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    match id {
        7 => 64_000_000,
        _ if id.is_multiple_of(50) => 0,
        _ => 2f64.powf(mixed as f64 / (1u64 << 24) as f64 * 22.0) as usize,
    }
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}

/// Advises the kernel to use huge pages for all private memory of this process. Where they are
/// switched on for the machine, it does so by itself.
fn advise_huge_pages() {
    for line in std::fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [range, permissions, _, _, inode, name @ ..] = &fields[..] else { continue };
        if *permissions != "rw-p" || *inode != "0" || name.first().is_some_and(|name| *name != "[heap]") {
            continue;
        }
        let (start, end) = range.split_once('-').unwrap();
        let [start, end] = [start, end].map(|address| usize::from_str_radix(address, 16).unwrap());
        // SAFETY: the advice changes the size of pages and no contents. A range that another thread
        // has unmapped meanwhile is refused.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE) };
    }
}

fn epochs() -> u64 {
    if std::env::var_os("FOREREAD_SOAK").is_some() { SOAK_EPOCHS } else { EPOCHS }
}

/// Trains in this process, and keeps one sample of each batch. With `advises`, all memory may be
/// huge pages.
fn work(directory: &str, advises: bool) {
    let before = resident();
    let builder = Loader::builder(directory).batch_size(BATCH).epochs(epochs()).seed(3);
    let loader = builder.memory(Memory::Bytes(MEMORY)).look_ahead(LOOK_AHEAD).start().unwrap();
    let (mut held, mut held_bytes, mut longest, mut most) = (Vec::new(), 0, [0, 0], 0);
    for batch in loader.batches() {
        let batch = batch.unwrap();
        let bytes: u64 = batch.iter().map(|(_, sample)| sample.len() as u64).sum();
        longest = [longest[0].max(bytes), longest[1].max(bytes.min(longest[0]))];
        for (id, sample) in batch.iter() {
            assert!(sample.len() == length(id.0) && sample.iter().all(|&byte| byte == id.0 as u8), "{id}");
        }
        let place = (batch.index() % BATCH) as usize;
        held.extend(batch.samples().skip(place).take(1).map(|sample| (sample.id(), sample.bytes())));
        held_bytes += held.last().map_or(0, |(_, sample)| sample.len() as u64);
        drop(batch);
        if advises {
            advise_huge_pages();
        }
        let grown = resident().saturating_sub(before);
        let promised = MEMORY + LOOK_AHEAD.max(held_bytes + longest[0] + longest[1]);
        let bound = promised + promised / 16 + OVERHEAD + held.len() as u64 * (2 * MIB);
        assert!(grown <= bound, "{grown} bytes with {} held samples, and {bound} are allowed", held.len());
        most = most.max(grown);
    }
    let (samples, bytes) = (held.len(), held_bytes / MIB);
    println!("at most {} MiB with {samples} held samples of {bytes} MiB", most / MIB);
    assert_eq!(samples as u64, epochs() * SAMPLES.div_ceil(BATCH));
    assert!(held.iter().all(|(id, sample)| sample.iter().all(|&byte| byte == id.0 as u8)));
    drop(held);
    drop(loader);
    // Tasks end a little later, and idle memory goes back after a second.
    until("all but the overhead goes back", || resident().saturating_sub(before) <= OVERHEAD);
}

fn write(directory: &Path) {
    for id in 0..SAMPLES {
        std::fs::write(directory.join(format!("{id:04}")), vec![id as u8; length(id)]).unwrap();
    }
}

#[test]
// semantics: CACHE-8
fn held_samples_cost_at_most_a_huge_page_each() {
    if let Ok(job) = std::env::var(JOB) {
        let (pages, directory) = job.split_once(' ').unwrap();
        if pages == "small" {
            // SAFETY: the call changes a property of this process and reads no memory.
            let done = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
            assert_eq!(done, 0);
        }
        return work(directory, pages == "all");
    }
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    for pages in ["small", "huge", "all"] {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "held_samples_cost_at_most_a_huge_page_each", "--nocapture"]);
        let child = child.env(JOB, format!("{pages} {}", directory.path().display())).output().unwrap();
        let printed = String::from_utf8_lossy(&child.stdout);
        let line = printed.lines().find(|line| line.contains("at most")).unwrap_or_default();
        println!("{pages} pages: {line}");
        let errors = String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success(), "{pages} pages:\n{printed}\n{errors}");
    }
}
