//! A job and an agent that leaves calls unanswered, or ends.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod support;

use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};

use foreread_agent_client::{AgentClient, AgentJob, AgentPlace};
use foreread_store::attach::{ATTACH, Attach, AttachDataset, Attached, DatasetAnswer, ORDER};
use foreread_store::{SampleProvider, SampleRequest, Server, ServerSettings, WorkerCall};
use foreread_tier::{ArenaBuffers, Buffers, Lifetime, Tier};
use foreread_tier_testing::{FakeOrigin, NEVER};
use foreread_types::{SampleId, Tick};
use tokio::runtime::Builder;

use self::support::{LENGTH, NoCatalogs, Orders};

/// An agent that has all samples, and never answers one kind of call.
struct TestAgent {
    unanswered: &'static str,
    kept: Mutex<Vec<WorkerCall>>,
    seen: Mutex<mpsc::Sender<String>>,
    buffers: Arc<dyn Buffers>,
}

impl SampleProvider for TestAgent {
    fn get(&self, requests: Vec<SampleRequest>) {
        for request in requests {
            let mut buffer = self.buffers.allocate_for(Lifetime::Kept, LENGTH, 1).unwrap();
            buffer.extend(&[7; LENGTH]);
            request.answer(Ok(buffer.freeze()));
        }
    }

    fn call(&self, call: WorkerCall) {
        // The test may have ended.
        let _ = self.seen.lock().unwrap().send(call.name().to_owned());
        if call.name() == self.unanswered {
            self.kept.lock().unwrap().push(call);
            return;
        }
        let datasets = vec![DatasetAnswer::Kept];
        let attached = Attached { capacity: 1 << 30, datasets, ..Attached::default() };
        let answer = if call.name() == ATTACH { serde_json::to_vec(&attached).unwrap() } else { Vec::new() };
        call.answer(Ok(answer.into()));
    }
}

fn provider(unanswered: &'static str) -> (Arc<TestAgent>, mpsc::Receiver<String>) {
    let (sender, seen) = mpsc::channel();
    let buffers: Arc<dyn Buffers> = Arc::new(ArenaBuffers::default());
    let (kept, seen_by) = (Mutex::default(), Mutex::new(sender));
    (Arc::new(TestAgent { unanswered, kept, seen: seen_by, buffers }), seen)
}

fn serve_at(socket: &Path) -> (Server, mpsc::Receiver<String>) {
    let (agent, seen) = provider("");
    let buffers = Arc::clone(&agent.buffers);
    (Server::start_at(socket, agent, buffers, ServerSettings::default()).unwrap(), seen)
}

fn agent(unanswered: &'static str) -> (Server, AgentJob, mpsc::Receiver<String>) {
    let (agent, seen) = provider(unanswered);
    let buffers = Arc::clone(&agent.buffers);
    let server = Server::start(agent, buffers, ServerSettings::default()).unwrap();
    let attach = Attach { datasets: vec![AttachDataset::default()], ..Attach::default() };
    let job = AgentJob {
        place: AgentPlace::At(server.address()),
        called: "the agent",
        comes_back: true,
        may_use: |_| true,
        alone: None,
        attach,
        catalogs: Box::new(NoCatalogs),
    };
    (server, job, seen)
}

/// Whether `work` ends.
fn ends(work: impl FnOnce() + Send + 'static) -> bool {
    let (sender, ended) = mpsc::channel();
    std::thread::spawn(move || {
        work();
        let _ = sender.send(());
    });
    ended.recv_timeout(NEVER).is_ok()
}

/// The end of a job waited for ever.
#[test]
// semantics: AGENT-6
fn end_of_a_job_does_not_wait_for_an_unanswered_order() {
    let (_server, job, seen) = agent(ORDER);
    let client = AgentClient::attach(job).unwrap();
    client.announce(Arc::new(Orders));
    while seen.recv_timeout(NEVER).unwrap() != ORDER {}
    assert!(ends(move || drop(client)));
}

/// The start of a job waited for ever.
#[test]
// semantics: AGENT-6
fn start_of_a_job_does_not_wait_for_ever() {
    let (_server, job, _seen) = agent(ATTACH);
    assert!(ends(move || assert!(AgentClient::attach(job).is_err())));
}

#[test]
// semantics: AGENT-6
fn samples_come_from_the_agent_and_directly_after_its_end() {
    let (server, job, _seen) = agent("");
    let client = AgentClient::attach(job).unwrap();
    let direct = Arc::new(FakeOrigin::uniform(4, LENGTH as u64));
    let request = |id| Arc::new(direct.request(SampleId(id), Tick(id)));
    let origin = client.origin(0, Arc::clone(&direct) as _);
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let held = runtime.block_on(origin.read(request(1))).unwrap();
    assert_eq!((client.counts().samples, client.counts().bytes), (1, LENGTH as u64));
    drop(server);
    let read = runtime.block_on(origin.read(request(2))).unwrap();
    assert_eq!((read, client.counts().direct_samples), (direct.expected(SampleId(2)), 1));
    assert!(held.iter().all(|byte| *byte == 7));
    drop(client);
    assert_eq!(runtime.block_on(origin.read(request(3))).unwrap(), direct.expected(SampleId(3)));
    assert!(held.iter().all(|byte| *byte == 7));
}

#[test]
// semantics: AGENT-29
fn job_that_begins_without_an_agent_uses_one_that_comes() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("node.sock");
    let (_other, job, seen) = agent("");
    let client =
        AgentClient::look(AgentJob { place: AgentPlace::At(socket.display().to_string()), ..job }).unwrap();
    let direct = Arc::new(FakeOrigin::uniform(4, LENGTH as u64));
    let origin = client.origin(0, Arc::clone(&direct) as _);
    client.announce(Arc::new(Orders));
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let request = |id| Arc::new(direct.request(SampleId(id), Tick(id)));
    assert_eq!(runtime.block_on(origin.read(request(1))).unwrap(), direct.expected(SampleId(1)));
    assert!(!client.was_connected());
    let (server, seen_there) = serve_at(&socket);
    while seen_there.recv_timeout(NEVER).unwrap() != ORDER {}
    assert!(client.was_connected() && seen.try_recv().is_err());
    let sample = runtime.block_on(origin.read(request(2))).unwrap();
    assert!(sample.iter().all(|byte| *byte == 7) && client.counts().samples == 1);
    drop(server);
    assert_eq!(runtime.block_on(origin.read(request(3))).unwrap(), direct.expected(SampleId(3)));
    assert!(ends(move || drop(client)));
}
