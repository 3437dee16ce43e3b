//! The messages between agents and the control process.
//!
//! An agent dials, sends a hello, and then reports once per second. The control process answers
//! each report with a grant: all values in force for this agent. It sends a grant at once when a
//! value changes. The agent applies a grant and confirms it. So no rate is given to an agent before
//! another agent has released it.
//!
//! Messages are JSON, where unknown fields are ignored, so a newer end may add some. Hellos have
//! the versions that their sender speaks.

use std::collections::BTreeMap;

use foreread_connection::Token;
use foreread_host::held_leases::LeaseTerms;
use foreread_host::json::encoded;
use foreread_host::status::AgentStatus;
use serde::{Deserialize, Serialize};

/// From agents: [`Hello`], [`Report`], [`Applied`], and its end.
pub(crate) const HELLO: u32 = 1;
pub(crate) const REPORT: u32 = 2;
pub(crate) const APPLIED: u32 = 3;
pub(crate) const GOODBYE: u32 = 4;
/// From the control process: [`Grant`], the reason of a refusal as text, and [`ClusterNotes`].
/// Notes are apart from grants, because all agents get the same bytes.
pub(crate) const GRANT: u32 = 5;
pub(crate) const REFUSED: u32 = 6;
pub(crate) const NOTES: u32 = 7;
/// From the control process: a [`ClusterRoster`](foreread_host::cluster_cache::ClusterRoster), when
/// it changes.
pub(crate) const ROSTER: u32 = 8;

/// The versions of these messages that this program speaks.
pub(crate) const VERSIONS: (u32, u32) = (1, 1);

/// The most bytes of a message of an agent, and of one to it.
pub(crate) const MAX_REPORT: usize = 4 << 20;
pub(crate) const MAX_GRANT: usize = 16 << 20;

/// The most origins of a report. Others have no lease.
pub(crate) const MAX_ORIGINS: usize = 64;

/// The first message of an agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Hello {
    /// The first and the last version that it speaks.
    pub(crate) versions: (u32, u32),
    /// The name of its node.
    pub(crate) node: String,
    /// The name that no other agent has, not even an earlier one of this node.
    pub(crate) instance: String,
    /// The leases in force, from an earlier grant.
    pub(crate) leases: Vec<LeaseTerms>,
    /// The last notes that it has received.
    pub(crate) notes: Option<ClusterNotes>,
    /// Where it serves samples to other agents. None: it shares no cache.
    pub(crate) addresses: Vec<String>,
}

/// The progress and the demands of an agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Report {
    /// Counts the reports of this agent.
    pub(crate) number: u64,
    /// The last grant that is in force.
    pub(crate) applied: u64,
    /// The rates that its jobs want from origins.
    pub(crate) demands: Vec<OriginDemand>,
    /// Its status, as the control process shows it.
    pub(crate) status: AgentStatus,
}

/// The rate that the jobs of one name want from an origin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct OriginDemand {
    pub(crate) store: String,
    pub(crate) job: String,
    /// By the agent's own policy.
    pub(crate) weight: u32,
    /// Whether it only fills the memory, with the rate that jobs leave.
    pub(crate) is_filling: bool,
    /// Bytes per second. `None`: as many as it can get.
    pub(crate) wanted: Option<u64>,
}

/// The last grant that an agent has applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Applied {
    pub(crate) number: u64,
}

/// The values in force for an agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Grant {
    /// Counts the grants to this agent.
    pub(crate) number: u64,
    /// The last report that has arrived. The leases end [`LEASE`](super::LEASE) after it was sent.
    pub(crate) report: u64,
    /// For each origin with a limit.
    pub(crate) leases: Vec<LeaseTerms>,
    /// Bytes per second of origins that the agent has not reported yet, each as `KEY=VALUE`.
    pub(crate) first_limits: Vec<String>,
    /// Values of the agent's policy, each as `KEY=VALUE`.
    pub(crate) policy: Vec<String>,
    /// Whether the agent takes no new jobs.
    pub(crate) is_draining: bool,
    /// The agents of the cluster.
    pub(crate) nodes: u64,
    /// The agent's name in the cluster. It differs if its own name was taken.
    pub(crate) node: String,
    /// The datasets that it is to fill its memory with.
    pub(crate) warm: Vec<WarmPart>,
}

/// A part of a dataset that an agent is to fill its memory with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct WarmPart {
    /// Counts the requests. An agent begins each once.
    pub(crate) number: u64,
    /// A location or a catalog.
    pub(crate) target: String,
    /// The part, and the number of parts.
    pub(crate) part: u32,
    pub(crate) parts: u32,
}

/// The state that the control process needs after a restart. The agents keep it, and send it in
/// their hellos.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ClusterNotes {
    /// The highest one is valid.
    pub(crate) version: u64,
    /// By origin: the rate of an agent that does not reach the control process.
    pub(crate) fallbacks: BTreeMap<String, u64>,
    /// All agents, by name.
    pub(crate) nodes: BTreeMap<String, NodeNote>,
    /// Values of the cluster's policy that were set while it ran, each as `KEY=VALUE`.
    pub(crate) set: Vec<String>,
    /// Proof that a control process with the same tokens has written them.
    pub(crate) seal: String,
}

/// The state of an agent that the control process needs after a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct NodeNote {
    /// By origin: its rate without the control process, where it differs from the common rate.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) fallbacks: BTreeMap<String, u64>,
    /// Whether its leases have ended.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) has_ended: bool,
}

impl ClusterNotes {
    /// The same with the proof that a control process with these tokens has written them.
    pub(crate) fn sealed<'a>(self, tokens: impl IntoIterator<Item = &'a Token>) -> Self {
        let open = Self { seal: String::new(), ..self };
        let seal = Token::seal(tokens, &encoded(&open));
        Self { seal, ..open }
    }
}

#[cfg(test)]
mod tests {
    use foreread_host::json::decoded;

    use super::*;

    #[test]
    fn unknown_fields_are_ignored_and_missing_ones_have_defaults() {
        let grant: Grant = decoded(br#"{"number": 3, "later": {"a": [1]}}"#).unwrap();
        assert_eq!(grant, Grant { number: 3, ..Grant::default() });
        let report = Report { number: 7, demands: vec![OriginDemand::default()], ..Report::default() };
        assert_eq!(decoded::<Report>(&encoded(&report)).unwrap(), report);
        assert!(decoded::<Hello>(b"[").is_err());
    }
}
