//! The runtime of a store: its own threads, or the threads of the rank that hosts it.

use tokio::runtime::{Builder, Handle, Runtime};

use crate::error::HostError;

/// A runtime that may be dropped anywhere. One of its own ends in the background: on threads of
/// another runtime, too, and whatever its tasks do. A read that hangs must not hang the end.
#[derive(Debug)]
pub struct JobRuntime {
    handle: Handle,
    own: Option<Runtime>,
}

impl JobRuntime {
    /// One with so many threads of its own.
    ///
    /// # Errors
    /// If the system has no threads left.
    pub fn new(threads: usize) -> Result<Self, HostError> {
        let own = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("foreread")
            .enable_all()
            .build()
            .map_err(|error| HostError::system("cannot start threads", error))?;
        Ok(Self { handle: own.handle().clone(), own: Some(own) })
    }

    /// The runtime of a rank, which ends with the rank. The store's work for this rank then wakes
    /// no other thread.
    pub(crate) fn shared(runtime: &Handle) -> Self {
        Self { handle: runtime.clone(), own: None }
    }

    /// Where its tasks run.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for JobRuntime {
    fn drop(&mut self) {
        if let Some(own) = self.own.take() {
            own.shutdown_background();
        }
    }
}

/// Threads for reads and their checksums: half of the cores, at most sixteen.
pub fn io_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    (cores / 2).clamp(2, 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against this fault: a cache that could not start ended the job, because its runtime
    /// was dropped in a task of another one.
    #[test]
    // semantics: RANK-39
    fn runtime_may_end_in_a_task_of_another() {
        let outer = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        outer.block_on(async { drop(JobRuntime::new(1).unwrap()) });
    }
}
