//! Threads that take work round robin.

/// The threads of one worker: each next piece of work goes to the next thread, which begins it when it is free.
#[derive(Clone, Debug)]
pub(crate) struct Threads {
    /// By thread: the second from which it is free.
    free: Vec<f64>,
    next: usize,
}

impl Threads {
    pub(crate) fn new(count: usize, from: f64) -> Self {
        Self { free: vec![from; count], next: 0 }
    }

    /// When the next thread can begin, at `now` at the earliest.
    pub(crate) fn begin(&self, now: f64) -> f64 {
        self.free[self.next].max(now)
    }

    /// The next thread is busy until `time`.
    pub(crate) fn occupy(&mut self, time: f64) {
        self.free[self.next] = time;
        self.next = (self.next + 1) % self.free.len();
    }

    /// The next thread works for `seconds`, from `now` at the earliest. Returns when it is done.
    pub(crate) fn work(&mut self, now: f64, seconds: f64) -> f64 {
        let done = self.begin(now) + seconds;
        self.occupy(done);
        done
    }

    /// Adds a thread that is free from `now` on, up to `most` threads.
    pub(crate) fn grow(&mut self, most: usize, now: f64) {
        if self.free.len() < most {
            self.free.push(now);
        }
    }

    /// When the last thread is done.
    pub(crate) fn done(&self) -> f64 {
        self.free.iter().copied().fold(0.0, f64::max)
    }
}
