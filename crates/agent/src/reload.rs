//! Reads a policy file again when it changes.

use std::sync::Arc;
use std::time::Duration;

/// How often the policy file is looked at.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Reads the policy again when its file changes. The file's server may hang, and this task with it.
pub(crate) async fn reload_regularly<T: Send + Sync + 'static>(state: Arc<T>, reload: fn(&T)) {
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        let looking = Arc::clone(&state);
        if tokio::task::spawn_blocking(move || reload(&looking)).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    // semantics: AGENT-10, CONTROL-5
    async fn policy_file_is_looked_at_four_times_a_second() {
        let looks = Arc::new(AtomicU32::new(0));
        tokio::spawn(reload_regularly(Arc::clone(&looks), |looks| _ = looks.fetch_add(1, Ordering::Relaxed)));
        tokio::time::sleep(Duration::from_millis(1999)).await;
        assert_eq!(looks.load(Ordering::Relaxed), 7);
    }
}
