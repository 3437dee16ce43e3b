//! Samples in the engine's own memory: one physical copy for all processes, as long as any holds
//! it.

use std::sync::Arc;

use bytes::Bytes;
use foreread_store::{Client, SampleProvider, SampleRequest, Server, ServerSettings, WorkerCall};
use foreread_tier::{ArenaBuffers, Buffers, Lifetime};
use foreread_tier_testing::until;
use foreread_types::SampleId;

const KIB: usize = 1 << 10;

/// An engine with samples in memory.
struct InMemory(Vec<Bytes>);

impl SampleProvider for InMemory {
    fn get(&self, requests: Vec<SampleRequest>) {
        for request in requests {
            let bytes = self.0[request.id().0 as usize].clone();
            request.answer(Ok(bytes));
        }
    }

    fn call(&self, _: WorkerCall) {}
}

fn filled(buffers: &ArenaBuffers, length: usize, byte: u8) -> Bytes {
    let mut buffer = buffers.allocate_for(Lifetime::Kept, length, 1).unwrap();
    buffer.extend(&vec![byte; length]);
    buffer.freeze()
}

fn serve(samples: Vec<Bytes>, buffers: &ArenaBuffers) -> Server {
    let settings = ServerSettings::default();
    Server::start(Arc::new(InMemory(samples)), Arc::new(buffers.clone()), settings).unwrap()
}

/// The file and the position in it that memory of this process is mapped from.
fn file_place(memory: &[u8]) -> (String, usize) {
    let address = memory.as_ptr() as usize;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let found = maps.lines().find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let (start, end) = words[0].split_once('-').unwrap();
        let number = |digits| usize::from_str_radix(digits, 16).unwrap();
        let range = number(start)..number(end);
        range.contains(&address).then(|| (words[4].to_owned(), address - range.start + number(words[2])))
    });
    found.unwrap()
}

/// Mappings of shared memory in this process.
fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:foreread")).count()
}

/// In a separate process, whose mappings are its own.
pub fn mapped() {
    let buffers = ArenaBuffers::default();
    assert!(buffers.share());
    let samples: Vec<Bytes> =
        (0..8_usize).map(|number| filled(&buffers, [100, 110_000][number % 2], number as u8)).collect();
    let server = serve(samples.clone(), &buffers);
    let clients = [(); 2].map(|()| Client::connect(&server.address()).unwrap());
    let mut places = std::collections::BTreeSet::new();
    for client in &clients {
        for (number, sample) in samples.iter().enumerate() {
            let held = client.get(&[SampleId(number as u64)]).pop().unwrap().unwrap();
            let bytes = held.as_ref();
            assert!(bytes == sample && held.is_shared(), "sample {number}");
            // Another mapping of the same memory.
            assert_ne!(bytes.as_ptr(), sample.as_ptr());
            assert_eq!(file_place(bytes), file_place(sample), "sample {number}");
            places.insert(file_place(bytes));
        }
    }
    assert_eq!((places.len(), mappings()), (samples.len(), 3));
    assert_eq!(server.status().over_the_socket, 0);
    crate::rig::print_line("no copies");
}

/// In a separate process: a job of an agent that serves a worker.
pub fn passed_on() {
    let buffers = ArenaBuffers::default();
    assert!(buffers.share());
    let samples: Vec<Bytes> = (0..4_usize).map(|number| filled(&buffers, 110_000, number as u8)).collect();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("node.sock");
    let provider = Arc::new(InMemory(samples.clone()));
    let agent =
        Server::start_at(&socket, provider, Arc::new(buffers.clone()), ServerSettings::default()).unwrap();
    let job = Client::connect(socket.to_str().unwrap()).unwrap();
    let received = |id: u64| Bytes::from_owner(job.get(&[SampleId(id)]).pop().unwrap().unwrap());
    // The job has an arena of its own, which is not used.
    let own = ArenaBuffers::default();
    let server = serve((0..4).map(received).collect(), &own);
    let worker = Client::connect(&server.address()).unwrap();
    for (number, sample) in samples.iter().enumerate() {
        let held = worker.get(&[SampleId(number as u64)]).pop().unwrap().unwrap();
        assert!(held.as_ref() == sample && held.is_shared(), "sample {number}");
        assert_eq!(file_place(held.as_ref()), file_place(sample), "sample {number}");
    }
    assert_eq!((own.resident(), server.status().over_the_socket), (0, 0));
    // The worker holds a sample beyond the job's handles and the agent's own.
    let held = worker.get(&[SampleId(3)]).pop().unwrap().unwrap();
    drop((server, job, samples));
    drop(agent);
    for _ in 0..8 {
        drop(filled(&buffers, 110_000, 99));
    }
    assert!(held.as_ref().iter().all(|byte| *byte == 3));
    crate::rig::print_line("no copies");
}

