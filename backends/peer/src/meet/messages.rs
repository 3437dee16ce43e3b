//! The messages between rank 0 and the other ranks.
//!
//! Messages are JSON, because they are few, and logs can show them. Programs of other versions are
//! refused before the first message: changing a message requires a new
//! [`VERSION`](crate::frame::VERSION). Bulk data (a catalog, cache contents, the roster) follows a
//! message in pieces of bounded length. Each end sends a heartbeat every [`HEARTBEAT_INTERVAL`]. An
//! end that is silent for [`HEARTBEAT_TIMEOUT`] counts as dead.
//!
//! Rank 0 sends the values of steps in their order to every rank, without a request. A rendezvous
//! of N ranks takes 7 messages per rank. They are hello, welcome with roster, rank 0's share, and
//! part and value of an exchange and of the start. Each catalog takes one more message per rank.

use std::time::Duration;

use bytes::Bytes;
use foreread_types::Rank;
use serde::{Deserialize, Serialize};

use super::{MeetError, MeetErrorKind};

/// The longest message.
pub(super) const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// The longest piece of bulk.
pub(super) const MAX_PIECE_BYTES: usize = 256 * 1024;

/// The largest part of a key that a rank may send, in bytes.
pub(super) const MAX_PART_BYTES: u64 = 256 << 20;

/// Heartbeat interval of an idle end.
pub(super) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);

/// Heartbeat timeout: an end that is silent for this long counts as dead.
pub(super) const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long messages that arrived before the connection broke are still read.
pub(super) const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Kinds of frames of the rendezvous.
pub(super) mod frame_kind {
    /// A [`MeetMessage`](super::MeetMessage).
    pub(crate) const MESSAGE: u32 = 1;
    /// The next piece of the announced bulk.
    pub(crate) const PIECE: u32 = 2;
}

/// A rank, as the other ranks see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RankInfo {
    pub rank: u32,
    /// The node's id, equal for ranks that can use each other's Unix sockets.
    pub node: String,
    /// Ranks of one node with equal values share a store.
    pub group: String,
    pub host: String,
    pub pid: u32,
    /// The addresses at which it serves samples. `0.0.0.0` and `::` stand for rank 0's host, as
    /// each rank reaches it.
    pub addresses: Vec<String>,
}

impl RankInfo {
    /// The process and host, for messages.
    pub(super) fn location(&self) -> String {
        format!("process {} on {}", self.pid, self.host)
    }

    /// A rank of a test.
    #[cfg(test)]
    pub(super) fn example(rank: u32) -> Self {
        let (node, group, addresses) = ("a".to_owned(), String::new(), Vec::new());
        Self { rank, node, group, host: "h".to_owned(), pid: 1, addresses }
    }
}

/// The first message of a rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    /// The sender. Another name on the wire would require a new [`VERSION`](crate::frame::VERSION).
    #[serde(rename = "person")]
    pub info: RankInfo,
    pub world_size: u32,
    pub version: String,
    /// The number of the process's loader, from 0.
    pub loader: u16,
    /// A random id of the process and loader, new after a restart.
    pub process: u64,
    /// The process id of the rank 0 whose roster it has.
    pub met: Option<u64>,
    /// The number of step values that it has.
    pub steps: u32,
    /// The number of roster changes that it has.
    pub moves: u64,
    /// Whether it has started and reconnects.
    pub started: bool,
}

impl Hello {
    /// The first hello of a process.
    pub(super) fn new(info: RankInfo, world_size: u32, version: String, loader: u16, process: u64) -> Self {
        Self { info, world_size, version, loader, process, met: None, steps: 0, moves: 0, started: false }
    }
}

/// Names and values that have to be equal on all ranks.
pub(super) type ComparedSettings = Vec<(String, String)>;

/// Keys of the store that live as long as the run.
pub(super) mod key {
    /// The report of each rank at its end. Has a value from the start, so that a part is
    /// acknowledged at once.
    pub(crate) const REPORT: &str = "report";
    /// A part that marks the rank as done. The value is set when all ranks are done, or rank 0 no
    /// longer waits: the ranks that are not done, as JSON.
    pub(crate) const DONE: &str = "done";

    /// The catalog of this number.
    pub(crate) fn bulk(number: usize) -> String {
        format!("bulk/{number}")
    }

    /// The prefix of [`moved`].
    pub(crate) const MOVED: &str = "moved/";

    /// The n-th change of a rank's addresses since the roster: a [`RankInfo`](super::RankInfo) as
    /// JSON.
    pub(crate) fn moved(number: u64) -> String {
        format!("{MOVED}{number}")
    }

    /// The prefix of [`step`].
    pub(crate) const STEP: &str = "step/";

