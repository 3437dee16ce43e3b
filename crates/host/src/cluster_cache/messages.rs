//! The messages between two stores, besides samples.
//!
//! A store dials each other one and reports its jobs. There they are served like jobs of that node,
//! by the [calls](foreread_store::attach) that jobs make through a socket, one after another. The
//! orders have the samples alone that the other store owns. A job has a number on its connection.

use bytes::{BufMut, Bytes, BytesMut};
use foreread_store::attach::{ATTACH, BLOCKS, CATALOG, ORDER, RESTART};
use serde::{Deserialize, Serialize};

/// From the store that dials: [`Open`], a [`JobCall`], and a [`JobCall`] without a name for a job
/// that has ended.
pub(super) const OPEN: u32 = 32;
pub(super) const CALL: u32 = 33;
pub(super) const END: u32 = 34;
/// From the other end: [`Open`] and [`JobAnswer`].
pub(super) const OPENED: u32 = 40;
pub(super) const ANSWER: u32 = 41;

/// The versions of these messages that this program speaks.
pub(super) const VERSIONS: (u32, u32) = (2, 2);

/// The most bytes of a message.
pub(super) const MAX_MESSAGE: usize = 16 << 20;

/// The calls that a store makes for its jobs. Others are for processes of the node's user.
pub(super) const CALLS: [&str; 5] = [ATTACH, BLOCKS, CATALOG, ORDER, RESTART];

/// The first message of both ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Open {
    pub(super) versions: (u32, u32),
    pub(super) node: String,
    /// The name that no other store has.
    pub(super) instance: String,
}

/// A call for a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JobCall {
    pub(super) job: u32,
    /// One of [`CALLS`].
    pub(super) name: &'static str,
    pub(super) payload: Bytes,
}

impl JobCall {
    pub(super) fn encode(&self) -> Bytes {
        let mut to = BytesMut::with_capacity(5 + self.name.len() + self.payload.len());
        to.put_u32_le(self.job);
        // Names of calls are short.
        to.put_u8(self.name.len() as u8);
        to.put(self.name.as_bytes());
        to.put(&*self.payload);
        to.freeze()
    }

    /// Parses a message. The inner `None` is a call of a later version.
    pub(super) fn decode(message: &Bytes) -> Option<Option<Self>> {
        let (job, rest) = message.split_first_chunk()?;
        let (length, rest) = rest.split_first()?;
        let (name, payload) = rest.split_at_checked(usize::from(*length))?;
        let name = CALLS.into_iter().find(|known| known.as_bytes() == name);
        let (job, payload) = (u32::from_le_bytes(*job), message.slice_ref(payload));
        Some(name.map(|name| Self { job, name, payload }))
    }
}

/// The answer to [`ATTACH`], or why another call has failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct JobAnswer {
    pub(super) job: u32,
    pub(super) call: String,
    /// The answer as the call defines it.
    pub(super) answer: String,
    pub(super) error: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: CONTROL-1
    fn other_stores_make_no_calls_of_the_user() {
        let call = JobCall { job: 7, name: ORDER, payload: Bytes::from_static(b"xyz") };
        assert_eq!(JobCall::decode(&call.encode()), Some(Some(call.clone())));
        for name in ["stop", "set", "status", "files", "warm", "progress", ""] {
            let other = JobCall { name, ..call.clone() };
            assert_eq!(JobCall::decode(&other.encode()), Some(None), "{name}");
        }
        let encoded = call.encode();
        assert!((0..5 + ORDER.len()).all(|cut| JobCall::decode(&encoded.slice(..cut)).is_none()));
    }
}
