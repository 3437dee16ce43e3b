//! The calendar queue: residents of equal cost per second, by the time of their next use.
//!
//! A ring of buckets, each of which covers an equal span of time (Brown, "Calendar queues", CACM
//! 1988). Insertion, removal and the furthest resident take constant time. Within a bucket there is
//! no order. So the width of a bucket follows the furthest resident, which is 64 to 480 buckets
//! away.

/// Buckets of the ring.
pub(crate) const BUCKETS: u64 = 512;

/// The list of residents whose dataset one job uses once per epoch, in any order.
const EPOCH: usize = BUCKETS as usize;

/// The list of residents that no known job uses again.
const NEVER: usize = EPOCH + 1;

/// The list of residents of which there is another copy at hand.
const SPARE: usize = NEVER + 1;

/// The distance of a next use that is not known. That of a sample with another copy is infinite.
pub(crate) const UNKNOWN: f64 = f64::MAX;

/// When a sample is used next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextUseTime {
    /// At a time in nanoseconds.
    At(u64),
    /// Once per epoch of the only job of its dataset.
    Epoch,
    /// Never, as far as orders are known.
    Never,
    /// A hit saves nothing: another copy is at hand.
    Spare,
}

/// A position in a calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CalendarSlot {
    pub(crate) list: u16,
    pub(crate) index: u32,
}

/// The queue.
#[derive(Clone, Debug)]
pub(crate) struct Calendar {
    /// Nanoseconds of a bucket.
    width: u64,
    /// The bucket of the present, counted from time 0.
    cursor: u64,
    /// No ring bucket after this one has residents.
    top: u64,
    /// The bucket of the latest check of the width.
    checked: u64,
    /// Whether residents of this calendar were compared with a candidate since then.
    is_contested: bool,
    /// The ring, then the lists of residents without a time.
    lists: Vec<Vec<u32>>,
}

impl Calendar {
    /// An empty calendar whose ring covers `span` nanoseconds from `now`.
    pub(crate) fn new(span: u64, now: u64) -> Self {
        let width = (span / BUCKETS).max(1);
        let cursor = now / width;
        let lists = vec![Vec::new(); SPARE + 1];
        Self { width, cursor, top: cursor, checked: cursor, is_contested: false, lists }
    }

    /// The list for a sample. Times in the past and after the ring's end are moved to its ends.
    pub(crate) fn list(&self, time: NextUseTime) -> u16 {
        let list = match time {
            NextUseTime::At(ns) => {
                let bucket = (ns / self.width).clamp(self.cursor, self.cursor + BUCKETS - 1);
                (bucket % BUCKETS) as usize
            }
            NextUseTime::Epoch => EPOCH,
            NextUseTime::Never => NEVER,
            NextUseTime::Spare => SPARE,
        };
        list as u16
    }

    pub(crate) fn push(&mut self, list: u16, sample: u32) -> CalendarSlot {
        if usize::from(list) < EPOCH {
            self.top = self.top.max(self.bucket(list));
        }
        let samples = &mut self.lists[usize::from(list)];
        samples.push(sample);
        CalendarSlot { list, index: (samples.len() - 1) as u32 }
    }

    /// Removes a resident. Returns the resident that takes its slot, if any.
    pub(crate) fn remove(&mut self, slot: CalendarSlot) -> Option<u32> {
        let samples = &mut self.lists[usize::from(slot.list)];
        samples.swap_remove(slot.index as usize);
        samples.get(slot.index as usize).copied()
    }

    /// All residents.
    pub(crate) fn all(&self) -> impl Iterator<Item = u32> {
        self.lists.iter().flatten().copied()
    }

    /// The resident with the furthest next use, and its list. `epoch_ns` is the distance of the
    /// next use in the list of whole epochs.
    pub(crate) fn furthest(&mut self, now: u64, epoch_ns: f64) -> Option<(u32, u16)> {
        self.lower_top();
        let last = |list: usize| self.lists[list].last().map(|&sample| (sample, list as u16));
        if let Some(unused) = last(SPARE).or_else(|| last(NEVER)) {
            return Some(unused);
        }
        match (last(EPOCH), last((self.top % BUCKETS) as usize)) {
            (Some(epoch), Some(ring)) => {
                let distance = |list| self.distance_ns(list, now, epoch_ns);
                Some(if distance(ring.1) > distance(epoch.1) { ring } else { epoch })
            }
            (epoch, ring) => epoch.or(ring),
        }
    }

    /// Nanoseconds to the end of a list's bucket. [`UNKNOWN`] for the list without uses, and
    /// infinite for that of samples with another copy.
    pub(crate) fn distance_ns(&self, list: u16, now: u64, epoch_ns: f64) -> f64 {
        match usize::from(list) {
            EPOCH => epoch_ns,
            NEVER => UNKNOWN,
            SPARE => f64::INFINITY,
            _ => (self.bucket(list) + 1).saturating_mul(self.width).saturating_sub(now) as f64,
        }
    }

    /// Notes that a candidate was compared with residents of this calendar.
    pub(crate) fn contest(&mut self) {
        self.is_contested = true;
    }

    /// Moves the present to `now`. Adds to `moved` the residents that must be inserted again: those
    /// whose time has passed, or all of the ring if its width changed.
    pub(crate) fn advance(&mut self, now: u64, moved: &mut Vec<u32>) {
        let cursor = now / self.width;
        if cursor <= self.cursor {
            return;
        }
        for bucket in self.cursor..cursor.min(self.cursor + BUCKETS) {
            moved.append(&mut self.lists[(bucket % BUCKETS) as usize]);
        }
        let passed = cursor - self.cursor;
        self.cursor = cursor;
        self.top = self.top.max(cursor);
        if cursor - self.checked >= BUCKETS / 4 {
            self.check_width(passed, now, moved);
        }
    }

