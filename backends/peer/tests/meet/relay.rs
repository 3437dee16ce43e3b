//! A man in the middle without the token that listens where ranks look for rank 0 first, and passes
//! all traffic on to it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use foreread_peer::{Address, BoxedStream};
use foreread_tier_testing::TestRandom;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};

use crate::support::{Job, all, begin};

/// The relay's log, and the number of bytes left to change.
struct Middle {
    draw: TestRandom,
    left: u64,
    seen: Vec<u8>,
}

/// One direction. A byte of every second piece is changed until enough are.
async fn pump(
    middle: &Mutex<Middle>,
    mut from: impl AsyncRead + Unpin,
    mut into: impl AsyncWrite + Unpin,
) -> Option<()> {
    let mut part = vec![0; 4096];
    loop {
        let count = from.read(&mut part).await.ok().filter(|count| *count > 0)?;
        {
            let mut middle = middle.lock().unwrap();
            middle.seen.extend(&part[..count]);
            if middle.left > 0 && middle.draw.below(2) == 0 {
                middle.left -= 1;
                part[middle.draw.below(count as u64) as usize] ^= 1 << middle.draw.below(8);
            }
        }
        into.write_all(&part[..count]).await.ok()?;
        into.flush().await.ok()?;
    }
}

async fn relay(middle: Arc<Mutex<Middle>>, requester: BoxedStream, first: BoxedStream) {
    let ((from_asker, to_asker), (from_first, to_first)) = (split(requester), split(first));
    tokio::select! {
        _ = pump(&middle, from_asker, to_first) => {}
        _ = pump(&middle, from_first, to_asker) => {}
    }
}

#[tokio::test(start_paused = true)]
// semantics: RANK-35
async fn ranks_meet_through_a_relay_that_changes_messages() {
    let job = Job::new(4);
    let host = job.network.host("r0");
    let mut listener = host.listen(&Address::tcp("r0", 7000)).await.unwrap();
    let middle = Arc::new(Mutex::new(Middle { draw: TestRandom::new(), left: 2, seen: Vec::new() }));
    let shared = Arc::clone(&middle);
    let sits = tokio::spawn(async move {
        while let Ok((requester, _)) = listener.accept().await {
            // Rank 0 listens at the next port, or not yet.
            if let Ok(first) = host.connect(&Address::tcp("r0", 7001)).await {
                tokio::spawn(relay(Arc::clone(&shared), requester, first));
            }
        }
    });
    // Rank 0 has chosen the next port before the others come.
    let ranks: Vec<_> = (0..4)
        .map(|rank| {
            let wait = if rank == 0 { Duration::ZERO } else { Duration::from_secs(1) };
            job.spawn(rank, wait, move |joining| async move { begin(joining.unwrap()).await.unwrap() })
        })
        .collect();
    let groups = all(ranks).await;
    assert!(groups.iter().all(|group| group.run() == groups[0].run()));
    let middle = middle.lock().unwrap();
    assert!(middle.seen.len() > 500 && middle.left < 2, "{} bytes passed", middle.seen.len());
    for expected in [&b"addresses"[..], b"r1:", b"world_size"] {
        assert!(
            !middle.seen.windows(expected.len()).any(|part| part == expected),
            "{expected:?} can be read"
        );
    }
    sits.abort();
}
