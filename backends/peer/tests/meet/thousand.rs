//! A thousand ranks in one process.

use std::time::{Duration, Instant};

use bytes::Bytes;
use foreread_peer::meet::{Joining, Left};

use crate::support::{Job, all, context, words};

/// Meets, gets a catalog of `bytes`, exchanges, compares, starts, makes ten steps, and leaves.
async fn run(size: u32, bytes: usize) {
    let job = Job::new(size);
    let catalog = Bytes::from((0..bytes).map(|at| (at % 251) as u8).collect::<Vec<_>>());
    let expected = crc32c::crc32c(&catalog);
    let stores = job.stores();
    let ranks = (0..size).map(|rank| {
        let (settings, stores) = (job.settings(rank).with_deadline(Duration::from_secs(300)), stores.clone());
        let catalog = (rank == 0).then(|| catalog.clone());
        tokio::spawn(async move {
            let mut joining = Joining::join(settings).await.unwrap();
            let shared = joining.share(catalog).await.unwrap();
            assert_eq!((shared.len(), crc32c::crc32c(&shared)), (bytes, expected));
            drop(shared);
            let held = Bytes::from(vec![rank as u8; 4096]);
            let held = joining.exchange(held, |all| all.len().to_string().into()).await.unwrap();
            assert_eq!(held, size.to_string());
            joining.compare(words("5", "plan")).await.unwrap();
            let group = joining.start(&[], &stores, &context()).await.unwrap();
            for step in 1..=10 {
                group.progress(step);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            if let Some(mut lowest) = group.lowest() {
                lowest.wait_for(|at| *at == 10).await.unwrap();
            }
            group.report(Bytes::from_static(b"{}"), Duration::from_secs(60)).await;
            let reports = group.reports(Duration::from_secs(60)).await;
            assert!(rank != 0 || reports.iter().all(Option::is_some));
            group.leave(Duration::from_secs(60)).await
        })
    });
    let ranks: Vec<_> = ranks.collect();
    assert!(all(ranks).await.iter().all(|left| *left == Left::Together));
}

/// The most memory that this process had, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// How large the catalog is: fifty gigabytes through memory, for a thousand ranks, where runs may be long.
fn catalog_bytes() -> usize {
    if std::env::var_os("FOREREAD_SOAK").is_some() { 50 << 20 } else { 256 << 10 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_ranks_meet_in_one_process() {
    let (began, bytes) = (Instant::now(), catalog_bytes());
    run(1000, bytes).await;
    eprintln!(
        "a thousand ranks, a catalog of {} KiB: {:?}, {} MiB at most",
        bytes >> 10,
        began.elapsed(),
        peak() >> 20
    );
    assert!(peak() < 2 << 30);
}
