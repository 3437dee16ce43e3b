//! The commands of the control process of a cluster to an agent.

use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU64;
use std::time::Duration;

use crate::held_leases::{HeldLeases, LeaseTerms};
use crate::host_state::HostState;
use crate::policy::Policy;
use crate::status::ControlLinkStatus;
use foreread_tier::lock;

/// The values of the control process of a cluster for this agent. Nothing without one.
#[derive(Debug, Default)]
pub(crate) struct ControlWord {
    /// The leases of each origin.
    leases: HeldLeases,
    /// By store: the leases that are applied.
    applied: HashMap<String, Option<NonZeroU64>>,
    /// Its values of the policy, each as `KEY=VALUE`.
    values: Vec<String>,
    /// `None` without a control process.
    status: Option<ControlLinkStatus>,
}

/// A grant of the control process: all that is in force for an agent.
#[derive(Clone, Copy, Debug)]
pub struct ControlGrant<'a> {
    /// The leases, and the limits of storage that the control process does not know yet.
    pub leases: &'a [LeaseTerms],
    /// Each as `KEY=VALUE`.
    pub first_limits: &'a [String],
    /// When the report was sent that the grant answers. Zero if that is not known any more: its
    /// leases have ended.
    pub sent: Duration,
    /// The name of the node, as the control process has it. Empty for the agent's own.
    pub node: &'a str,
    /// Whether the node takes no new jobs.
    pub is_draining: bool,
    /// The values of the policy, each as `KEY=VALUE`.
    pub values: &'a [String],
}

impl HostState {
    /// There is a control process, at this address, and this node has this name there.
    pub fn begin_control(&self, address: String, node: String) {
        let status = ControlLinkStatus { address, node, ..ControlLinkStatus::default() };
        lock(&self.control).status = Some(status);
    }

    /// The leases that are held at this time.
    pub fn held_leases(&self) -> Vec<LeaseTerms> {
        let now = self.now();
        lock(&self.control).leases.tell(now)
    }

    /// Notes whether the control process is reached. Returns whether the problem is new.
    pub fn note_control_problem(&self, problem: Option<String>) -> bool {
        let mut word = lock(&self.control);
        let Some(status) = &mut word.status else { return false };
        let is_new = status.problem != problem;
        status.is_connected = problem.is_none();
        status.problem = problem;
        is_new
    }

    /// Applies a grant.
    pub fn apply_grant(&self, grant: ControlGrant<'_>) {
        let are_new = {
            let mut word = lock(&self.control);
            word.leases.take(grant.leases, grant.sent);
            word.leases.set_first_limits(grant.first_limits);
            if let Some(status) = &mut word.status {
                status.is_draining = grant.is_draining;
                if !grant.node.is_empty() {
                    grant.node.clone_into(&mut status.node);
                }
            }
            let are_new = word.values != grant.values;
            word.values = grant.values.to_vec();
            are_new
        };
        if are_new {
            self.policy.set_control_values(grant.values, |policy| self.apply(policy));
            self.note_disk_uses();
        }
        self.apply_leases();
        self.note_control_problem(None);
    }

    pub(crate) fn control_status(&self) -> Option<ControlLinkStatus> {
        let status = lock(&self.control).status.clone();
        status.map(|status| ControlLinkStatus { shares_with: self.cluster.nodes(), ..status })
    }

    /// Applies the leases of stores that have changed since the last call: they end by themselves.
    pub fn apply_leases(&self) {
        let policy = self.policy.lock();
        let origins: BTreeSet<String> =
            self.datasets.all().into_iter().map(|dataset| dataset.origin).collect();
        for origin in origins {
            let lease = self.lease(&origin);
            if lock(&self.control).applied.get(&origin) != Some(&lease) {
                self.limit_origin(&policy.policy, &origin, lease);
            }
        }
    }

    /// Bytes per second of a store, by the control process. At least 1.
    pub(crate) fn lease(&self, origin: &str) -> Option<NonZeroU64> {
        let lease = lock(&self.control).leases.limit(origin, self.now());
        lease.map(|rate| NonZeroU64::new(rate).unwrap_or(NonZeroU64::MIN))
    }

    /// Limits the reads of a storage by the policy and a lease.
    pub(crate) fn limit_origin(&self, policy: &Policy, origin: &str, lease: Option<NonZeroU64>) {
        lock(&self.control).applied.insert(origin.to_owned(), lease);
        let mut limits = policy.origin_limits(origin);
        // The control process cannot raise the agent's own limit.
        limits.bytes_per_second = [limits.bytes_per_second, lease].into_iter().flatten().min();
        self.opener.host.set_limit(origin, limits.bytes_per_second);
        self.store.set_origin(origin, limits);
    }
}
