//! Messages as JSON.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A message's payload.
pub fn encoded(message: &impl Serialize) -> Bytes {
    // Numbers, texts and maps with texts as keys cannot fail.
    serde_json::to_vec(message).map(Bytes::from).unwrap_or_default()
}

/// The message of a payload.
pub fn decoded<T: DeserializeOwned>(payload: &[u8]) -> Result<T, String> {
    serde_json::from_slice(payload).map_err(|error| error.to_string())
}
