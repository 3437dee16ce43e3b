//! The node that a process runs on, as far as a run depends on it: free memory, the launcher's environment, and what
//! this process's loaders have taken already.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use crate::memory::{self, Account, Grant, Need};
use crate::on_node::OnNode;

/// All loaders of a process share one account.
static ACCOUNT: LazyLock<Account> = LazyLock::new(Account::default);

/// A variable of the environment, by its name.
type Variable = dyn Fn(&str) -> Option<String> + Send + Sync;

/// Where a run takes place. [`Default`] is this process on this machine; tests have others.
#[derive(Clone)]
pub(crate) struct Machine {
    /// Stands for `/`.
    root: PathBuf,
    variable: Arc<Variable>,
    account: Account,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            root: PathBuf::from("/"),
            variable: Arc::new(|name| std::env::var(name).ok()),
            account: ACCOUNT.clone(),
        }
    }
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").field("root", &self.root).field("account", &self.account).finish_non_exhaustive()
    }
}

impl Machine {
    /// What the launcher says of this process.
    pub(crate) fn on_node(&self) -> OnNode {
        OnNode::launched(&*self.variable)
    }

    /// Grants a loader its memory, on one of so many `ranks`.
    pub(crate) fn grant(&self, ranks: u32, need: Need) -> Grant {
        self.account.grant(memory::free(&self.root).unwrap_or(0), ranks, need)
    }
}
