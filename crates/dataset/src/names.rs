//! Paths: validation, the order of samples, and labels.

use std::borrow::Cow;
use std::cmp::Ordering;

use foreread_tier::check_path;

/// The longest path or ETag in bytes. A batch of a catalog stores the length of its text in 31
/// bits. Object stores allow at most 1,024.
pub(crate) const MAX_TEXT: usize = 16 << 10;

/// The reason why a path is not valid for a sample. It could lead out of the origin, or no origin
/// has such a name.
pub(crate) fn refuse(path: &str) -> Option<&'static str> {
    if path.len() > MAX_TEXT {
        return Some("the path is longer than 16,384 bytes");
    }
    check_path(path).err()
}

/// The text of a name in an archive. Bytes that are not UTF-8 are percent escapes (`%E9`), so that
/// one old name does not refuse the archive.
pub(crate) fn lenient(name: Cow<'_, [u8]>) -> Cow<'_, str> {
    let bytes = match name {
        Cow::Borrowed(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => return Cow::Borrowed(text),
            Err(_) => bytes.to_vec(),
        },
        Cow::Owned(bytes) => bytes,
    };
    let escaped = |bytes: &[u8]| {
        let parts = bytes.utf8_chunks().map(|part| {
            let invalid: String = part.invalid().iter().map(|byte| format!("%{byte:02X}")).collect();
            part.valid().to_owned() + &invalid
        });
        parts.collect()
    };
    Cow::Owned(String::from_utf8(bytes).unwrap_or_else(|error| escaped(error.as_bytes())))
}

/// A path split into the parts that samples are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SplitName {
    /// Length of the first directory. 0 for a file at the top.
    first: u32,
    /// Length of the containing directory. 0 for a file at the top.
    directory: u32,
}

impl SplitName {
    /// Splits a path of at most [`MAX_TEXT`] bytes.
    pub(crate) fn of(path: &str) -> Self {
        Self { first: path.find('/').unwrap_or(0) as u32, directory: path.rfind('/').unwrap_or(0) as u32 }
    }

    /// The first directory, which is the label. Empty at the top.
    pub(crate) fn label<'a>(&self, path: &'a str) -> &'a str {
        &path[..self.first as usize]
    }
}

/// The order in which samples are numbered: by first directory, then by containing directory, then
/// by file name, each as bytes. It is the order of torchvision's `ImageFolder`. That sorts the
/// classes, walks each of them, and sorts the directories that it finds and the files in each.
pub(crate) fn compare((a, cut_a): (&str, SplitName), (b, cut_b): (&str, SplitName)) -> Ordering {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let first = a[..cut_a.first as usize].cmp(&b[..cut_b.first as usize]);
    let directory = || a[..cut_a.directory as usize].cmp(&b[..cut_b.directory as usize]);
    let name = || a[cut_a.directory as usize..].cmp(&b[cut_b.directory as usize..]);
    first.then_with(directory).then_with(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: SAMPLE-3
    fn order_is_that_of_torchvision_image_folder() {
        // Sorted by whole path, `a-b/1` would come before `a/2`, and `a/b-c/1` before `a/b/2`, and
        // `a/z` last of `a`.
        let right = ["top", "zop", "a/z", "a/b/2", "a/b/10/1", "a/b-c/1", "a-b/1", "b/1"];
        let mut sorted = right;
        sorted.sort_unstable();
        assert_ne!(sorted, ["top", "zop", "a/z", "a/b/2", "a/b/10/1", "a/b-c/1", "a-b/1", "b/1"]);
        sorted.sort_unstable_by(|a, b| compare((a, SplitName::of(a)), (b, SplitName::of(b))));
        assert_eq!(sorted, ["top", "zop", "a/z", "a/b/2", "a/b-c/1", "a/b/10/1", "a-b/1", "b/1"]);
    }

    #[test]
    fn climbing_paths_are_refused() {
        for path in ["", "/a", "a/", "a//b", "..", "a/../b", "./a", "a/.", "a\0b", &"x".repeat(MAX_TEXT + 1)]
        {
            assert!(refuse(path).is_some(), "{path:?}");
        }
        for path in ["a", "a/b", "..a/b..", "a/...", ".hidden", "a b/\u{e9}"] {
            assert_eq!(refuse(path), None, "{path:?}");
        }
    }
}