    /// Fits the width to the range of next uses, as it was before `passed` buckets were emptied
    /// just now. Uses come in bursts, with many buckets between them. Without these, residents
    /// would seem nearer with each burst, and the width would shrink to nothing.
    fn check_width(&mut self, passed: u64, now: u64, moved: &mut Vec<u32>) {
        let is_contested = std::mem::take(&mut self.is_contested);
        self.checked = self.cursor;
        let is_empty = self.lists[..BUCKETS as usize].iter().all(Vec::is_empty);
        if !is_contested || is_empty && passed < BUCKETS {
            return;
        }
        self.lower_top();
        let reach = self.top - self.cursor + passed;
        let width = match reach {
            _ if reach < BUCKETS / 8 => (self.width / 2).max(1),
            _ if reach >= BUCKETS - BUCKETS / 16 => self.width.saturating_mul(2),
            _ => self.width,
        };
        if width != self.width {
            self.set_width(width, now, moved);
        }
    }

    fn set_width(&mut self, width: u64, now: u64, moved: &mut Vec<u32>) {
        self.lists[..BUCKETS as usize].iter_mut().for_each(|list| moved.append(list));
        self.width = width;
        self.cursor = now / width;
        (self.top, self.checked) = (self.cursor, self.cursor);
    }

    /// Narrows the ring to `span` nanoseconds if it covers far more: the first estimate of a pace
    /// was wrong. Adds to `moved` the residents that must be inserted again.
    pub(crate) fn narrow(&mut self, span: u64, now: u64, moved: &mut Vec<u32>) {
        /// The ring may cover this many times the span.
        const WIDE: u64 = 4;
        let width = (span / BUCKETS).max(1);
        if self.width / WIDE > width {
            self.set_width(width, now, moved);
        }
    }

    fn lower_top(&mut self) {
        while self.top > self.cursor && self.lists[(self.top % BUCKETS) as usize].is_empty() {
            self.top -= 1;
        }
    }

    /// Removes all residents.
    pub(crate) fn drain(&mut self, moved: &mut Vec<u32>) {
        self.lists.iter_mut().for_each(|list| moved.append(list));
        self.top = self.cursor;
    }

    /// The bucket of a list of the ring, counted from time 0.
    fn bucket(&self, list: u16) -> u64 {
        self.cursor + (u64::from(list) + BUCKETS - self.cursor % BUCKETS) % BUCKETS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn furthest_resident_is_that_of_the_last_bucket() {
        let mut calendar = Calendar::new(BUCKETS * 10, 1000);
        assert_eq!(calendar.furthest(1000, 0.0), None);
        let times = [(1, 1005), (2, 6100), (3, 2000), (4, 0), (5, u64::MAX)];
        let slots = times.map(|(sample, ns)| {
            let list = calendar.list(NextUseTime::At(ns));
            (sample, calendar.push(list, sample))
        });
        // 6100 is in the last bucket of the ring, as is the end of time.
        for expected in [5, 2, 3] {
            let (sample, list) = calendar.furthest(1000, 0.0).unwrap();
            assert_eq!(sample, expected);
            let index = slots.iter().find(|slot| slot.0 == sample).unwrap().1.index;
            assert_eq!(calendar.remove(CalendarSlot { list, index }), None);
        }
        let mut moved = Vec::new();
        calendar.advance(1015, &mut moved);
        moved.sort_unstable();
        assert_eq!((moved, calendar.furthest(1015, 0.0)), (vec![1, 4], None));
    }

    #[test]
    fn residents_without_a_time_follow_their_rank() {
        let mut calendar = Calendar::new(BUCKETS * 10, 0);
        use NextUseTime::{At, Epoch, Never, Spare};
        for (sample, time) in [(1, At(100)), (2, Epoch), (3, Never), (4, Spare)] {
            let list = calendar.list(time);
            calendar.push(list, sample);
        }
        for expected in [(4, f64::INFINITY), (3, UNKNOWN)] {
            let (sample, list) = calendar.furthest(0, 50.0).unwrap();
            assert_eq!((sample, calendar.distance_ns(list, 0, 50.0)), expected);
            calendar.remove(CalendarSlot { list, index: 0 });
        }
        assert_eq!(calendar.furthest(0, 50.0).map(|it| it.0), Some(1));
        assert_eq!(calendar.furthest(0, 500.0).map(|it| it.0), Some(2));
    }

    #[test]
    fn width_follows_the_furthest_resident() {
        let mut calendar = Calendar::new(BUCKETS * 1024, 0);
        let mut moved = Vec::new();
        // One resident, always 10,000 ns away, is compared with each candidate.
        for now in (0..40_000_000).step_by(100) {
            calendar.advance(now, &mut moved);
            let slot = calendar.furthest(now, 0.0).map(|(_, list)| CalendarSlot { list, index: 0 });
            slot.map(|slot| calendar.remove(slot));
            let list = calendar.list(NextUseTime::At(now + 10_000));
            calendar.push(list, 1);
            calendar.contest();
            moved.clear();
        }
        let away = 10_000 / calendar.width;
        assert!((BUCKETS / 8..BUCKETS).contains(&away), "{away} buckets of {} ns", calendar.width);
    }
}
