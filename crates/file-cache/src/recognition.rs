//! The orders that programs are known to use, tried on the first files of an epoch.
//!
//! | order | programs |
//! |---|---|
//! | by path: class, directory, name | validation, `shuffle=False`, sorted names |
//! | as the file system lists the directories | `os.walk`, `glob` and `find` without sorting |
//! | PyTorch's `DistributedSampler`, by its seed and epoch | training with several ranks |
//!
//! The files are those below the directory that all first files have in common, or one above it.
//! They are all files there, or those with the extensions of the first ones: a list of images
//! leaves out other files.
//!
//! Decision: a random order is recognised once. In the next epoch, its successor is expected from
//! the beginning. The price of a wrong guess is a few copies, because the choice of files compares
//! the expected with the opened files.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use foreread_oracle::{Sampler, Torch};
use foreread_planner::{OrderShare, share_of_order};

/// Seeds plus epochs of `DistributedSampler` that are tried.
const TORCH_SEEDS: u64 = 128;

/// After so many epochs of unknown orders, no more are looked at.
const MOST_UNKNOWN: u32 = 2;

/// An order that was recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KnownOrder {
    Path,
    Listed,
    /// With the seed and the epoch added.
    Torch(u64),
}

impl KnownOrder {
    fn of_next_epoch(self) -> Self {
        match self {
            Self::Torch(seed) => Self::Torch(seed + 1),
            other => other,
        }
    }
}

/// The recognised order.
#[derive(Debug)]
struct Match {
    order: KnownOrder,
    share: OrderShare,
    /// The files in the order of their paths.
    files: Vec<u32>,
}

/// The files of an epoch, in their order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RecognisedOrder {
    pub(crate) files: Vec<u32>,
    /// Whether the program uses other files as well.
    pub(crate) is_whole: bool,
}

/// Recognises orders, epoch by epoch.
#[derive(Debug, Default)]
pub(crate) struct Recognition {
    found: Option<Match>,
    /// The last epoch whose first files were looked at.
    tried: Option<u64>,
    /// The last epoch that was expected to be the successor of the one before.
    expected: Option<u64>,
    /// Epochs of unknown orders.
    unknown: u32,
}

impl Recognition {
    /// The order of an epoch that has just begun, if that of the one before was recognised.
    pub(crate) fn next(&mut self, epoch: u64) -> Option<RecognisedOrder> {
        let is_new = self.tried.is_some_and(|tried| epoch > tried) && self.expected < Some(epoch);
        let found = self.found.as_mut().filter(|_| is_new)?;
        self.expected = Some(epoch);
        found.order = found.order.of_next_epoch();
        order(found)
    }

    /// Whether the first files of an epoch are to be looked at.
    pub(crate) fn wants(&self, epoch: u64) -> bool {
        self.tried != Some(epoch) && self.unknown < MOST_UNKNOWN
    }

    /// Looks at the first files of an epoch. `paths` are those of all files, by number.
    pub(crate) fn look(&mut self, epoch: u64, first: &[u32], paths: &[PathBuf]) -> Option<RecognisedOrder> {
        self.tried = Some(epoch);
        if let Some(found) = &self.found
            && share(found.order, &found.files, first).is_some_and(|share| share == found.share)
        {
            return None;
        }
        self.found = find(first, paths);
        self.unknown = if self.found.is_some() { 0 } else { self.unknown + 1 };
        self.found.as_ref().and_then(order)
    }
}

/// The order of a match.
fn order(found: &Match) -> Option<RecognisedOrder> {
    let numbers = numbers(found.order, &found.files)?;
    let own = |(place, number): (usize, u32)| found.share.has(place).then_some(number);
    let files = numbers.into_iter().enumerate().filter_map(own).collect();
    Some(RecognisedOrder { files, is_whole: found.share.is_whole() })
}

