//! The other nodes of a job, whose agents share one cluster cache.
//!
//! The agent of rank 0's node hosts a control process, and the agents of all nodes connect to it.
//! They meet in the background, as ranks of the job do, and dial until they do. Nothing waits for
//! it: an agent without the others reads storage, and one warning has the reason.
//!
//! # Decision and price
//!
//! Nodes meet by the control process that agents have already. The control process ends with the
//! process that hosts it, and the next agent of rank 0's node hosts another one. Without that node,
//! the other agents keep the last roster. The price: agents that come later do not find them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use foreread_connection::{Identity, Token};
use foreread_launcher::{INTERFACE, Launched, LauncherEnv};
use foreread_peer::meet::{MeetError, NodeMeeting, given_token};
use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::control::JobControl;

/// How long no other node is met before the warning.
const WARN_AFTER: Duration = Duration::from_secs(10);

/// How long another rank on rank 0's node leaves the control process to rank 0.
const RANK_0_FIRST: Duration = Duration::from_millis(500);

/// The other nodes of this process's job.
#[derive(Clone, Debug)]
pub struct JobNodes {
    /// This process in the job.
    ranks: Launched,
    /// The rendezvous of the nodes.
    nodes: Launched,
    interface: Option<String>,
    token: Result<Option<Token>, MeetError>,
}

impl JobNodes {
    /// The nodes of the job that a launcher has started this process for. `None` for one node, or
    /// without a launcher that says how many processes the node has.
    pub fn launched() -> Option<Self> {
        let variable = |name: &str| std::env::var(name).ok();
        Self::of(&LauncherEnv::of_this_process(&variable))
    }

    fn of(environment: &LauncherEnv<'_>) -> Option<Self> {
        let ranks = Launched::by(environment).ok().flatten()?;
        let nodes = ranks.between_nodes()?;
        Some(Self { ranks, nodes, interface: environment.get(INTERFACE), token: given_token(environment) })
    }

    /// The rank and the number of ranks, if a token is missing where the nodes meet.
    pub fn needs_token(&self) -> Option<(u32, u32)> {
        let is_missing = self.nodes.needs_token() && matches!(self.token, Ok(None));
        is_missing.then_some((self.ranks.rank.0, self.ranks.world_size))
    }

    /// With the token that the ranks of the job have in common.
    #[must_use]
    pub fn with_token(self, token: Option<Token>) -> Self {
        Self { token: Ok(token), ..self }
    }
}

/// The control process of a job, after it was reached.
#[derive(Debug)]
pub(crate) struct MetNodes {
    pub(crate) meeting: Arc<NodeMeeting>,
    pub(crate) identity: Identity,
    /// If it is hosted by this agent.
    pub(crate) control: Option<JobControl>,
}

/// A step of a meeting.
#[derive(Debug)]
pub(crate) enum MeetingStep {
    /// The nodes cannot meet. Has the reason.
    Failed(String),
    /// An attempt has failed. Has the warning if no other node is met in time.
    NotYet(String),
    /// The control process was reached. Has that warning, too.
    Met(Box<MetNodes>, String),
}

/// The meetings of the agents that one process hosts, one after another.
#[derive(Debug)]
pub(crate) struct AgentMeetings {
    nodes: JobNodes,
    begun: Instant,
    /// The warning if no other node is met in time. Not after it was logged, or is void.
    warning: Option<String>,
    /// The number of the agent that meets or has met the others.
    agent: Option<u64>,
}

impl AgentMeetings {
    pub(crate) fn new(nodes: JobNodes, warns: bool) -> Self {
        Self { nodes, begun: Instant::now(), warning: warns.then(String::new), agent: None }
    }

    /// Begins the meeting of an agent, unless it was begun and the agent `has_left` no other one.
    pub(crate) fn begin(
        &mut self,
        agent: u64,
        has_left: bool,
        runtime: &Handle,
        report: impl Fn(MeetingStep) + Send + Sync + 'static,
    ) {
        if has_left || self.agent != Some(agent) {
            self.agent = Some(agent);
            // It ends with the runtime.
            runtime.spawn(meet(self.nodes.clone(), report));
        }
    }

    /// Notes a step. Returns the control process to join.
    pub(crate) fn note(&mut self, step: MeetingStep) -> Option<MetNodes> {
        let (met, why) = match step {
            MeetingStep::Met(met, why) => (Some(*met), why),
            MeetingStep::NotYet(why) => (None, why),
            MeetingStep::Failed(why) => {
                if self.warning.take().is_some() {
                    tracing::warn!("this node reads storage without the caches of the other nodes: {why}");
                }
                return None;
            }
        };
        if let Some(warning) = &mut self.warning {
            *warning = why;
        }
        met
    }

    /// The warning that is due now, of an agent that shares with so many, itself included.
    pub(crate) fn due(&mut self, shares_with: u64, now: Instant) -> Option<String> {
        if shares_with > 1 {
            self.warning = None;
        }
        let is_due = |warning: &mut String| !warning.is_empty() && now >= self.begun + WARN_AFTER;
        self.warning.take_if(is_due)
    }
}

