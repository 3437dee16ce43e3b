//! The policy that a host follows: the values of its settings, its file, its user and the control
//! process, by their precedence.
//!
//! Decision: a change is checked as a whole and applied under the lock, so that a job that attaches
//! meanwhile misses none. The price is that changes wait for each other.

use std::sync::{Mutex, MutexGuard};

use crate::policy::{Policy, PolicyError, PolicySource};
use crate::policy_file::PolicyFile;
use crate::status::PolicyValue;
use foreread_tier::lock;

/// The policy of a host.
#[derive(Debug)]
pub(crate) struct PolicyInForce {
    /// The bytes of memory that the host was given.
    given: u64,
    state: Mutex<PolicyState>,
    /// Apart from the policy: a file server that hangs must not hang the host.
    file: Mutex<PolicyFile>,
    /// Its path.
    file_name: String,
}

/// The policy, and the last mistake in its file.
#[derive(Debug)]
pub(crate) struct PolicyState {
    pub(crate) policy: Policy,
    /// The mistake in the file, whose last values stay in force.
    mistake: Option<String>,
}

impl PolicyInForce {
    /// The policy of a host with so many bytes of memory.
    ///
    /// # Errors
    /// A mistake in the file, or values that cannot be in force together.
    pub(crate) fn new(given: u64, policy: Policy, mut file: PolicyFile) -> Result<Self, PolicyError> {
        let policy = match file.changed().transpose()? {
            Some(values) => policy.with_file(values),
            None => policy,
        };
        let file_name = file.path().display().to_string();
        let state = Mutex::new(PolicyState { policy, mistake: None });
        let there = Self { given, state, file: Mutex::new(file), file_name };
        there.check(&there.lock().policy)?;
        Ok(there)
    }

    /// Every change is complete before the lock is released, even after a panic.
    pub(crate) fn lock(&self) -> MutexGuard<'_, PolicyState> {
        lock(&self.state)
    }

    /// The bytes of memory that a policy gives to samples.
    pub(crate) fn memory(&self, policy: &Policy) -> u64 {
        policy.memory().unwrap_or(self.given)
    }

    /// Changes the policy. All changes are made, or none.
    ///
    /// # Errors
    /// The first change that is wrong.
    pub(crate) fn set(&self, changes: &[String], apply: impl FnOnce(&Policy)) -> Result<(), PolicyError> {
        let mut there = self.lock();
        let mut policy = there.policy.clone();
        for change in changes {
            policy.set_text(change, PolicySource::Set)?;
        }
        self.check(&policy)?;
        for change in changes {
            tracing::info!(change, "the policy was changed");
        }
        apply(&policy);
        there.policy = policy;
        Ok(())
    }

    /// Replaces the values of the control process. Wrong ones are a warning.
    pub(crate) fn set_control_values(&self, values: &[String], apply: impl FnOnce(&Policy)) {
        let mut given = Policy::default();
        for value in values {
            if let Err(error) = given.set_text(value, PolicySource::Control) {
                tracing::warn!(%error, "a value of the control process is not in force");
            }
        }
        let mut there = self.lock();
        let policy = there.policy.with(given, &PolicySource::Control);
        match self.check(&policy) {
            Ok(()) => {
                apply(&policy);
                there.policy = policy;
            }
            Err(error) => tracing::warn!(%error, "the values of the control process are not in force"),
        }
    }

    /// Reads the file again, if it has changed. May take as long as its file server.
    pub(crate) fn reload(&self, apply: impl FnOnce(&Policy)) {
        let changed = lock(&self.file).changed();
        let Some(read) = changed else { return };
        let mut there = self.lock();
        let values = read.map(|values| there.policy.with_file(values));
        match values.and_then(|policy| self.check(&policy).map(|()| policy)) {
            Ok(policy) => {
                apply(&policy);
                tracing::info!(file = self.file_name, "the policy was read again");
                (there.policy, there.mistake) = (policy, None);
            }
            Err(error) => {
                tracing::warn!(%error, "the policy file has a mistake, and the policy stays as it was");
                there.mistake = Some(error.to_string());
            }
        }
    }

    /// The values in force, and the mistake in the file.
    pub(crate) fn values(&self) -> Vec<PolicyValue> {
        let there = self.lock();
        there.policy.values(&self.file_name, there.mistake.as_deref())
    }

    /// Whether a policy can be in force.
    fn check(&self, policy: &Policy) -> Result<(), PolicyError> {
        let memory = self.memory(policy);
        if memory > self.given {
            let given = self.given;
            return Err(PolicyError::new(format!(
                "memory: at most {given} bytes, with which it was started"
            )));
        }
        let floors = policy.floors();
        if floors > memory {
            return Err(PolicyError::new(format!(
                "floor: together they are {floors} bytes, and the memory is {memory}"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(memory: u64) -> PolicyInForce {
        PolicyInForce::new(memory, Policy::default(), PolicyFile::new(Default::default())).unwrap()
    }

    #[test]
    // semantics: AGENT-11
    fn changes_are_made_together_or_not_at_all() {
        let (policy, mut applied) = (policy(1000), Vec::new());
        let mut set = |changes: &[&str]| {
            let changes: Vec<String> = changes.iter().map(|it| (*it).to_owned()).collect();
            policy.set(&changes, |policy| applied.push(policy.memory())).map_err(|error| error.to_string())
        };
        set(&["memory=500"]).unwrap();
        let error = set(&["memory=400", "memory=1001"]).unwrap_err();
        assert!(error.contains("at most 1000 bytes"), "{error}");
        let error = set(&["floor@x=501"]).unwrap_err();
        assert!(error.contains("501 bytes, and the memory is 500"), "{error}");
        assert_eq!(applied, [Some(500)]);
        assert_eq!(policy.memory(&policy.lock().policy), 500);
    }
}
