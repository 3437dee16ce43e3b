//! What ranks say to rank 0, and it to them.
//!
//! Messages are JSON: there are few, and a log shows them as they are. Programs of other versions are refused before the first
//! message: a message that changes raises [`VERSION`](crate::frame::VERSION). Bulk (a catalog, what caches hold, the list of
//! ranks) follows a message as pieces of bounded length. Each end sends something at least every [`ALIVE`]; one that is silent
//! for [`SILENCE`] counts as gone.
//!
//! Rank 0 sends the values of steps in their order to every rank, without a request. A meeting of N ranks takes 7 messages
//! per rank: hello, welcome with the roster, rank 0's share, and part and value of an exchange and of the start.

use std::time::Duration;

use bytes::Bytes;
use foreread_types::Rank;
use serde::{Deserialize, Serialize};

use super::{MeetError, MeetErrorKind};

/// The longest message.
pub(super) const LONGEST: usize = 1 << 20;

/// The longest piece of bulk.
pub(super) const PIECE: usize = 256 * 1024;

/// How often an end speaks that has nothing to say.
pub(super) const ALIVE: Duration = Duration::from_secs(2);

/// Who says nothing for so long is gone.
pub(super) const SILENCE: Duration = Duration::from_secs(10);

/// How long what the other end said before its connection broke is listened to.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(2);

/// What a frame of a meeting holds.
pub(super) mod what {
    /// Nothing.
    pub(crate) const ALIVE: u32 = 0;
    /// A [`Message`](super::Message).
    pub(crate) const MESSAGE: u32 = 1;
    /// The next piece of the bulk that was announced.
    pub(crate) const PIECE: u32 = 2;
}

/// A rank, as others have to know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Person {
    pub rank: u32,
    /// Equal for ranks that can use each other's Unix sockets.
    pub node: String,
    pub host: String,
    pub pid: u32,
    /// Where it serves samples. The hosts `0.0.0.0` and `::` stand for rank 0's host, as each rank reaches it.
    pub addresses: Vec<String>,
}

impl Person {
    /// For messages.
    pub(super) fn place(&self) -> String {
        format!("process {} on {}", self.pid, self.host)
    }
}

/// A rank introduces itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub person: Person,
    pub world_size: u32,
    pub version: String,
    /// Which of its process's loaders it meets for, counted from 0.
    pub loader: u16,
    /// A random number of the process and loader: another one after a restart.
    pub process: u64,
    /// Which rank 0 it has a roster of: its number of this kind.
    pub met: Option<u64>,
    /// How many values of steps it has.
    pub steps: u32,
    /// How many changes of the roster it has.
    pub moves: u64,
    /// Whether it has started and comes back.
    pub started: bool,
}

impl Hello {
    /// Of a process that has met nobody yet.
    pub(super) fn new(person: Person, world_size: u32, version: String, loader: u16, process: u64) -> Self {
        Self { person, world_size, version, loader, process, met: None, steps: 0, moves: 0, started: false }
    }
}

/// Names and values that have to be equal on all ranks.
pub(super) type Words = Vec<(String, String)>;

/// Keys of the store that live as long as the run.
pub(super) mod key {
    /// What each rank reports at its end. Has a value from the start, so that a part is acknowledged at once.
    pub(crate) const REPORT: &str = "report";
    /// A part says that the rank needs nothing more of the others. The value, when all have said so or rank 0 waits no
    /// longer: the ranks that have not, as JSON.
    pub(crate) const DONE: &str = "done";

    /// The catalog of this number.
    pub(crate) fn bulk(number: usize) -> String {
        format!("bulk/{number}")
    }

    /// What [`moved`] begins with.
    pub(crate) const MOVED: &str = "moved/";

    /// The n-th change of a rank's addresses since the roster: a [`Person`](super::Person) as JSON.
    pub(crate) fn moved(number: u64) -> String {
        format!("{MOVED}{number}")
    }

    /// What [`step`] begins with.
    pub(crate) const STEP: &str = "step/";

    /// The n-th step of all ranks. All have to make the same ones in the same order.
    pub(crate) fn step(number: u32, name: &str) -> String {
        format!("{STEP}{number}/{name}")
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(super) enum Message {
    Hello(Box<Hello>),
    /// The answer to a hello when all ranks are there: which rank 0 it is.
    Welcome {
        process: u64,
        /// What the run's id begins with: 32 hexadecimal digits.
        nonce: String,
        /// Where it runs, in words.
        place: String,
        /// How many changes of the roster came before.
        moves: u64,
        /// Bytes of the roster that follow; none for a rank that has it.
        length: u64,
    },
    /// The answer to a hello for another loader of rank 0's process: where that one listens.
    Elsewhere {
        addresses: Vec<String>,
    },
    /// The end, and why; or not yet, where `again`.
    Refuse {
        kind: MeetErrorKind,
        why: String,
        again: bool,
    },
    /// A rank ends before the start, and why.
    GiveUp {
        why: String,
    },
    /// A rank works on something that takes time: nobody's deadline passes meanwhile.
    Working {
        on: String,
    },
    /// Whom rank 0 waits for.
    Waiting {
        missing: Vec<u32>,
        more: u32,
        on: Option<String>,
        /// Grows when somebody works.
        works: u64,
        /// Where rank 0 runs, in words.
        place: String,
    },
    /// The catalog of this number is requested. May be repeated.
    Fetch {
        number: u32,
    },
    /// This rank's part of a key, of so many bytes that follow; its value is requested. May be repeated.
    Part {
        key: String,
        length: u64,
    },
    /// The value of a key, of so many bytes that follow.
    Value {
        key: String,
        length: u64,
    },
    /// How far this rank has come.
    Progress {
        at: u64,
    },
}

impl Message {
    pub(super) fn encode(&self) -> Bytes {
        // Maps with keys that are no text are all that JSON cannot say; there are none.
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    /// The value of a key, of so many bytes.
    pub(super) fn value(key: &str, length: usize) -> Self {
        Self::Value { key: key.to_owned(), length: length as u64 }
    }

    /// The part of a key.
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

    /// Where one of these changes, the version has to be raised: programs of one version must understand each other.
    #[test]
    // semantics: RANK-15
    fn messages_are_those_of_the_version() {
        assert_eq!(VERSION, 4);
        for text in [
            r#"{"is":"hello","person":{"rank":1,"node":"n","host":"h","pid":7,"addresses":["h:1"]},"world_size":2,"version":"1","loader":0,"process":5,"met":null,"steps":0,"moves":0,"started":false}"#,
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
            let message = Message::decode(text.as_bytes()).unwrap();
            assert_eq!(message.encode(), text);
            // Of another version: a field that was not there, or is there no more.
            let (start, _) = text.rsplit_once(',').unwrap();
            assert!(Message::decode(format!("{start}}}").as_bytes()).is_none(), "{start}");
        }
        let keys = [key::bulk(1), key::moved(2), key::step(3, "start"), key::REPORT.into(), key::DONE.into()];
        assert_eq!(keys, ["bulk/1", "moved/2", "step/3/start", "report", "done"]);
        assert!(Message::decode(b"{\"is\":\"of a later version\"}").is_none());
    }
}
