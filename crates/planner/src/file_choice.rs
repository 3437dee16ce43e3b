//! Which whole files a cache copies and removes, for programs that announce no order.
//!
//! Such a program opens files one after another, and each of them once per epoch. The next file
//! that it opens is unknown. But a file that was used in the epoch before, and not yet in this one,
//! will be used in this one.
//!
//! # The decision, and its price
//!
//! * A file that a program has just opened is copied *next to* it into free room, while its pages
//!   are in memory. So the first epoch reads nothing twice.
//! * From the second epoch on, files that this epoch has not used yet are copied *ahead*, into the
//!   room of used ones. With a cache for a part c of the files, c + c ln(1/c) of all opens find a
//!   copy: 85 % for half of the files. A cache with fixed contents has c, and LRU far less. Each
//!   file is read once per epoch at most, so the origin reads the lower bound, 1 - c. The price is
//!   that c ln(1/c) of all files are written in each epoch, and 1 - c in a known order. A budget of
//!   writes decides whether a disk may.
//! * If the order is announced, recognised, or that of the epoch before, copies are a short way
//!   ahead. They take the room of files that were just used. So nearly all opens find a copy, and
//!   most contents are fixed. An order that was only expected is dropped when files come in another
//!   one.
//! * An epoch has begun when files are opened again. One file that is opened all the time is no
//!   epoch: a part of the used files must have been repeated, or all that were expected used.
//!
//! All results are functions of the calls.

use std::collections::VecDeque;

/// Opens of a file within so many others are one use: readers look at headers first.
const ONE_USE: u64 = 64;

/// And within this part of all files.
const ONE_USE_PART: u64 = 4;

/// An epoch has begun when this part of its files was opened again.
const REPEATED_PART: usize = 32;

/// An order is that of the epoch before if most files come near their places there.
const NEAR_PART: usize = 64;

/// So many opens decide about that.
const ENOUGH: u32 = 32;

/// In a known order, copies are ahead by this part of all copies.
const AHEAD_PART: usize = 8;

/// A file to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileCopy {
    /// Its number.
    pub file: u32,
    /// Whether it is copied for a use to come, so that used files may give their room.
    pub is_ahead: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct FileState {
    /// The number of its latest open, from 1. 0: none.
    opened: u64,
    /// The place in the expected order, from 1. 0: none.
    place: u32,
    is_used: bool,
    is_repeated: bool,
    is_cached: bool,
    is_copying: bool,
    is_refused: bool,
}

impl FileState {
    fn may_copy(&self) -> bool {
        !(self.is_cached || self.is_copying || self.is_refused)
    }

    /// Begins a copy, if one may be made.
    fn begin(&mut self) -> bool {
        let begins = self.may_copy();
        self.is_copying |= begins;
        begins
    }
}

/// The rule, with its facts of the files.
///
/// ```
/// use foreread_planner::{FileChoice, FileCopy};
///
/// let mut choice = FileChoice::default();
/// choice.opened(0);
/// assert_eq!(choice.next_copy(), Some(FileCopy { file: 0, is_ahead: false }));
/// choice.copied(0, true);
/// choice.opened(1);
/// assert_eq!(choice.next_copy().map(|copy| copy.file), Some(1));
/// // There was no room.
/// choice.copied(1, false);
/// // The second epoch copies what it has not used yet, into the room of what it has.
/// (0..100).for_each(|_| choice.opened(1));
/// choice.opened(0);
/// assert_eq!(choice.next_copy(), Some(FileCopy { file: 1, is_ahead: true }));
/// assert_eq!(choice.victim(), Some(0));
/// ```
#[derive(Clone, Debug, Default)]
pub struct FileChoice {
    files: Vec<FileState>,
    /// Opens so far.
    opens: u64,
    /// Files that were opened without a copy, the latest first.
    just_opened: VecDeque<u32>,
    /// Files that this epoch will use, in the expected order.
    ahead: Vec<u32>,
    /// The number of files that were looked at.
    next: usize,
    /// Files that this epoch has used, in their order.
    used: Vec<u32>,
    /// Copies that this epoch has used, and which may leave.
    spent: VecDeque<u32>,
    /// The place after the furthest use in the expected order.
    expected: usize,
    /// Opens near their place and elsewhere, lately.
    near: u32,
    far: u32,
    /// Whether files come in the expected order.
    is_ordered: bool,
    is_announced: bool,
    cached: usize,
    /// Files that were opened again, in their order.
    repeated: Vec<u32>,
    epochs: u64,
}

