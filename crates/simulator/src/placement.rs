//! Who owns which sample: one copy each in the cluster, until every sample has one.
//!
//! This is the one place that decides it for foreread's policies, in a simple form of its own: integers, ties broken by
//! first use, no prices. The planner's placement over several stores can take its place.
//!
//! Which samples are owned where not all can be makes no difference to the bytes read, but it does to when: the owners'
//! prefetchers and the staging threads work side by side only if owned and other samples alternate. So the owned ones are
//! spread evenly over the order of first use. An owner without room passes the sample to whoever has most room, because
//! unused room anywhere is read from the file system in every epoch.

use crate::copies::Rooms;
use crate::plan::Setting;
use crate::workload::Streams;

/// Who owns a sample, if it has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ownership {
    FirstReader,
    /// Of equally frequent ones, the one that reads it first.
    MostFrequentReader,
}

impl Ownership {
    pub(crate) const BOTH: [Self; 2] = [Self::FirstReader, Self::MostFrequentReader];
}

/// The first use of a sample anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FirstUse {
    pub sample: u32,
    pub worker: u32,
}

/// The first use of every sample that is used, in the order of (batch, place in the worker's share, worker): about the
/// order in which they are needed.
pub(crate) fn first_uses(streams: &Streams, samples: usize) -> Vec<FirstUse> {
    let mut seen = vec![false; samples];
    let mut found = Vec::with_capacity(samples);
    let mut at = vec![0; streams.ids.len()];
    for batch in 0..streams.shape.batches() {
        let longest = streams.shape.share(0, batch).len();
        for place in 0..longest {
            for (worker, ids) in streams.ids.iter().enumerate() {
                if place < streams.shape.share(worker, batch).len() {
                    let sample = ids[at[worker] + place];
                    if !std::mem::replace(&mut seen[sample as usize], true) {
                        found.push(FirstUse { sample, worker: worker as u32 });
                    }
                }
            }
        }
        for (worker, at) in at.iter_mut().enumerate() {
            *at += streams.shape.share(worker, batch).len();
        }
    }
    found
}

/// A sample's owner, and where it keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owned {
    pub sample: u32,
    pub worker: u32,
    pub class: u8,
}

/// Who owns what.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    /// In the order of first use anywhere.
    pub owned: Vec<Owned>,
    /// Whether every sample that is used has an owner.
    complete: bool,
    rooms: Rooms,
}

/// Second copies: what each worker keeps when it has had it from the owner.
#[derive(Clone, Debug)]
pub(crate) struct Second {
    /// By worker, sorted by sample, with the class.
    pub copies: Vec<Vec<(u32, u8)>>,
    /// What is left once all of them are made.
    pub rooms: Rooms,
}

impl Placement {
    /// Places the samples that `streams` read in what room there is.
    pub(crate) fn new(setting: &Setting<'_>, streams: &Streams, ownership: Ownership, rooms: Rooms) -> Self {
        let samples = setting.workload.sizes.len();
        let uses = first_uses(streams, samples);
        let mut wanted: Vec<(u32, u32)> = uses.iter().map(|first| (first.sample, first.worker)).collect();
        if ownership == Ownership::MostFrequentReader {
            let reader = most_frequent_readers(streams, samples);
            wanted.iter_mut().for_each(|(sample, worker)| *worker = reader[*sample as usize]);
        }
        let mut placing = Placing::new(setting, &uses, rooms);
        for &(sample, worker) in &wanted {
            placing.spread(sample, worker);
        }
        placing.finish(&wanted)
    }

    /// What room the owners leave, for further copies of what each worker reads most often. None where any sample is
    /// without an owner.
    pub(crate) fn second_copies(&self, setting: &Setting<'_>, streams: &Streams) -> Second {
        let mut rooms = self.rooms.clone();
        let mut copies = vec![Vec::new(); setting.workers()];
        if !self.complete {
            return Second { copies, rooms };
        }
        let samples = setting.workload.sizes.len();
        let mut owner = vec![u32::MAX; samples];
        for owned in &self.owned {
            owner[owned.sample as usize] = owned.worker;
        }
        let mut uses = vec![0u32; samples];
        for (worker, ids) in streams.ids.iter().enumerate() {
            if rooms.left(worker) == 0 {
                continue;
            }
            let mut others = Vec::new();
            for &sample in ids.iter().filter(|&&sample| owner[sample as usize] != worker as u32) {
                if uses[sample as usize] == 0 {
                    others.push(sample);
                }
                uses[sample as usize] += 1;
            }
            // A copy that is used once has no use left after it was made.
            let mut ranked: Vec<u32> =
                others.iter().copied().filter(|&sample| uses[sample as usize] > 1).collect();
            ranked.sort_by_key(|&sample| std::cmp::Reverse(uses[sample as usize]));
            for sample in ranked {
                if let Some(class) = rooms.take_any(worker, setting.size(sample)) {
                    copies[worker].push((sample, class as u8));
                }
            }
            copies[worker].sort_unstable();
            others.into_iter().for_each(|sample| uses[sample as usize] = 0);
        }
        Second { copies, rooms }
    }
}

