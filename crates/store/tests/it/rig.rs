//! A test engine, and worker processes.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use foreread_store::{
    Client, SampleProvider, SampleRequest, Server, ServerSettings, SharedBytes, StoreError, WorkerCall,
};
use foreread_tier::{ArenaBuffers, ErrorKind, TierError};
use foreread_tier_testing::NEVER;
use foreread_types::SampleId;

/// Ids from here on contain their length: `SIZED + length * 1000 + number`.
pub const SIZED: u64 = 1 << 32;
/// The longest sample that exists.
const LONGEST: u64 = 1 << 28;
/// A sample that does not exist.
pub const MISSING: SampleId = SampleId(1 << 60);
/// A sample whose request the engine drops.
pub const FORGOTTEN: SampleId = SampleId((1 << 60) + 1);
/// From here on: samples that arrive only when they are unparked.
pub const PARKED: u64 = 1 << 61;

/// The `number`-th sample of `length` bytes.
pub fn sized(length: u64, number: u64) -> SampleId {
    assert!(number < 1000);
    SampleId(SIZED + length * 1000 + number)
}

/// The bytes of the sample.
pub fn content(id: SampleId) -> Bytes {
    let length = match id.0 {
        PARKED.. => 1000,
        SIZED.. => (id.0 - SIZED) / 1000,
        small => small * 37 % 5000,
    };
    let mut state = id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length as usize + 8);
    while (bytes.len() as u64) < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length as usize);
    bytes.into()
}

/// An engine that serves [`content`].
pub struct TestEngine {
    /// Answers on this thread. `None` answers on the server's.
    thread: Option<Sender<SampleRequest>>,
    parked: Mutex<Vec<SampleRequest>>,
    calls: Mutex<Vec<WorkerCall>>,
}

fn answer(request: SampleRequest) {
    let id = request.id();
    match id {
        MISSING => {
            let error = TierError::new(ErrorKind::NotFound, "local").with_object("images/a.jpg");
            request.answer(Err(error.with_source(std::io::Error::other("no such file"))));
        }
        FORGOTTEN => drop(request),
        // A hostile program requests anything.
        SampleId(id) if (SIZED..PARKED).contains(&id) && (id - SIZED) / 1000 > LONGEST => {
            request.answer(Err(TierError::new(ErrorKind::Invalid, "test")));
        }
        _ => request.answer(Ok(content(id))),
    }
}

impl TestEngine {
    /// Answers at once.
    pub fn direct() -> Arc<Self> {
        Arc::new(Self { thread: None, parked: Mutex::default(), calls: Mutex::default() })
    }

    /// Answers from another thread.
    pub fn threaded() -> Arc<Self> {
        let (thread, sample_requests) = mpsc::channel();
        std::thread::spawn(move || sample_requests.into_iter().for_each(answer));
        Arc::new(Self { thread: Some(thread), parked: Mutex::default(), calls: Mutex::default() })
    }

    /// Takes the parked requests.
    pub fn parked(&self) -> Vec<SampleRequest> {
        std::mem::take(&mut self.parked.lock().unwrap())
    }

    /// Answers all parked requests.
    pub fn unpark(&self) {
        self.parked().into_iter().for_each(answer);
    }

    /// Parked requests and calls.
    pub fn waiting(&self) -> usize {
        self.parked.lock().unwrap().len() + self.calls.lock().unwrap().len()
    }
}

impl SampleProvider for TestEngine {
    fn get(&self, sample_requests: Vec<SampleRequest>) {
        for request in sample_requests {
            match &self.thread {
                _ if request.id().0 >= PARKED => self.parked.lock().unwrap().push(request),
                Some(thread) => thread.send(request).unwrap(),
                None => answer(request),
            }
        }
    }

    fn call(&self, call: WorkerCall) {
        match call.name() {
            "echo" => {
                let payload = call.payload().clone();
                call.answer(Ok(payload));
            }
            "repeat" => {
                let count = u64::from_le_bytes(call.payload()[..].try_into().unwrap());
                call.answer(Ok(content(sized(count, 0))));
            }
            "park" => self.calls.lock().unwrap().push(call),
            "drop" => drop(call),
            name => {
                let error = TierError::new(ErrorKind::Unsupported, "share").with_object(name);
                call.answer(Err(error));
            }
        }
    }
}

/// A server whose clients may hold `bytes` in shared memory.
pub fn server(samples: Arc<TestEngine>, bytes: u64) -> Server {
    let settings = ServerSettings::default().with_shared_bytes(bytes);
    Server::start(samples, Arc::new(ArenaBuffers::default()), settings).unwrap()
}

pub fn client(server: &Server) -> Client {
    Client::connect(&server.address()).unwrap()
}

/// One sample, checked.
pub fn get(client: &Client, id: SampleId) -> SharedBytes {
    let held = client.get(&[id]).pop().unwrap().unwrap();
    assert!(held.as_ref() == content(id), "sample {id} is wrong");
    held
}

/// Many, checked.
pub fn get_all(client: &Client, ids: &[SampleId]) -> Vec<SharedBytes> {
    let got: Result<Vec<_>, StoreError> = client.get(ids).into_iter().collect();
    let got = got.unwrap();
    assert_eq!(got.len(), ids.len());
    for (held, id) in got.iter().zip(ids) {
        assert!(held.as_ref() == content(*id), "sample {id} is wrong");
    }
    got
}

/// The variable with the role and arguments of a child process of this binary.
pub const ROLE: &str = "FOREREAD_TEST_SHARE_ROLE";

/// Another process of this test binary with a [`ROLE`], killed when dropped.
pub struct ChildProcess {
    pub child: Child,
    pub input: Option<ChildStdin>,
    /// Lines of its output.
    output: Receiver<String>,
}

impl ChildProcess {
    /// Runs `processes::child` as `role`.
    pub fn start(role: &str) -> Self {
        Self::start_by(role, |_| {})
    }

    /// The same, after `change` of the command.
    pub fn start_by(role: &str, change: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "processes::child", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (tell, output) = mpsc::channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| tell.send(line)));
        Self { child, input, output }
    }

    /// Writes a line to its input.
    pub fn send_line(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// The next line of output that begins with `> `, without that prefix.
    pub fn next_line(&mut self) -> String {
        loop {
            let line = self.output.recv_timeout(NEVER).expect("the process ended, or waits, without a word");
            // The test harness writes "test ... " before it.
            if let Some((_, text)) = line.split_once("> ") {
                return text.trim_end().to_owned();
            }
        }
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In a child process: writes a line for the parent.
pub fn print_line(line: impl std::fmt::Display) {
    println!("> {line}");
}

/// In a child process: the next line from the parent. `None` if the parent is gone.
pub fn read_line() -> Option<String> {
    let mut line = String::new();
    (std::io::stdin().read_line(&mut line).unwrap() > 0).then(|| line.trim_end().to_owned())
}