impl FileChoice {
    fn file(&mut self, file: u32) -> &mut FileState {
        let at = file as usize;
        if self.files.len() <= at {
            self.files.resize(at + 1, FileState::default());
        }
        &mut self.files[at]
    }

    /// Notes a file of the datasets.
    pub fn add(&mut self, file: u32) {
        self.file(file);
    }

    /// The epoch, from 0.
    pub fn epoch(&self) -> u64 {
        self.epochs
    }

    /// Announces the files that the present epoch uses, in their order.
    pub fn announce(&mut self, order: Vec<u32>) {
        self.is_announced = true;
        self.expect(order);
    }

    /// Expects the files in an order that was recognised by some that this epoch has used. With
    /// `is_whole`, files of the epoch before that are not in it are used as well.
    pub fn recognised(&mut self, mut order: Vec<u32>, is_whole: bool) {
        let earlier = std::mem::take(&mut self.ahead);
        for file in &earlier {
            self.file(*file).place = 0;
        }
        if is_whole {
            for file in &order {
                self.file(*file).place = 1;
            }
            order.extend(earlier.into_iter().filter(|file| self.files[*file as usize].place == 0));
        }
        self.expect(order);
        (self.is_ordered, self.near, self.far) = (true, 0, 0);
        self.expected = self.used.len();
    }

    /// The first files that this epoch has used, if there are so many.
    pub fn first_uses(&self, count: usize) -> Option<&[u32]> {
        self.used.get(..count)
    }

    fn expect(&mut self, order: Vec<u32>) {
        for file in std::mem::take(&mut self.ahead) {
            self.file(file).place = 0;
        }
        for (place, file) in (1..).zip(&order) {
            self.file(*file).place = place;
        }
        (self.ahead, self.next, self.expected) = (order, 0, 0);
    }

    /// Whether the files come in the expected order.
    fn is_ordered(&self) -> bool {
        self.is_announced || self.is_ordered
    }

    /// Compares a use with the expected order.
    fn compare(&mut self, place: u32) {
        let Some(place) = (place as usize).checked_sub(1) else { return };
        let near = self.ahead.len() / NEAR_PART + ENOUGH as usize;
        let is_near = place.abs_diff(self.expected) <= near;
        (self.near, self.far) = (self.near + u32::from(is_near), self.far + u32::from(!is_near));
        if self.near + self.far >= ENOUGH {
            self.is_ordered = self.near >= 3 * self.far;
            (self.near, self.far) = (0, 0);
        }
        if is_near || !self.is_ordered {
            self.expected = self.expected.max(place + 1);
        }
    }

    /// A program has opened a file.
    pub fn opened(&mut self, file: u32) {
        self.opens += 1;
        let now = self.opens;
        // Of few files, each comes again so soon in the next epoch.
        let one_use = ONE_USE.min((self.files.len() as u64 / ONE_USE_PART).max(2));
        let state = self.file(file);
        let is_again = state.opened > 0 && now - state.opened <= one_use;
        state.opened = now;
        if state.is_used && !is_again && !state.is_repeated {
            state.is_repeated = true;
            self.repeated.push(file);
            let is_complete =
                self.is_ordered() && !self.ahead.is_empty() && self.used.len() >= self.ahead.len();
            if is_complete || self.repeated.len() > self.used.len() / REPEATED_PART {
                self.begin_epoch();
            }
        }
        let state = self.file(file);
        let is_first = !std::mem::replace(&mut state.is_used, true);
        let (is_cached, may_copy, place) = (state.is_cached, state.may_copy(), state.place);
        if is_first {
            self.compare(place);
            self.used.push(file);
            if is_cached {
                self.spent.push_back(file);
            }
        }
        if may_copy && !is_again {
            self.just_opened.push_front(file);
        }
    }

    /// All files are unused again, except repeated ones.
    fn begin_epoch(&mut self) {
        self.epochs += 1;
        let repeated = std::mem::take(&mut self.repeated);
        let order = std::mem::take(&mut self.used);
        self.is_announced = false;
        self.expect(order);
        self.spent.clear();
        for at in 0..self.ahead.len() {
            let file = self.ahead[at];
            let state = self.file(file);
            (state.is_used, state.is_repeated) = (false, false);
        }
        for file in repeated {
            let state = self.file(file);
            state.is_used = true;
            let is_cached = state.is_cached;
            self.used.push(file);
            if is_cached {
                self.spent.push_back(file);
            }
        }
    }

