//! Listing orders other than that of S3.

/// The order in which a bucket lists its keys.
///
/// A listing that starts after an existing key continues at its position. A start after any other
/// name skips keys by comparison (see each order).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListingOrder {
    /// By bytes, as S3 does.
    #[default]
    Bytes,
    /// Case-insensitive, like databases with such a collation. A start is compared in that order.
    CaseInsensitive,
    /// In the order of a directory walk with byte order in each directory, like gateways to file
    /// systems. A start is compared by bytes.
    Directories,
    /// The first keys in byte order, and the others in reverse. A start is compared by bytes.
    Ascending(usize),
}

impl ListingOrder {
    /// Sorts keys that are in byte order.
    pub(super) fn sort<T>(self, keys: &mut [T], name: impl Fn(&T) -> &str) {
        match self {
            Self::Bytes => {}
            Self::CaseInsensitive => keys.sort_by_cached_key(|key| name(key).to_ascii_lowercase()),
            Self::Directories => keys.sort_by(|a, b| name(a).split('/').cmp(name(b).split('/'))),
            Self::Ascending(first) => {
                if let Some(rest) = keys.get_mut(first..) {
                    rest.reverse();
                }
            }
        }
    }

    /// Whether a key is listed after the start `after`, which is not a key.
    pub(super) fn is_after(self, key: &str, after: &str) -> bool {
        match self {
            Self::CaseInsensitive => key.to_ascii_lowercase() > after.to_ascii_lowercase(),
            Self::Bytes | Self::Directories | Self::Ascending(_) => key > after,
        }
    }
}
