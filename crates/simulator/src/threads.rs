//! Threads that take work in round-robin order.

/// The threads of one worker. Each piece of work goes to the next thread, which begins it when it
/// is free.
#[derive(Clone, Debug)]
pub(crate) struct Threads {
    /// By thread: the time from which it is free, in seconds.
    free: Vec<f64>,
    next: usize,
}

impl Threads {
    pub(crate) fn new(count: usize, from: f64) -> Self {
        Self { free: vec![from; count], next: 0 }
    }

    /// The time at which the next thread can begin, at `now` at the earliest.
    pub(crate) fn begin(&self, now: f64) -> f64 {
        self.free[self.next].max(now)
    }

    /// Makes the next thread busy until `time`.
    pub(crate) fn occupy(&mut self, time: f64) {
        self.free[self.next] = time;
        self.next = (self.next + 1) % self.free.len();
    }

    /// Gives the next thread work of `seconds`, from `now` at the earliest. Returns the end time.
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

    /// The time at which all threads are free.
    pub(crate) fn done(&self) -> f64 {
        self.free.iter().copied().fold(0.0, f64::max)
    }
}