    /// The next file to copy. It counts as being copied until [`copied`](Self::copied).
    pub fn next_copy(&mut self) -> Option<FileCopy> {
        while let Some(file) = self.just_opened.pop_front() {
            let state = self.file(file);
            if state.begin() {
                return Some(FileCopy { file, is_ahead: false });
            }
        }
        let window = if self.is_ordered() { self.cached / AHEAD_PART + 1 } else { self.ahead.len() };
        while let Some(&file) = self.ahead.get(self.next)
            && self.next <= self.expected.saturating_add(window)
        {
            self.next += 1;
            let state = self.file(file);
            if !state.is_used && state.begin() {
                return Some(FileCopy { file, is_ahead: true });
            }
        }
        None
    }

    /// Begins to copy a file that a program waits for, out of turn. `false` if it is copied,
    /// refused, or being copied.
    pub fn begin(&mut self, file: u32) -> bool {
        self.file(file).begin()
    }

    /// A file is copied, or has found no room. Then it is tried again at its next open. A file that
    /// was [ahead](FileCopy::is_ahead) is tried again with the next room.
    pub fn copied(&mut self, file: u32, is_kept: bool) {
        let state = self.file(file);
        (state.is_copying, state.is_cached) = (false, is_kept);
        let is_used = state.is_used;
        self.cached += usize::from(is_kept);
        if is_kept && is_used {
            self.spent.push_back(file);
        }
    }

    /// A file that was to be copied ahead has found no room yet.
    pub fn wait(&mut self, file: u32) {
        self.file(file).is_copying = false;
        // It is the next one again. Others may have been looked at since.
        let at = self.ahead[..self.next].iter().rposition(|other| *other == file);
        self.next = at.unwrap_or(self.next);
    }

    /// A copy that may leave for a file that is copied ahead. It is no copy any more.
    pub fn victim(&mut self) -> Option<u32> {
        loop {
            // In a known order, the rest of the contents is fixed.
            let latest = if self.is_ordered() { self.spent.pop_back() } else { self.spent.pop_front() };
            let file = latest?;
            let state = self.file(file);
            if state.is_cached && state.is_used {
                state.is_cached = false;
                self.cached -= 1;
                return Some(file);
            }
        }
    }

    /// A victim is in use. It stays, and may leave later.
    pub fn is_busy(&mut self, file: u32) {
        self.file(file).is_cached = true;
        self.cached += 1;
        if self.is_ordered() { self.spent.push_front(file) } else { self.spent.push_back(file) }
    }

    /// Notes a copy that was there before.
    pub fn has(&mut self, file: u32) {
        self.file(file).is_cached = true;
        self.cached += 1;
    }

    /// A copy is gone.
    pub fn lost(&mut self, file: u32) {
        self.cached -= usize::from(std::mem::take(&mut self.file(file).is_cached));
    }

    /// Whether a file is never copied.
    pub fn is_refused(&self, file: u32) -> bool {
        self.files.get(file as usize).is_some_and(|state| state.is_refused)
    }

