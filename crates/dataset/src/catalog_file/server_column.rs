//! The column of storage servers: the meaning of its numbers.
//!
//! It is a hint: files may move to other servers. So it is not part of the fingerprint, and no read
//! depends on it. The price is one to four bytes per sample.

use foreread_tier::{ObjectLayout, StorageServer};

/// The value of samples that the metadata server holds.
const METADATA: u32 = u32::MAX;

/// The value of samples that were released to an archive.
const RELEASED: u32 = u32::MAX - 1;

/// A sample without a value, in the fingerprint of the column.
pub(crate) const UNKNOWN: u32 = u32::MAX - 2;

/// The column's value for the byte at `offset` of an object with this layout.
pub(crate) fn encode(layout: &dyn ObjectLayout, offset: u64) -> Option<u32> {
    if layout.is_released() {
        return Some(RELEASED);
    }
    match layout.server(offset)? {
        StorageServer::Metadata => Some(METADATA),
        StorageServer::Data(index) => Some(index).filter(|index| *index < UNKNOWN),
    }
}

/// The server that a value of the column names.
pub(crate) fn decode(value: u32) -> Option<StorageServer> {
    match value {
        RELEASED => None,
        METADATA => Some(StorageServer::Metadata),
        index => Some(StorageServer::Data(index)),
    }
}

/// Whether a value of the column means that the sample was released.
pub(crate) fn is_released(value: u32) -> bool {
    value == RELEASED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_servers_are_decoded() {
        for (value, server, released) in [
            (0, Some(StorageServer::Data(0)), false),
            (700, Some(StorageServer::Data(700)), false),
            (METADATA, Some(StorageServer::Metadata), false),
            (RELEASED, None, true),
        ] {
            assert_eq!((decode(value), is_released(value)), (server, released));
        }
    }
}
