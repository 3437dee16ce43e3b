//! Unauthenticated connections get no data, hold no resources, and lock no rank out.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foreread_peer::{
    Address, Identity, Nonce, PeerClientFactory, PeerCounters, PeerServer, RunId, ServerLimits,
    SystemTransport, Token, Transport, handshake,
};
use foreread_tier::{ArenaBuffers, OpenContext, PeerService};
use foreread_tier_testing::{KnownSample, NEVER, ReadAll, until};
use foreread_types::Rank;
use futures::StreamExt;
use tokio::runtime::Handle;

use self::common::{FixedSample, resident};

fn identity(rank: u32) -> Identity {
    Identity { rank: Rank(rank), job: 1, token: Token::new("b7e1c95a03f64d2893ab5c17e0d68f42").unwrap() }
}

struct Rig {
    server: PeerServer,
    requester: PeerClientFactory,
    known: KnownSample,
    _source: Arc<dyn PeerService>,
    port: u16,
}

impl Rig {
    async fn new() -> Self {
        let (known, source) = FixedSample::bytes(110_000);
        let listener = SystemTransport.listen(&Address::tcp("127.0.0.1", 0)).await.unwrap();
        let Address::Tcp(_, port) = *listener.address() else { panic!("a port") };
        let runtime = Handle::current();
        let server =
            PeerServer::start(&runtime, identity(0), vec![listener], ServerLimits::default(), Arc::default());
        let run = RunId::new(Nonce::default(), &[]);
        server.enter(run);
        server.serve(Arc::downgrade(&source));
        let buffers = Arc::new(ArenaBuffers::default());
        let context = OpenContext { buffers, runtime, seed: 1 };
        let requester = PeerClientFactory::new(
            identity(1),
            run,
            Arc::new(SystemTransport),
            &context,
            Arc::new(PeerCounters::default()),
        );
        Self { server, requester, known, _source: source, port }
    }

    fn connect(&self) -> TcpStream {
        let mut stream = None;
        until("a connection begins", || {
            stream = TcpStream::connect(("127.0.0.1", self.port)).ok();
            stream.is_some()
        });
        stream.unwrap()
    }

    /// A new rank connects and reads a sample. Returns how long it took.
    async fn a_rank_gets_in(&self) -> Duration {
        let began = Instant::now();
        loop {
            // A new rank each time, with its own connection.
            let tier = self.requester.remote(Rank(0), self.server.addresses().to_vec());
            let answer = tier.read_all(vec![self.known.whole(0)]).next().await.unwrap();
            match answer.result {
                Ok(bytes) => {
                    assert!(bytes == self.known.content);
                    return began.elapsed();
                }
                Err(error) => assert!(began.elapsed() < NEVER, "{error}"),
            }
        }
    }

    /// The number of unauthenticated connections, once it is `expected` or more.
    fn unauthenticated(&self, expected: u64) -> u64 {
        let count = || self.server.counters().read().unauthenticated;
        until("all connections are counted", || count() >= expected);
        count()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
// semantics: RANK-31
async fn unauthenticated_connection_gets_nothing() {
    let rig = Rig::new().await;
    let hello = {
        let mut hello = [0; handshake::MOST_BYTES];
        hello[..6].copy_from_slice(b"FRDH\x05\x01");
        hello
    };
    let mut huge = hello;
    huge[20..].fill(0xff);
    let mut other_version = hello;
    other_version[4] = 9;
    let expected_text: [&[u8]; 7] = [
        &[0x5a; 4096],
        b"GET / HTTP/1.1\r\n\r\n",
        &hello,
        &huge,
        &other_version,
        &[0; 48],
        b"frd\x01\x01\x02",
    ];
    for bytes in expected_text {
        let mut stream = rig.connect();
        stream.set_read_timeout(Some(NEVER)).unwrap();
        stream.write_all(bytes).unwrap();
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard); // it may be reset
        let version = b"FRDH\x05\0\0\0";
        assert!(
            heard.is_empty() || bytes == other_version && heard == version,
            "{heard:?} without authentication"
        );
    }
    assert_eq!(rig.unauthenticated(7), 7);
    assert_eq!(rig.server.counters().read().served, 0);
}

/// Ten thousand connections that send nothing, random bytes, or half of a handshake, two thousand
/// at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
// semantics: RANK-31
async fn unauthenticated_flood_holds_nothing_and_blocks_no_rank() {
    let rig = Rig::new().await;
    rig.a_rank_gets_in().await;
    let before = resident();
    let mut slowest = Duration::ZERO;
    for round in 0..5u8 {
        let mut held = Vec::new();
        for number in 0..2000u32 {
            let mut stream = rig.connect();
            let _ = match number % 4 {
                0 => Ok(()),
                1 => stream.write_all(&[round; 300]),
                2 => stream.write_all(b"FRDH\x05\x01"),
                _ => stream.write_all(&[&b"FRDH\x05\x01"[..], &[0; 46]].concat()),
            };
            held.push(stream);
            if number % 500 == 250 {
                slowest = slowest.max(rig.a_rank_gets_in().await);
            }
        }
        slowest = slowest.max(rig.a_rank_gets_in().await);
    }
    // The clients have closed their ends. A rank that was evicted and reconnected counts as well.
    rig.unauthenticated(10_000);
    let grown = resident().saturating_sub(before);
    println!("a rank got in within {slowest:?}; {} KiB more memory", grown >> 10);
    assert!(grown < 16 << 20, "{grown} bytes more");
    // Their descriptors are free again.
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(open < 500, "{open} descriptors are open");
}
