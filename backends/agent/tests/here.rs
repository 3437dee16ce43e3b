//! A job in the process of its cache.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod support;

use std::sync::{Arc, Mutex, mpsc};

use foreread_agent_client::{AgentClient, AgentJob, AgentPlace};
use foreread_store::attach::{ATTACH, Attach, AttachDataset, Attached, DatasetAnswer, ORDER, OrderPiece};
use foreread_store::{Answer, ConnectionId, LocalClient, StoreJobs, StoreRequest};
use foreread_tier::{ErrorKind, Tier, TierError};
use foreread_tier_testing::{FakeOrigin, NEVER};
use foreread_types::{SampleId, Tick};
use tokio::runtime::Builder;

use self::support::{LENGTH, NoCatalogs, Orders};

/// A store that has all samples but two: one fails, and another one's request stays open.
struct TestStore {
    seen: Mutex<mpsc::Sender<String>>,
    open: Mutex<Vec<Answer>>,
}

impl std::fmt::Debug for TestStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestStore").finish_non_exhaustive()
    }
}

impl StoreJobs for TestStore {
    fn carry_out(&self, _: ConnectionId, name: &str, payload: bytes::Bytes, answer: Answer) {
        let datasets = vec![DatasetAnswer::Kept];
        let attached = Attached { capacity: 1 << 30, datasets, ..Attached::default() };
        let reply = if name == ATTACH { serde_json::to_vec(&attached).unwrap() } else { Vec::new() };
        answer(Ok(reply.into()));
        let order = (name == ORDER).then(|| OrderPiece::decode(&payload).unwrap().first.0);
        // The test may have ended.
        let _ = self.seen.lock().unwrap().send(format!("{name} {order:?}"));
    }

    fn request(&self, _: ConnectionId, samples: Vec<StoreRequest>) {
        for StoreRequest { key, answer, .. } in samples {
            match key.id.0 {
                2 => answer(Err(TierError::new(ErrorKind::Other, "store"))),
                3 => self.open.lock().unwrap().push(answer),
                _ => answer(Ok(vec![7; LENGTH].into())),
            }
        }
    }

    fn end(&self, _: ConnectionId) {
        let _ = self.seen.lock().unwrap().send("end".to_owned());
    }
}

fn start() -> (Arc<dyn StoreJobs>, AgentClient, mpsc::Receiver<String>) {
    let (sender, seen) = mpsc::channel();
    let store: Arc<dyn StoreJobs> = Arc::new(TestStore { seen: Mutex::new(sender), open: Mutex::default() });
    let local = Arc::new(LocalClient::new(&store, ConnectionId::numbered(7)));
    let attach = Attach { datasets: vec![AttachDataset::default()], ..Attach::default() };
    let job = AgentJob {
        place: AgentPlace::Here(local),
        called: "the cache",
        comes_back: false,
        may_use: |_| true,
        alone: None,
        attach,
        catalogs: Box::new(NoCatalogs),
    };
    let client = AgentClient::attach(job).unwrap();
    assert_eq!(seen.recv_timeout(NEVER).unwrap(), "attach None");
    (store, client, seen)
}

/// Includes a sample that the store cannot read, and a sample that it never answers.
#[test]
// semantics: AGENT-6, RANK-39
fn samples_of_a_store_in_this_process_are_there_at_once() {
    let (store, client, seen) = start();
    let direct = Arc::new(FakeOrigin::uniform(5, LENGTH as u64));
    let origin = client.origin(0, Arc::clone(&direct) as _);
    assert!(origin.profile().in_process);
    let request = |id| Arc::new(direct.request(SampleId(id), Tick(id)));
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let read = |id| runtime.block_on(origin.read(request(id))).unwrap();
    let ready = futures::FutureExt::now_or_never(origin.read(request(1))).unwrap().unwrap();
    assert!(ready.iter().all(|byte| *byte == 7));
    assert_eq!(read(2), direct.expected(SampleId(2)));
    let unanswered = origin.read(request(3));
    origin.submit();
    drop(store);
    assert_eq!(runtime.block_on(unanswered).unwrap(), direct.expected(SampleId(3)));
    assert_eq!(read(4), direct.expected(SampleId(4)));
    let counts = client.counts();
    assert_eq!((counts.samples, counts.direct_samples), (1, 3));
    drop(client);
    assert!(seen.try_iter().all(|it| it != "end"), "it has ended before");
}

/// Guards against this fault: each request of a sample woke the thread that announces orders.
#[test]
// semantics: AGENT-2
fn orders_are_announced_when_their_epochs_come_near() {
    let (store, client, seen) = start();
    client.announce(Arc::new(Orders));
    let next = |what: &str| {
        while seen.recv_timeout(NEVER).unwrap() != what {}
    };
    next("order-piece Some(0)");
    next("order-piece Some(10)");
    let direct = Arc::new(FakeOrigin::uniform(5, LENGTH as u64));
    let origin = client.origin(0, Arc::clone(&direct) as _);
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    // The second epoch begins.
    runtime.block_on(origin.read(Arc::new(direct.request(SampleId(0), Tick(10))))).unwrap();
    next("order-piece Some(20)");
    drop(client);
    next("end");
    drop(store);
}