    /// The n-th step. All ranks make the same steps in the same order.
    pub(crate) fn step(number: u32, name: &str) -> String {
        format!("{STEP}{number}/{name}")
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(super) enum MeetMessage {
    Hello(Box<Hello>),
    /// The reply to a hello once all ranks are connected: the id of rank 0.
    Welcome {
        process: u64,
        /// The start of the run's id: 32 hexadecimal digits.
        nonce: String,
        /// The location of rank 0, as text.
        place: String,
        /// The number of roster changes before this roster.
        moves: u64,
        /// Bytes of the roster that follow. 0 for a rank that has it.
        length: u64,
    },
    /// The reply to a hello for another loader of rank 0's process: the addresses of that one.
    Elsewhere {
        addresses: Vec<String>,
    },
    /// The reason for closing the connection. `again`: retry later.
    Refuse {
        kind: MeetErrorKind,
        why: String,
        again: bool,
    },
    /// A rank ends before the start, and why.
    GiveUp {
        why: String,
    },
    /// A rank reports progress of a long task. Deadlines restart.
    Working {
        on: String,
    },
    /// The ranks that rank 0 waits for.
    Waiting {
        missing: Vec<u32>,
        more: u32,
        on: Option<String>,
        /// Grows with each progress report.
        works: u64,
        /// The location of rank 0, as text.
        place: String,
    },
    /// Requests the catalog of this number. May be repeated.
    Fetch {
        number: u32,
    },
    /// This rank's part of a key, of `length` bytes that follow. Also requests the value. May be
    /// repeated.
    Part {
        key: String,
        length: u64,
    },
    /// The value of a key, of `length` bytes that follow.
    Value {
        key: String,
        length: u64,
    },
    /// The progress of this rank.
    Progress {
        at: u64,
    },
}

impl MeetMessage {
    pub(super) fn encode(&self) -> Bytes {
        // Only maps with other keys than texts cannot be encoded. There are none.
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    /// The value of a key, of this length.
    pub(super) fn value(key: &str, length: usize) -> Self {
        Self::Value { key: key.to_owned(), length: length as u64 }
    }

    /// A part of a key.
    pub(super) fn part(key: &str, part: &Bytes) -> Self {
        Self::Part { key: key.to_owned(), length: part.len() as u64 }
    }

    /// Bytes that follow it.
    pub(super) fn length(&self) -> u64 {
        match self {
            Self::Welcome { length, .. } | Self::Part { length, .. } | Self::Value { length, .. } => *length,
            _ => 0,
        }
    }

    pub(super) fn refuse(error: &MeetError) -> Self {
        Self::Refuse { kind: error.kind(), why: error.to_string(), again: false }
    }
}

/// `rank 3`, `ranks 2, 5 and 9`, `ranks 2, 5, 9 and 7 others`.
pub(super) fn ranks(named: &[Rank], more: usize) -> String {
    let mut names: Vec<String> = named.iter().map(ToString::to_string).collect();
    let last = match more {
        0 => names.pop().unwrap_or_default(),
        1 => "1 other".to_owned(),
        more => format!("{more} others"),
    };
    let many = if named.len() + more == 1 { "rank" } else { "ranks" };
    match names.len() {
        0 => format!("{many} {last}"),
        _ => format!("{many} {} and {last}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::VERSION;

    #[test]
    fn ranks_are_listed_in_words() {
        let list =
            |named: &[u32], more| ranks(&named.iter().map(|rank| Rank(*rank)).collect::<Vec<_>>(), more);
        assert_eq!(list(&[3], 0), "rank 3");
        assert_eq!(list(&[2, 5], 0), "ranks 2 and 5");
        assert_eq!(list(&[2, 5, 9], 0), "ranks 2, 5 and 9");
        assert_eq!(list(&[2, 5], 7), "ranks 2, 5 and 7 others");
        assert_eq!(list(&[2], 1), "ranks 2 and 1 other");
    }

    /// If one of these changes, the version has to be raised: programs of one version must
    /// understand each other.
    #[test]
    // semantics: RANK-15
    fn messages_are_those_of_the_version() {
        assert_eq!(VERSION, 5);
        for text in [
            concat!(
                r#"{"is":"hello","person":{"rank":1,"node":"n","group":"n","host":"h","pid":7,"addresses":["h:1"]},"#,
                r#""world_size":2,"version":"1","loader":0,"process":5,"met":null,"steps":0,"moves":0,"#,
                r#""started":false}"#
            ),
            r#"{"is":"welcome","process":5,"nonce":"00","place":"process 7 on h","moves":0,"length":9}"#,
            r#"{"is":"elsewhere","addresses":["h:1"]}"#,
            r#"{"is":"refuse","kind":"differs","why":"seed","again":false}"#,
            r#"{"is":"give_up","why":"its disk is full"}"#,
            r#"{"is":"working","on":"lists"}"#,
            r#"{"is":"waiting","missing":[1],"more":0,"on":null,"works":3,"place":"process 7 on h"}"#,
            r#"{"is":"fetch","number":0}"#,
            r#"{"is":"part","key":"step/3/exchange","length":7}"#,
            r#"{"is":"value","key":"bulk/0","length":7}"#,
            r#"{"is":"progress","at":9}"#,
        ] {
            let message = MeetMessage::decode(text.as_bytes()).unwrap();
            assert_eq!(message.encode(), text);
            // Of another version, with a missing field.
            let (start, _) = text.rsplit_once(',').unwrap();
            assert!(MeetMessage::decode(format!("{start}}}").as_bytes()).is_none(), "{start}");
        }
        let keys = [key::bulk(1), key::moved(2), key::step(3, "start"), key::REPORT.into(), key::DONE.into()];
        assert_eq!(keys, ["bulk/1", "moved/2", "step/3/start", "report", "done"]);
        assert!(MeetMessage::decode(b"{\"is\":\"of a later version\"}").is_none());
    }
}