/// Tries all orders.
fn find(first: &[u32], paths: &[PathBuf]) -> Option<Match> {
    let of_all = common_directory(paths.iter().map(|path| &**path))?;
    let below = common_directory(first.iter().map(|number| &*paths[*number as usize]))?;
    let extension = |number: &u32| paths[*number as usize].extension();
    let extensions: BTreeSet<Option<&OsStr>> = first.iter().map(extension).collect();
    let lists = |directory: &Path| {
        let all = by_path(paths, directory);
        let is_alike = |number: &u32| extensions.contains(&extension(number));
        let some: Vec<u32> = all.iter().copied().filter(is_alike).collect();
        if some.len() == all.len() { vec![all] } else { vec![some, all] }
    };
    let matching = |files: Vec<u32>, orders: &[KnownOrder]| {
        let (order, share) = orders.iter().find_map(|order| Some((*order, share(*order, &files, first)?)))?;
        Some(Match { order, share, files })
    };
    // The first files by path may all be of one class.
    let directories: Vec<&Path> = below.ancestors().take_while(|path| path.starts_with(&of_all)).collect();
    let sorted = directories
        .into_iter()
        .rev()
        .flat_map(lists)
        .find_map(|files| matching(files, &[KnownOrder::Path, KnownOrder::Listed]));
    let seeds: Vec<KnownOrder> = (0..TORCH_SEEDS).map(KnownOrder::Torch).collect();
    let torch = || lists(&below).into_iter().find_map(|files| matching(files, &seeds));
    sorted.or_else(torch)
}

/// The part of an order that these first files are from.
fn share(order: KnownOrder, files: &[u32], first: &[u32]) -> Option<OrderShare> {
    let numbers = numbers(order, files)?;
    let mut places: HashMap<u32, Option<usize>> = first.iter().map(|number| (*number, None)).collect();
    for (place, number) in numbers.iter().enumerate() {
        if let Some(at) = places.get_mut(number) {
            *at = Some(place);
        }
    }
    share_of_order(&first.iter().map(|number| places[number]).collect::<Vec<_>>())
}

/// The files in an order. `files` are in the order of their paths.
fn numbers(order: KnownOrder, files: &[u32]) -> Option<Vec<u32>> {
    match order {
        KnownOrder::Path => Some(files.to_vec()),
        KnownOrder::Listed => {
            let mut listed = files.to_vec();
            listed.sort_unstable();
            Some(listed)
        }
        KnownOrder::Torch(seed) => {
            let order = Torch::new(files.len() as u64, seed).ok()?.order(0).ok()?;
            Some((0..order.len()).map(|at| files[order.at(at).0 as usize]).collect())
        }
    }
}

/// The files below a directory in the order of their paths, as data sets number them: by the first
/// directory, all directories, and the name.
pub(crate) fn by_path(paths: &[PathBuf], below: &Path) -> Vec<u32> {
    let is_below = |number: &u32| paths[*number as usize].starts_with(below);
    let mut files: Vec<u32> = (0..paths.len() as u32).filter(is_below).collect();
    files.sort_by_cached_key(|number| sample_key(&paths[*number as usize], below));
    files
}

/// The deepest directory that all paths are in.
pub(crate) fn common_directory<'a>(mut paths: impl Iterator<Item = &'a Path>) -> Option<PathBuf> {
    let mut common = paths.next()?.parent()?.to_owned();
    for path in paths {
        while !path.starts_with(&common) {
            common = common.parent()?.to_owned();
        }
    }
    Some(common)
}

/// The keys that samples are sorted by: the first directory, all directories, the name.
fn sample_key<'a>(path: &'a Path, below: &Path) -> (&'a [u8], &'a [u8], &'a [u8]) {
    let rest = path.strip_prefix(below).unwrap_or(path).as_os_str().as_bytes();
    let end = rest.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    let directory = &rest[..end];
    let first = directory.split(|byte| *byte == b'/').next().unwrap_or_default();
    (first, directory, &rest[end..])
}

