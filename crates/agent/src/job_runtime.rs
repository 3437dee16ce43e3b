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
