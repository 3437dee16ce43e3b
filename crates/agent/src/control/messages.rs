//! What agents and the control process say to each other.
//!
//! An agent dials, says hello, and then reports once per second. The control process answers each
//! report with a grant: all that is in force for this agent. It sends one at once when something
//! changes. The agent applies a grant and says so, so that nothing is given to one agent before
//! another one has let go of it.
//!
//! Messages are JSON, where unknown fields are ignored, so a newer end may add some. Hellos have
//! the versions that their sender speaks.

use std::collections::BTreeMap;

use foreread_connection::Token;
use foreread_host::held_leases::LeaseTerms;
use foreread_host::json::encoded;
use foreread_host::status::AgentStatus;
use serde::{Deserialize, Serialize};

/// From agents: [`Hello`], [`Report`], [`Applied`], and that it ends.
pub(crate) const HELLO: u32 = 1;
pub(crate) const REPORT: u32 = 2;
pub(crate) const APPLIED: u32 = 3;
pub(crate) const GOODBYE: u32 = 4;
/// From the control process: [`Grant`], a text that says why the agent is refused, and
/// [`ClusterNotes`]. Notes are apart from grants, because all agents get the same bytes.
pub(crate) const GRANT: u32 = 5;
pub(crate) const REFUSED: u32 = 6;
pub(crate) const NOTES: u32 = 7;
/// From the control process: a [`Roster`](foreread_host::cluster_cache::Roster), when it changes.
pub(crate) const ROSTER: u32 = 8;

/// The versions of these messages that this program speaks.
pub(crate) const VERSIONS: (u32, u32) = (1, 1);

/// The most bytes of a message of an agent, and of one to it.
pub(crate) const MAX_REPORT: usize = 4 << 20;
pub(crate) const MAX_GRANT: usize = 16 << 20;

/// The most stores of a report. Others have no lease.
pub(crate) const MAX_STORES: usize = 64;

/// The first message of an agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Hello {
    /// The first and the last version that it speaks.
    pub(crate) versions: (u32, u32),
    /// The name of its node.
    pub(crate) node: String,
    /// What no other agent is called.
    pub(crate) instance: String,
    /// What it may use now, from an earlier grant.
    pub(crate) leases: Vec<LeaseTerms>,
    /// As it got them last.
    pub(crate) notes: Option<ClusterNotes>,
    /// Where it serves samples to other agents. None: it shares no cache.
    pub(crate) addresses: Vec<String>,
}

/// How an agent gets on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Report {
    /// Counts the reports of this agent.
    pub(crate) number: u64,
    /// The last grant that is in force.
    pub(crate) applied: u64,
    /// What its jobs want of stores.
    pub(crate) demands: Vec<StoreDemand>,
    /// What it shows of itself.
    pub(crate) status: AgentStatus,
}

/// What the jobs of one name want of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct StoreDemand {
    pub(crate) store: String,
    pub(crate) job: String,
    /// By the agent's own policy.
    pub(crate) weight: u32,
    /// Whether it only fills the memory, with what jobs leave.
    pub(crate) is_filling: bool,
    /// Bytes per second. `None`: as many as it can get.
    pub(crate) wanted: Option<u64>,
}

/// The last grant that an agent has applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Applied {
    pub(crate) number: u64,
}

/// What is in force for an agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Grant {
    /// Counts the grants to this agent.
    pub(crate) number: u64,
    /// The last report that has arrived. The leases end [`LEASE`](super::LEASE) after it was sent.
    pub(crate) report: u64,
    /// For each store with a limit.
    pub(crate) leases: Vec<LeaseTerms>,
    /// Bytes per second of stores that the agent has not reported yet, each as `KEY=VALUE`.
    pub(crate) first_limits: Vec<String>,
    /// Values of the agent's policy, each as `KEY=VALUE`.
    pub(crate) policy: Vec<String>,
    /// Whether the agent takes no new jobs.
    pub(crate) is_draining: bool,
    /// The agents of the cluster.
    pub(crate) nodes: u64,
    /// What the agent is called, in case its own name was taken.
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

/// What the control process must know after a restart. The agents keep it, and say it in their
/// hellos.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ClusterNotes {
    /// The highest one is valid.
    pub(crate) version: u64,
    /// By store: what an agent reads that does not reach the control process.
    pub(crate) fallbacks: BTreeMap<String, u64>,
    /// All agents, by name.
    pub(crate) nodes: BTreeMap<String, NodeNote>,
    /// Values of the cluster's policy that were set while it ran, each as `KEY=VALUE`.
    pub(crate) set: Vec<String>,
    /// Proof that a control process with the same tokens has written them.
    pub(crate) seal: String,
}

/// What the control process must know of an agent after a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct NodeNote {
    /// By store: what it reads when it does not reach the control process, if that is another value
    /// than that of all.
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
        let report = Report { number: 7, demands: vec![StoreDemand::default()], ..Report::default() };
        assert_eq!(decoded::<Report>(&encoded(&report)).unwrap(), report);
        assert!(decoded::<Hello>(b"[").is_err());
    }
}
