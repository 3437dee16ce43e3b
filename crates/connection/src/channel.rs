//! A connection after its handshake.

#[cfg(feature = "testing")]
use foreread_types::SampleKey;

use crate::BoxedStream;
#[cfg(feature = "testing")]
use crate::frame::{FrameHeader, HEADER};
use crate::input::FrameInput;
#[cfg(feature = "testing")]
use crate::mac::TAGGED;
use crate::mac::{FrameVerifier, SessionKeys};
use crate::output::FrameOutput;

/// An authenticated connection: its stream and its session keys.
pub struct AuthenticatedStream {
    pub(crate) stream: BoxedStream,
    /// On connections with tags.
    pub keys: Option<SessionKeys>,
}

impl AuthenticatedStream {
    /// The stream, and both directions of its frames.
    pub fn into_parts<T>(self) -> (BoxedStream, FrameInput, FrameOutput<T>) {
        let output = FrameOutput::new(self.keys.as_ref().map(|keys| keys.ours.clone()));
        (self.stream, FrameInput::new(self.keys.map(FrameVerifier::new)), output)
    }
}

#[cfg(feature = "testing")]
impl AuthenticatedStream {
    /// The stream, and a maker of frames that the other end accepts.
    pub fn into_raw(self) -> (BoxedStream, RawFrames) {
        (self.stream, RawFrames { keys: self.keys, number: 0 })
    }
}

/// Makes raw frames of one end of a connection, for tests of protocol violations.
#[cfg(feature = "testing")]
pub struct RawFrames {
    keys: Option<SessionKeys>,
    number: u64,
}

#[cfg(feature = "testing")]
impl RawFrames {
    /// The number of bytes before each payload.
    pub fn head(&self) -> usize {
        self.keys.as_ref().map_or(HEADER, |_| TAGGED)
    }

    /// The next frame with its tags. `sample` is the key of a sample's frame.
    pub fn frame(&mut self, header: FrameHeader, sample: Option<SampleKey>, payload: &[u8]) -> Vec<u8> {
        let header = header.over(payload).encode();
        let Some(keys) = &self.keys else { return [&header, payload].concat() };
        let known = sample.map(|key| keys.samples.of(key, payload));
        let sealed = keys.ours.seal(self.number, &header, payload, known);
        self.number += 1;
        [&sealed, payload].concat()
    }
}