/// Meets the other nodes, and hosts the control process if this one is rank 0's.
async fn meet(job: JobNodes, report: impl Fn(MeetingStep)) {
    let failed = |why: String| report(MeetingStep::Failed(why));
    let JobNodes { ranks, nodes, interface, token } = job;
    let (is_rank_0, may_host) = (ranks.rank.0 == 0, nodes.rank.0 == 0);
    let meeting = match token {
        Ok(token) => NodeMeeting::new(nodes, token, interface).await,
        Err(error) => Err(error),
    };
    let mut meeting = match meeting {
        Ok(meeting) => meeting,
        Err(error) => return failed(error.to_string()),
    };
    let mut control = None;
    if may_host && !is_rank_0 {
        sleep(RANK_0_FIRST).await;
    }
    for attempts in 0.. {
        let mut problem = match meeting.find().await {
            Ok((_, identity)) => {
                let warning = meeting.not_met(WARN_AFTER, None);
                let met = MetNodes { meeting: Arc::new(meeting), identity, control };
                return report(MeetingStep::Met(Box::new(met), warning));
            }
            Err(why) => why,
        };
        // A node may have several agents, for processes that are limited apart. One of them hosts.
        if may_host && control.is_none() {
            match meeting.host().await {
                Ok((listeners, identity)) => match JobControl::start(&Handle::current(), listeners, identity)
                {
                    Ok(started) => {
                        control = Some(started);
                        continue;
                    }
                    Err(error) => return failed(error.to_string()),
                },
                Err(error) => problem = Some(error.to_string()),
            }
        }
        report(MeetingStep::NotYet(meeting.not_met(WARN_AFTER, problem.as_deref())));
        meeting.pause(attempts).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "b7e1c95a03f64d2893ab5c17e0d68f42";

    /// Rank 2 of 4 on two nodes.
    fn nodes(more: &[(&str, &str)]) -> Option<JobNodes> {
        let of_launcher = [
            ("RANK", "2"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_RANK", "0"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "10.0.0.1"),
            ("MASTER_PORT", "29500"),
        ];
        let variable = |name: &str| {
            let found = more.iter().chain(&of_launcher).find(|(is, _)| *is == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        JobNodes::of(&LauncherEnv::new(&variable, 7, 8))
    }

    #[test]
    // semantics: PY-22
    fn token_is_needed_at_a_host_and_not_on_one_node() {
        assert_eq!(nodes(&[]).unwrap().needs_token(), Some((2, 4)));
        assert_eq!(nodes(&[("FOREREAD_TOKEN", TOKEN)]).unwrap().needs_token(), None);
        assert_eq!(nodes(&[("FOREREAD_MEET", "/shared")]).unwrap().needs_token(), None);
        let of_torch = nodes(&[]).unwrap().with_token(Some(Token::new(TOKEN).unwrap()));
        assert_eq!(of_torch.needs_token(), None);
        // A token that can be guessed is an error, and torch's store brings no other one.
        assert_eq!(nodes(&[("FOREREAD_TOKEN", "hunter2")]).unwrap().needs_token(), None);
        assert!(nodes(&[("LOCAL_WORLD_SIZE", "4")]).is_none() && nodes(&[("RANK", "")]).is_none());
    }

    #[tokio::test]
    // semantics: PY-22
    async fn nodes_that_cannot_meet_have_the_reason() {
        for (more, says) in [
            (&[][..], "a token is required"),
            (&[("FOREREAD_TOKEN", "hunter2")], "FOREREAD_TOKEN cannot be used"),
            (&[("MASTER_ADDR", "")], "without a rendezvous: set FOREREAD_MEET"),
        ] {
            let (steps, mut reported) = tokio::sync::mpsc::unbounded_channel();
            meet(nodes(more).unwrap(), move |step| drop(steps.send(step))).await;
            match reported.recv().await {
                Some(MeetingStep::Failed(why)) => assert!(why.contains(says), "{why}"),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    // semantics: PY-22
    fn warning_is_due_once_unless_another_node_was_met() {
        let meetings = |warns| {
            let mut meetings = AgentMeetings::new(nodes(&[]).unwrap(), warns);
            assert!(meetings.note(MeetingStep::NotYet("no route".to_owned())).is_none());
            meetings
        };
        let mut alone = meetings(true);
        let late = alone.begun + WARN_AFTER;
        assert_eq!(alone.due(1, alone.begun), None);
        assert_eq!(alone.due(1, late).as_deref(), Some("no route"));
        assert!(alone.note(MeetingStep::NotYet("no route".to_owned())).is_none());
        assert_eq!(alone.due(1, late), None);
        assert_eq!(meetings(false).due(1, late + WARN_AFTER), None);
        let mut shared = meetings(true);
        assert_eq!(shared.due(2, shared.begun), None);
        assert_eq!(shared.due(0, shared.begun + WARN_AFTER), None);
    }
}