    /// A file is never copied.
    pub fn refuse(&mut self, file: u32) {
        let state = self.file(file);
        (state.is_copying, state.is_refused) = (false, true);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FILES: u32 = 2000;

    /// The parts of the opens of later epochs that find a copy, and that read the origin: a program
    /// with a cache for `room` files, which copies `speed` files in the time of an open.
    fn simulate(
        room: usize,
        speed: usize,
        writes_ahead: bool,
        order: impl Fn(u64) -> Vec<u32>,
    ) -> (f64, f64) {
        let mut choice = FileChoice::default();
        let mut cached = std::collections::HashSet::new();
        let (mut served, mut read, mut opens) = (0.0, 0.0, 0.0);
        for epoch in 0..6 {
            for file in order(epoch) {
                let has = cached.contains(&file);
                if epoch > 1 {
                    opens += 1.0;
                    served += f64::from(u8::from(has));
                    read += f64::from(u8::from(!has));
                }
                choice.opened(file);
                for _ in 0..speed {
                    let Some(copy) = choice.next_copy() else { break };
                    if cached.len() >= room {
                        let victim = (copy.is_ahead && writes_ahead).then(|| choice.victim()).flatten();
                        let Some(victim) = victim else {
                            if copy.is_ahead {
                                choice.wait(copy.file)
                            } else {
                                choice.copied(copy.file, false)
                            }
                            break;
                        };
                        assert!(cached.remove(&victim));
                    }
                    choice.copied(copy.file, true);
                    assert!(cached.insert(copy.file));
                    // A file that was just opened has its pages in memory.
                    read += f64::from(u8::from(copy.is_ahead && epoch > 1));
                }
            }
        }
        (served / opens, read / opens)
    }

    fn shuffled(epoch: u64) -> Vec<u32> {
        let mut order: Vec<u32> = (0..FILES).collect();
        let mut state = epoch * 77 + 5;
        for at in (1..order.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            order.swap(at, (state >> 33) as usize % (at + 1));
        }
        order
    }

    #[test]
    // semantics: FILES-1
    fn unused_files_ahead_serve_most_opens_of_an_unknown_order() {
        for part in [0.1_f64, 0.25, 0.5, 0.75] {
            let room = (part * f64::from(FILES)) as usize;
            let (served, read) = simulate(room, 4, true, shuffled);
            let expected = part + part * (1.0 / part).ln();
            assert!((served - expected).abs() < 0.04, "{part}: {served} instead of {expected}");
            assert!((read - (1.0 - part)).abs() < 0.03, "{part}: reads {read}");
        }
    }

    #[test]
    // semantics: FILES-1
    fn without_a_budget_of_writes_the_contents_are_fixed() {
        let (served, read) = simulate(FILES as usize / 2, 4, false, shuffled);
        assert!((served - 0.5).abs() < 0.01 && (read - 0.5).abs() < 0.01, "{served} {read}");
    }

    #[test]
    // semantics: FILES-1
    fn same_order_in_each_epoch_is_served_nearly_whole() {
        let (served, read) = simulate(FILES as usize / 4, 4, true, |_| (0..FILES).collect());
        assert!(served > 0.95 && (0.74..0.82).contains(&read), "{served} {read}");
    }

    #[test]
    fn one_file_that_is_opened_all_the_time_is_no_epoch() {
        let mut choice = FileChoice::default();
        for file in 0..FILES {
            choice.opened(file);
            if file % 100 == 0 {
                choice.opened(FILES);
            }
        }
        assert_eq!(choice.epoch(), 0);
        // Readers open a file twice for a sample.
        let mut choice = FileChoice::default();
        for file in (0..FILES).flat_map(|file| [file, file]) {
            choice.opened(file);
        }
        assert_eq!(choice.epoch(), 0);
        (0..FILES).for_each(|file| choice.opened(file));
        assert_eq!(choice.epoch(), 1);
    }

    proptest! {
        /// Whatever happens, a file is copied at most once at a time, and only absent ones are.
        #[test]
        fn only_absent_files_are_copied(steps in prop::collection::vec((0_u8..7, 0_u32..40), 1..400)) {
            let mut choice = FileChoice::default();
            let (mut cached, mut copying) = (std::collections::HashSet::new(), Vec::new());
            let mut refused = std::collections::HashSet::new();
            for (what, file) in steps {
                match what {
                    0 | 1 => choice.opened(file),
                    2 => if let Some(copy) = choice.next_copy() {
                        prop_assert!(!cached.contains(&copy.file) && !refused.contains(&copy.file));
                        prop_assert!(!copying.contains(&copy));
                        copying.push(copy);
                    },
                    3 => if let Some(copy) = copying.pop() {
                        let kept = file % 2 == 0;
                        choice.copied(copy.file, kept);
                        if kept { cached.insert(copy.file); }
                    },
                    4 => if let Some(victim) = choice.victim() {
                        prop_assert!(cached.contains(&victim));
                        if file % 3 == 0 { choice.is_busy(victim) } else { cached.remove(&victim); }
                    },
                    5 => if let Some(copy) = copying.pop() {
                        if copy.is_ahead { choice.wait(copy.file) } else {
                            choice.refuse(copy.file);
                            refused.insert(copy.file);
                        }
                    },
                    _ => if cached.remove(&file) { choice.lost(file) },
                }
            }
        }
    }
}
