//! Directory markers: empty objects that represent directories and are not samples.
//!
//! Consoles and file browsers create an empty object `photos/` for a directory in a bucket. A
//! lister that receives the key unchanged omits it. Google's and Azure's clients remove the `/`, so
//! that it looks like an empty object `photos` next to `photos/1.jpg`. No file system has both. So
//! an empty object whose path is a directory of another object is a marker. An empty object without
//! objects below it stays a sample. The exception are names that end in `_$folder$`: Hadoop writes
//! such a marker next to each directory. The price is a second copy of the paths of the empty
//! objects during the listing.

use std::collections::HashSet;
use std::sync::Arc;

use foreread_tier::Object;

/// How the names of Hadoop's markers end.
const HADOOP: &str = "_$folder$";

/// The empty objects of a listing, and which of them are directories.
#[derive(Debug, Default)]
pub(crate) struct DirectoryMarkers {
    empty: HashSet<Arc<str>>,
    directories: HashSet<Arc<str>>,
    /// The directory of the last lookup, because neighbouring objects share theirs.
    last: String,
}

impl DirectoryMarkers {
    /// Records a listed object, selected or not.
    pub(crate) fn note(&mut self, object: &Object) {
        if object.size == 0 {
            self.empty.insert(Arc::clone(&object.path));
        }
        self.look(&object.path);
    }

    /// Whether there are empty objects, of which some may be markers.
    pub(crate) fn are_possible(&self) -> bool {
        !self.empty.is_empty()
    }

    /// Whether an object is a marker, after a [second look](Self::look_again) at all of them.
    pub(crate) fn contain(&self, object: &Object) -> bool {
        is_hadoops(object) || object.size == 0 && self.directories.contains(&object.path)
    }

    /// Prepares a second look.
    pub(crate) fn begin_again(&mut self) {
        self.last.clear();
    }

    /// Looks at a selected object once all are listed: it may be below a marker that was listed
    /// after it.
    pub(crate) fn look_again(&mut self, object: &Object) {
        if !is_hadoops(object) {
            self.look(&object.path);
        }
    }

    /// Finds the empty objects so far that are directories of this path.
    fn look(&mut self, path: &str) {
        let mut directory = path.rfind('/').map_or("", |slash| &path[..slash]);
        if self.empty.is_empty() || directory == self.last {
            return;
        }
        self.last.clear();
        self.last.push_str(directory);
        while !directory.is_empty() {
            if let Some(empty) = self.empty.get(directory) {
                self.directories.insert(Arc::clone(empty));
            }
            directory = directory.rfind('/').map_or("", |slash| &directory[..slash]);
        }
    }

    /// Removes the directory markers from the listed and selected objects.
    pub(crate) fn sift(mut self, objects: &mut Vec<Object>) {
        if !self.are_possible() {
            return;
        }
        self.begin_again();
        for object in objects.iter() {
            self.look_again(object);
        }
        objects.retain(|object| !self.contain(object));
    }
}

/// Whether an object is a marker of Hadoop's.
fn is_hadoops(object: &Object) -> bool {
    object.size == 0 && object.path.ends_with(HADOOP)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn object(path: &str, size: u64) -> Object {
        Object { path: path.into(), size, version: None }
    }

    fn sifted(listed: &[(&str, u64)]) -> Vec<String> {
        let mut objects: Vec<Object> = listed.iter().map(|&(path, size)| object(path, size)).collect();
        let mut holders = DirectoryMarkers::default();
        objects.iter().for_each(|object| holders.note(object));
        holders.sift(&mut objects);
        objects.iter().map(|object| object.path.to_string()).collect()
    }

    #[test]
    fn empty_object_with_others_below_is_a_directory() {
        for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [1, 4, 0, 3, 2]] {
            let listed = [("a", 0), ("a/b", 0), ("a/b/1", 5), ("a/empty", 0), ("ab", 0)];
            let mut left = sifted(&order.map(|at| listed[at]));
            left.sort_unstable();
            assert_eq!(left, ["a/b/1", "a/empty", "ab"]);
        }
        // A non-empty object with a directory's name stays. So does an empty one next to a marker
        // whose name begins the same.
        assert_eq!(sifted(&[("a", 3), ("a", 0), ("a/1", 1), ("a-", 0)]), ["a", "a/1", "a-"]);
    }

    #[test]
    // semantics: SAMPLE-7
    fn marker_of_hadoop_is_no_sample() {
        let listed = [("a_$folder$", 0), ("a/1", 5), ("b/c_$folder$", 0), ("full_$folder$", 3)];
        assert_eq!(sifted(&listed), ["a/1", "full_$folder$"]);
    }

    #[test]
    fn excluded_objects_reveal_directory_markers_too() {
        let mut holders = DirectoryMarkers::default();
        for (path, size) in [("a", 0), ("a/unwanted.txt", 5), ("b.jpg", 1)] {
            holders.note(&object(path, size));
        }
        let mut wanted = vec![object("a", 0), object("b.jpg", 1)];
        holders.sift(&mut wanted);
        assert_eq!(wanted, [object("b.jpg", 1)]);
    }

    proptest! {
        #[test]
        // semantics: SAMPLE-7
        fn directory_markers_are_exactly_empty_objects_above_others(
            listed in prop::collection::vec(("[ab](/[ab]){0,3}", 0..2u64), 0..20)
        ) {
            let borrowed: Vec<(&str, u64)> =
                listed.iter().map(|(path, size)| (path.as_str(), *size)).collect();
            let stays = |path: &str, size: u64| {
                size > 0 || !borrowed.iter().any(|(other, _)| other.starts_with(&format!("{path}/")))
            };
            let expected: Vec<String> =
                borrowed.iter().filter(|(path, size)| stays(path, *size))
                    .map(|(path, _)| (*path).to_owned()).collect();
            prop_assert_eq!(sifted(&borrowed), expected);
        }
    }
}