/// By sample: the worker that reads it most often, of equals the one that reads it first.
fn most_frequent_readers(streams: &Streams, samples: usize) -> Vec<u32> {
    let mut reader = vec![0u32; samples];
    let mut best = vec![(0u32, std::cmp::Reverse(u32::MAX)); samples];
    let mut uses = vec![(0u32, u32::MAX); samples];
    for (worker, ids) in streams.ids.iter().enumerate() {
        for (position, &sample) in ids.iter().enumerate() {
            let (count, first) = &mut uses[sample as usize];
            *count += 1;
            *first = (*first).min(position as u32);
        }
        for &sample in ids {
            let (count, first) = std::mem::replace(&mut uses[sample as usize], (0, u32::MAX));
            let rank = (count, std::cmp::Reverse(first));
            if count > 0 && rank > best[sample as usize] {
                best[sample as usize] = rank;
                reader[sample as usize] = worker as u32;
            }
        }
    }
    reader
}

/// Owners being found, sample after sample in the order of first use.
struct Placing<'a> {
    setting: &'a Setting<'a>,
    rooms: Rooms,
    /// All room of the cluster's caches, and all bytes that are used.
    room: u128,
    used: u128,
    walked: u128,
    placed: u128,
    /// By sample.
    owner: Vec<Option<(u32, u8)>>,
}

impl<'a> Placing<'a> {
    fn new(setting: &'a Setting<'a>, uses: &[FirstUse], rooms: Rooms) -> Self {
        let room = (0..setting.workers()).map(|worker| u128::from(rooms.left(worker))).sum();
        let used = uses.iter().map(|first| u128::from(setting.size(first.sample))).sum();
        let owner = vec![None; setting.workload.sizes.len()];
        Self { setting, rooms, room, used, walked: 0, placed: 0, owner }
    }

    /// Gives a sample an owner if the owned ones have fallen behind their share of what was walked over so far.
    fn spread(&mut self, sample: u32, wanted: u32) -> Option<u32> {
        let bytes = u128::from(self.setting.size(sample));
        self.walked += bytes;
        let due = self.room >= self.used || (self.placed + bytes) * self.used <= self.walked * self.room;
        if due { self.place(sample, wanted) } else { None }
    }

    /// Gives a sample an owner if there is room anywhere.
    fn place(&mut self, sample: u32, wanted: u32) -> Option<u32> {
        let bytes = self.setting.size(sample);
        let mut worker = wanted;
        let mut class = self.rooms.take_any(wanted as usize, bytes);
        if class.is_none() {
            worker = (0..self.setting.workers() as u32)
                .max_by_key(|&worker| (self.rooms.left(worker as usize), std::cmp::Reverse(worker)))?;
            class = self.rooms.take_any(worker as usize, bytes);
        }
        let class = class?;
        self.placed += u128::from(bytes);
        self.owner[sample as usize] = Some((worker, class as u8));
        Some(worker)
    }

    /// Uses what room spreading left over; `wanted` is in the order of first use.
    fn finish(mut self, wanted: &[(u32, u32)]) -> Placement {
        for &(sample, worker) in wanted {
            if self.owner[sample as usize].is_none() && self.room > self.placed {
                self.place(sample, worker);
            }
        }
        let owned: Vec<Owned> = wanted
            .iter()
            .filter_map(|&(sample, _)| {
                let (worker, class) = self.owner[sample as usize]?;
                Some(Owned { sample, worker, class })
            })
            .collect();
        Placement { complete: owned.len() == wanted.len(), owned, rooms: self.rooms }
    }
}

/// Deals every global batch by ownership, and finds the owners as it goes: a sample's first reader, in the order of
/// first use. Shares keep their number.
pub(crate) fn deal_by_ownership(setting: &Setting<'_>, rooms: Rooms) -> (Placement, Streams) {
    let dealt = &setting.workload.streams;
    let (shape, workers) = (dealt.shape, setting.workers());
    let uses = first_uses(dealt, setting.workload.sizes.len());
    let mut placing = Placing::new(setting, &uses, rooms);
    let mut known = vec![false; setting.workload.sizes.len()];
    let mut ids: Vec<Vec<u32>> = dealt.ids.iter().map(|ids| Vec::with_capacity(ids.len())).collect();
    let mut wanted = Vec::with_capacity(uses.len());
    let mut at = vec![0; workers];
    for batch in 0..shape.batches() {
        let share = |worker: usize| shape.share(worker, batch).len();
        // Those that nobody owns, with the worker that they would have without any ownership.
        let mut free = Vec::new();
        let mut left_over = Vec::new();
        let mut room: Vec<usize> = (0..workers).map(share).collect();
        for (worker, at) in at.iter_mut().enumerate() {
            for &sample in &dealt.ids[worker][*at..*at + share(worker)] {
                match placing.owner[sample as usize] {
                    None => free.push((sample, worker)),
                    Some((owner, _)) if room[owner as usize] > 0 => {
                        room[owner as usize] -= 1;
                        ids[owner as usize].push(sample);
                    }
                    Some(_) => left_over.push(sample),
                }
            }
            *at += share(worker);
        }
        let mut next = 0;
        let mut unowned = Vec::new();
        for (sample, dealt_to) in free {
            if room[dealt_to] > 0 {
                room[dealt_to] -= 1;
                ids[dealt_to].push(sample);
                unowned.push((sample, dealt_to));
            } else {
                left_over.push(sample);
            }
        }
        for sample in left_over {
            while room[next] == 0 {
                next += 1;
            }
            room[next] -= 1;
            ids[next].push(sample);
            if placing.owner[sample as usize].is_none() {
                unowned.push((sample, next));
            }
        }
        for (sample, worker) in unowned {
            if !std::mem::replace(&mut known[sample as usize], true) {
                wanted.push((sample, worker as u32));
                placing.spread(sample, worker as u32);
            }
        }
    }
    let placement = placing.finish(&wanted);
    (placement, Streams { ids, shape })
}
