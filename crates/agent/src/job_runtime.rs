//! A runtime that may be dropped anywhere.

use std::ops::Deref;

use tokio::runtime::Runtime;

/// A runtime that ends in the background when dropped: on threads of another runtime, too, and
/// whatever its tasks do. A read that hangs must not hang the end.
#[derive(Debug)]
pub(crate) struct JobRuntime(Option<Runtime>);

impl JobRuntime {
    pub(crate) fn new(runtime: Runtime) -> Self {
        Self(Some(runtime))
    }
}

impl Deref for JobRuntime {
    type Target = Runtime;

    fn deref(&self) -> &Runtime {
        // It is taken in `drop` only.
        self.0.as_ref().unwrap_or_else(|| unreachable!("the runtime was dropped"))
    }
}

impl Drop for JobRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;

    use super::*;

    /// Guards against this fault: a cache that could not start ended the job, because its runtime
    /// was dropped in a task of another one.
    #[test]
    // semantics: RANK-39
    fn runtime_may_end_in_a_task_of_another() {
        let runtime = || Builder::new_multi_thread().worker_threads(1).build().unwrap();
        runtime().block_on(async { drop(JobRuntime::new(runtime())) });
    }
}