#[cfg(test)]
mod tests {
    use foreread_planner::FIRST_USES;

    use super::*;

    /// 2,000 images in ten directories, which the file system lists by no rule, and other files.
    fn paths() -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> = (0..2000)
            .map(|number| PathBuf::from(format!("/data/train/c{}/{number:04}.jpg", number % 10)))
            .collect();
        paths.extend((0..100).map(|number| format!("/data/train/c{}/{number}.txt", number % 10).into()));
        paths.extend((0..300).map(|number| format!("/data/val/{number}.jpg").into()));
        // A permutation.
        (0..2400).map(|at| paths[at * 1001 % 2400].clone()).collect()
    }

    /// The images for training in the order of their paths.
    fn images(paths: &[PathBuf]) -> Vec<u32> {
        let mut images: Vec<u32> = (0..2400)
            .filter(|number| {
                let path = &paths[*number as usize];
                path.starts_with("/data/train") && path.extension() == Some(OsStr::new("jpg"))
            })
            .collect();
        images.sort_by_key(|number| {
            let path = &paths[*number as usize];
            (path.parent().unwrap().to_owned(), path.file_name().unwrap().to_owned())
        });
        images
    }

    #[test]
    fn orders_of_programs_are_recognised_and_continued() {
        let paths = paths();
        let images = images(&paths);
        let torch = |seed| numbers(KnownOrder::Torch(seed), &images).unwrap();
        let mut recognition = Recognition::default();
        assert_eq!(recognition.next(0), None);
        let found = recognition.look(0, &torch(7)[..FIRST_USES], &paths).unwrap();
        assert_eq!(found, RecognisedOrder { files: torch(7), is_whole: true });
        assert!(!recognition.wants(0) && recognition.next(0).is_none());
        // The next epoch is expected from its beginning, once.
        assert_eq!(recognition.next(1).unwrap().files, torch(8));
        assert!(recognition.next(1).is_none() && recognition.wants(1));
        // It came as expected.
        assert_eq!(recognition.look(1, &torch(8)[3..FIRST_USES + 3], &paths), None);
        // Another run's order.
        recognition.next(2).unwrap();
        let found = recognition.look(2, &torch(90)[..FIRST_USES], &paths).unwrap();
        assert_eq!(found.files, torch(90));
        // By paths, and as listed.
        let first: Vec<u32> = images[..FIRST_USES].to_vec();
        // A program that reads one directory by path may continue with the next.
        let found = recognition.look(3, &first, &paths).unwrap();
        assert!(found.files.starts_with(&images) && found.files.len() == 2300);
        let mut listed = images.clone();
        listed.sort_unstable();
        let found = recognition.look(4, &listed[..FIRST_USES], &paths).unwrap();
        assert!(found.files.is_sorted() && found.files.len() == 2300);
        // An order of its own.
        let own: Vec<u32> = (0..FIRST_USES).map(|at| images[(at * at * 7 + at * 731) % 2000]).collect();
        assert_eq!(recognition.look(5, &own, &paths), None);
        assert_eq!(recognition.next(6), None);
    }

    #[test]
    fn ranks_of_other_nodes_are_left_out() {
        let paths = paths();
        let images = images(&paths);
        let order = numbers(KnownOrder::Torch(3), &images).unwrap();
        // Ranks 4 and 5 of 8.
        let own = |order: &[u32]| -> Vec<u32> {
            order
                .iter()
                .enumerate()
                .filter(|(at, _)| [4, 5].contains(&(at % 8)))
                .map(|(_, file)| *file)
                .collect()
        };
        let mut recognition = Recognition::default();
        let found = recognition.look(0, &own(&order)[..FIRST_USES], &paths).unwrap();
        assert_eq!(found, RecognisedOrder { files: own(&order), is_whole: false });
        let next = numbers(KnownOrder::Torch(4), &images).unwrap();
        assert_eq!(recognition.next(1).unwrap().files, own(&next));
    }
}
