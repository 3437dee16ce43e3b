//! Orders of a listing that are not S3's, as they are met.

/// The order in which a bucket lists its keys.
///
/// Whatever it is, a listing that starts after an existing key goes on where that key stands. A start after any other
/// name leaves keys out by comparison: see each order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// By bytes, as S3 does.
    #[default]
    Bytes,
    /// By letters whatever their case, as databases with such a collation do; a start is compared in that order.
    CaseInsensitive,
    /// As directories are walked, names in each by their bytes: gateways to file systems do this. A start is compared
    /// by bytes.
    Directories,
    /// So many keys in the order of their bytes, and the others in the opposite one. A start is compared by bytes.
    Ascending(usize),
}

impl Order {
    /// Brings keys that are sorted by bytes into this order.
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

    /// Whether a key is listed where the start is `after`, which is no key.
    pub(super) fn is_after(self, key: &str, after: &str) -> bool {
        match self {
            Self::CaseInsensitive => key.to_ascii_lowercase() > after.to_ascii_lowercase(),
            Self::Bytes | Self::Directories | Self::Ascending(_) => key > after,
        }
    }
}
