//! The servers in time: requests wait for their servers, and then their answers run.
//!
//! Decision: a heap of times and a few threads that run due requests, so that a request that waits
//! costs no thread. Answers run without the lock. The price is some 60 us of a thread's wake-up for
//! each request.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering as Memory};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::counts::OstCounts;
use crate::server_queue::{Ending, QueuedRequest, ServerQueue};

/// Threads that run answers.
const THREADS: usize = 4;

/// Called when a call has been served.
pub(crate) type Answer = Box<dyn FnOnce() + Send>;

/// A call's request to one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// The number of the server.
    pub server: usize,
    pub bytes: u64,
    /// Round trips in series.
    pub round_trips: u32,
}

/// A call that waits for its last part.
pub(crate) struct WaitingCall {
    thread: u32,
    parts_left: AtomicUsize,
    answer: Mutex<Option<Answer>>,
}

struct Due {
    at: Instant,
    /// Equal times keep their order.
    number: u64,
    what: DueWork,
}

enum DueWork {
    Ending(usize, QueuedRequest<Arc<WaitingCall>>),
    Answer(Answer),
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    /// The heap's greatest is the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

struct EngineState {
    is_closed: bool,
    servers: Vec<ServerQueue<Arc<WaitingCall>>>,
    /// The threads that wait for each server, with the number of their requests.
    threads: Vec<BTreeMap<u32, usize>>,
    due: BinaryHeap<Due>,
    next_number: u64,
}

struct Shared {
    state: Mutex<EngineState>,
    changed: Condvar,
}

/// The servers, and the threads that run them.
pub(crate) struct Engine {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Engine {
    pub fn start(servers: Vec<ServerQueue<Arc<WaitingCall>>>) -> io::Result<Engine> {
        let threads = servers.iter().map(|_| BTreeMap::new()).collect();
        let state =
            EngineState { is_closed: false, servers, threads, due: BinaryHeap::new(), next_number: 0 };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let start = |number: usize| {
            let shared = Arc::clone(&shared);
            let name = format!("stand-in-{number}");
            std::thread::Builder::new().name(name).spawn(move || shared.run())
        };
        let threads = (0..THREADS).map(start).collect::<io::Result<Vec<_>>>()?;
        Ok(Engine { shared, threads: Mutex::new(threads) })
    }

    /// Runs `answer` when all parts have been served. Without parts that is now.
    pub fn submit(&self, thread: u32, parts: &[Part], answer: Answer) {
        if parts.is_empty() {
            return answer();
        }
        let parts_left = AtomicUsize::new(parts.len());
        let call = Arc::new(WaitingCall { thread, parts_left, answer: Mutex::new(Some(answer)) });
        let now = Instant::now();
        let mut state = self.shared.lock();
        if state.is_closed {
            return;
        }
        for &Part { server, bytes, round_trips } in parts {
            *state.threads[server].entry(thread).or_default() += 1;
            let request = QueuedRequest { bytes, round_trips, work: Arc::clone(&call) };
            if let Some(ending) = state.servers[server].arrive(now, request) {
                state.add_ending(server, ending);
            }
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Runs `answer` after a time.
    pub fn after(&self, time: Duration, answer: Answer) {
        let mut state = self.shared.lock();
        if !state.is_closed {
            state.add(Instant::now() + time, DueWork::Answer(answer));
            drop(state);
            self.shared.changed.notify_all();
        }
    }

    pub fn hang(&self, server: usize) {
        self.shared.lock().servers[server].hang();
    }

    pub fn resume(&self, server: usize) {
        let mut state = self.shared.lock();
        for ending in state.servers[server].resume(Instant::now()) {
            state.add_ending(server, ending);
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    pub fn slow(&self, server: usize, factor: f64) {
        self.shared.lock().servers[server].slow(factor);
    }

    /// The counts of each server.
    pub fn counts(&self) -> Vec<OstCounts> {
        self.shared.lock().servers.iter().map(ServerQueue::counts).collect()
    }

    pub fn reset_counts(&self) {
        self.shared.lock().servers.iter_mut().for_each(ServerQueue::reset_counts);
    }

    /// The threads that wait for a server.
    pub fn waiting_threads(&self, server: usize) -> Vec<u32> {
        self.shared.lock().threads[server].keys().copied().collect()
    }

    /// Ends the threads and drops all that waits, without running its answers.
    pub fn close(&self) {
        let mut state = self.shared.lock();
        state.is_closed = true;
        let due = std::mem::take(&mut state.due);
        let left: Vec<_> = state.servers.iter_mut().flat_map(ServerQueue::close).collect();
        drop(state);
        self.shared.changed.notify_all();
        // Replies that are dropped answer the kernel, so this is done without the lock.
        drop((due, left));
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A panic of an answer has been printed by its thread.
            let _ = thread.join();
        }
    }
}

impl EngineState {
    fn add(&mut self, at: Instant, what: DueWork) {
        let number = self.next_number;
        self.next_number += 1;
        self.due.push(Due { at, number, what });
    }

    fn add_ending(&mut self, server: usize, (at, request): Ending<Arc<WaitingCall>>) {
        self.add(at, DueWork::Ending(server, request));
    }

    /// A request's time has come. Its call's answer, if that was the last part.
    fn end(
        &mut self,
        now: Instant,
        server: usize,
        request: QueuedRequest<Arc<WaitingCall>>,
    ) -> Option<Answer> {
        let (ended, next) = self.servers[server].end(now, request);
        if let Some(ending) = next {
            self.add_ending(server, ending);
        }
        let call = ended?;
        let threads = &mut self.threads[server];
        if let Some(requests) = threads.get_mut(&call.thread) {
            *requests -= 1;
            if *requests == 0 {
                threads.remove(&call.thread);
            }
        }
        let is_last = call.parts_left.fetch_sub(1, Memory::AcqRel) == 1;
        is_last.then(|| call.answer.lock().unwrap_or_else(PoisonError::into_inner).take()).flatten()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, EngineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut state = self.lock();
        while !state.is_closed {
            let now = Instant::now();
            let wait = state.due.peek().map(|due| due.at.saturating_duration_since(now));
            match wait {
                Some(Duration::ZERO) => {
                    let answer = match state.due.pop().map(|due| due.what) {
                        Some(DueWork::Ending(server, request)) => state.end(now, server, request),
                        Some(DueWork::Answer(answer)) => Some(answer),
                        None => None,
                    };
                    if let Some(answer) = answer {
                        drop(state);
                        answer();
                        state = self.lock();
                    }
                }
                Some(wait) => {
                    state = self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
                }
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}
