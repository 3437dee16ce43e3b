//! A connection after its handshake.

#[cfg(feature = "testing")]
use foreread_types::SampleKey;

use crate::Stream;
#[cfg(feature = "testing")]
use crate::frame::{HEADER, Header};
use crate::input::Input;
use crate::output::Output;
#[cfg(feature = "testing")]
use crate::tags::TAGGED;
use crate::tags::{Incoming, Keys};

/// A connection whose ends know each other: its bytes, and what frames on it are tagged with.
pub struct Channel {
    pub(crate) stream: Stream,
    /// On authenticated connections.
    pub keys: Option<Keys>,
}

impl Channel {
    /// The stream, and both ways of its frames.
    pub fn into_parts<T>(self) -> (Stream, Input, Output<T>) {
        let output = Output::new(self.keys.as_ref().map(|keys| keys.ours.clone()));
        (self.stream, Input::new(self.keys.map(Incoming::new)), output)
    }
}

#[cfg(feature = "testing")]
impl Channel {
    /// Its bytes, and what makes frames that its other end takes.
    pub fn into_raw(self) -> (Stream, RawFrames) {
        (self.stream, RawFrames { keys: self.keys, number: 0 })
    }
}

/// Makes frames of one end of a connection, for tests that say what no rank does.
#[cfg(feature = "testing")]
pub struct RawFrames {
    keys: Option<Keys>,
    number: u64,
}

#[cfg(feature = "testing")]
impl RawFrames {
    /// Bytes before each payload.
    pub fn head(&self) -> usize {
        self.keys.as_ref().map_or(HEADER, |_| TAGGED)
    }

    /// The next frame, with the tags that it has to have; of a sample, where `sample` says which.
    pub fn frame(&mut self, header: Header, sample: Option<SampleKey>, payload: &[u8]) -> Vec<u8> {
        let header = header.over(payload).encode();
        let Some(keys) = &self.keys else { return [&header, payload].concat() };
        let known = sample.map(|key| keys.samples.of_bytes(key, payload).into());
        let sealed = keys.ours.seal(self.number, &header, payload, known);
        self.number += 1;
        [&sealed, payload].concat()
    }
}