#[test]
// semantics: WORKER-10
fn sample_of_an_agent_reaches_a_worker_without_a_copy() {
    let mut process = crate::rig::ChildProcess::start("passed-on");
    assert_eq!(process.next_line(), "no copies");
    assert!(process.child.wait().unwrap().success());
}

#[test]
// semantics: WORKER-9
fn sample_in_the_engines_memory_is_not_copied() {
    let mut process = crate::rig::ChildProcess::start("mapped");
    assert_eq!(process.next_line(), "no copies");
    assert!(process.child.wait().unwrap().success());
}

/// The memory of a sample that a client held was reused, or zero, once the server had ended.
#[test]
// semantics: WORKER-5
fn held_sample_stays_after_the_end_of_server_and_memory() {
    // A sample whose server has ended, with its client and its region.
    let held_by_a_client = |buffers: &ArenaBuffers| {
        assert!(buffers.share());
        let sample = filled(buffers, 300 * KIB, 7);
        let region = Arc::downgrade(&buffers.shared_place(&sample).unwrap().region);
        let server = serve(vec![sample], buffers);
        let client = Client::connect(&server.address()).unwrap();
        let held = client.get(&[SampleId(0)]).pop().unwrap().unwrap();
        let address = server.address();
        drop(server);
        assert!(Client::connect(&address).is_err());
        (held, client, region)
    };
    let buffers = ArenaBuffers::new(0);
    let (held, client, region) = held_by_a_client(&buffers);
    let others: Vec<Bytes> = (0..8).map(|_| filled(&buffers, 300 * KIB, 9)).collect();
    assert!(held.as_ref().iter().all(|byte| *byte == 7), "its memory is reused");
    drop((buffers, others));
    // Both clients are looked for equally often, and the other one has no sample any more.
    let (.., other) = held_by_a_client(&ArenaBuffers::new(0));
    until("the memory of another client ends", || other.strong_count() == 0);
    assert!(held.as_ref().iter().all(|byte| *byte == 7), "its memory has ended");
    drop((held, client));
    until("its memory ends with the client", || region.strong_count() == 0);
}

/// The bytes of a lease must not change while the client holds it, whatever the engine does.
#[test]
// semantics: WORKER-9
fn leased_memory_is_not_reused() {
    let buffers = ArenaBuffers::new(0);
    assert!(buffers.share());
    /// An engine that forgets each sample as soon as it has answered.
    struct Forgetful(ArenaBuffers);
    impl SampleProvider for Forgetful {
        fn get(&self, requests: Vec<SampleRequest>) {
            for request in requests {
                let bytes = filled(&self.0, 20 * KIB, request.id().0 as u8);
                request.answer(Ok(bytes));
            }
        }
        fn call(&self, _: WorkerCall) {}
    }
    let settings = ServerSettings::default();
    let engine = Arc::new(Forgetful(buffers.clone()));
    let server = Server::start(engine, Arc::new(buffers.clone()), settings).unwrap();
    let client = Client::connect(&server.address()).unwrap();
    let mut held = std::collections::VecDeque::new();
    for id in 0..2000_u64 {
        held.push_back((id, client.get(&[SampleId(id)]).pop().unwrap().unwrap()));
        if held.len() > 37 {
            held.pop_front();
        }
        assert!(held.iter().all(|(id, held)| held.as_ref().iter().all(|byte| *byte == *id as u8)));
    }
    assert!(buffers.in_use() < 6 << 20, "{} bytes for 38 samples", buffers.in_use());
    drop((held, client));
    until("all is given back", || buffers.in_use() < 5 << 20 && server.status().used_bytes == 0);
}
