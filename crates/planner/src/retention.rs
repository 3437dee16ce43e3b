//! Whether kept samples stay, or are evicted for samples that are used sooner.
//!
//! # The decision, and its price
//!
//! There are two rules. With [`Retention::Keep`], placed samples stay for the whole run. If each
//! sample is used once per epoch, no policy hits more often. A hit must survive an epoch boundary,
//! and at most the capacity does. Nothing is written after its first use. With
//! [`Retention::Threshold`], a sample stays after its use if its next use is near. This serves
//! samples that recur irregularly: drawn with replacement or by weight, or one rank's share of a
//! shuffle without peers. It is within 0.4 points of Belady's MIN and needs only the next use of
//! the current sample. MIN would have to compare the next uses of all residents.
//!
//! The threshold, `horizon`, is where the expected occupancy meets the capacity (Little's law). A
//! use whose sample stays for `gap` ticks occupies `footprint * gap` byte-ticks. The sum over all
//! uses with `gap <= horizon` is the occupancy times the length of the stream. For uniform draws
//! with replacement, in units of the dataset's size, that is `f = 1 - (1 + L) e^-L`, with `1 -
//! e^-L` hits. The gaps come from the run's own stream, so no distribution is assumed.
//!
//! The price is one walk over a part of the stream. The rule is also the same from the first tick
//! to the last, though space is left at both ends of a run. Gaps overlap more at some times than at
//! others, such as a few ranks' shares of shuffled epochs at the epoch boundaries. At those times
//! the cache is full and refuses samples. With half of a share cached, nearly 4 points of MIN are
//! lost with 2 ranks, under 1 with 4, and a quarter with 16.

use foreread_oracle::{Phase, Run};
use foreread_types::{DatasetId, Footprint, KeyMap, SampleId, SampleKey, Sizes, Tick, mix};

use crate::demand::{chunks, table};
use crate::error::{PlanError, PlanReason};

/// The fate of a kept sample after a use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Retention {
    /// It stays. Never evict.
    Keep,
    /// It stays if its next use is near. Otherwise it is evicted.
    Threshold {
        /// The maximum distance of the next use, in ticks.
        horizon: u64,
    },
}

impl Retention {
    /// Whether a placed sample stays after its use at `now`, with its next use at `next`.
    ///
    /// ```
    /// use foreread_planner::Retention;
    /// use foreread_types::Tick;
    /// let rule = Retention::Threshold { horizon: 10 };
    /// assert!(rule.keeps(Tick(5), Some(Tick(15))));
    /// assert!(!rule.keeps(Tick(5), Some(Tick(16))) && !rule.keeps(Tick(5), None));
    /// assert!(Retention::Keep.keeps(Tick(5), None));
    /// ```
    pub fn keeps(&self, now: Tick, next: Option<Tick>) -> bool {
        match self {
            Self::Keep => true,
            Self::Threshold { horizon } => next.is_some_and(|next| next.0.saturating_sub(now.0) <= *horizon),
        }
    }
}

/// The part of a stream that is analysed: this many ticks, or [`WINDOW_EPOCHS`] if they are more,
/// up to [`MAX_WINDOW`]. Gaps of more than 3/8 of it are only partly seen.
const WINDOW: u64 = 1 << 22;
const WINDOW_EPOCHS: u64 = 8;
const MAX_WINDOW: u64 = 1 << 26;

/// Uses that are analysed where each sample's uses are computed without a walk. It takes some
/// tenths of a second for a few ranks. With many of them a walk is shorter.
const COMPUTED_USES: u64 = 1 << 20;

/// The forecast of a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThresholdForecast {
    pub(crate) horizon: u64,
    /// Bytes of the uses that hit, and of all uses, in the analysed part of the stream.
    pub(crate) hit_bytes: u128,
    pub(crate) bytes: u128,
    /// The maximum used space in bytes at that horizon.
    pub(crate) occupancy: u64,
}

/// The horizon at which a run's expected occupancy is `capacity`, and its savings.
///
/// `sizes` are those of the run's datasets.
pub(crate) fn forecast(
    run: &Run,
    sizes: &[Sizes],
    capacity: u64,
    footprint: Footprint,
) -> Result<ThresholdForecast, PlanError> {
    let epoch = run.passes().take(2 * run.schedule().phases.len()).map(|pass| pass.samples).sum::<u64>() / 2;
    let window = WINDOW.max(epoch.saturating_mul(WINDOW_EPOCHS).min(MAX_WINDOW)).min(run.samples());
    let stride = window.div_ceil(COMPUTED_USES);
    let sample = match SampledUses::look_ups(run, window, stride).is_some_and(|cost| cost < window) {
        true => SampledUses::computed(run, sizes, window, stride, footprint)?,
        false => SampledUses::of(run, sizes, window, window.div_ceil(WINDOW), footprint)?,
    };
    let horizon = sample.horizon(capacity);
    Ok(sample.simulate(capacity, horizon))
}

/// The uses of some of a run's samples in the first ticks of its stream.
///
/// In windows longer than [`WINDOW`], one sample in `stride` is analysed with all its uses. It is
/// chosen by a hash of its key. A cache of a `stride`-th of the capacity represents the whole
/// (spatial sampling: Waldspurger et al., "Efficient MRC construction with SHARDS", FAST 2015,
/// sections 2 and 3).
struct SampledUses {
    uses: Vec<SampledUse>,
    window: u64,
    stride: u64,
    /// Whether the window is the whole run.
    whole: bool,
}

/// The number, from 1, of each sample's last use.
enum LastUses {
    /// By dataset, by sample.
    Tables(Vec<Vec<u32>>),
    /// For a window that contains few of the samples.
    Map(KeyMap<u32>),
}

impl LastUses {
    fn of(sizes: &[Sizes], window: u64) -> Result<Self, PlanError> {
        if sizes.iter().map(Sizes::len).fold(0, u64::saturating_add) > window.max(WINDOW) {
            return Ok(Self::Map(KeyMap::default()));
        }
        let tables = sizes.iter().zip(0..).map(|(sizes, dataset)| {
            let (dataset, samples) = (DatasetId(dataset), sizes.len());
            table(samples).ok_or(PlanReason::Memory { dataset, samples })
        });
        Ok(Self::Tables(tables.collect::<Result<_, _>>()?))
    }

    fn of_sample(&mut self, key: SampleKey) -> &mut u32 {
        match self {
            Self::Tables(tables) => &mut tables[key.dataset.0 as usize][key.id.0 as usize],
            Self::Map(map) => map.entry(key).or_default(),
        }
    }
}

/// One use. Windows are short enough for ticks of 32 bits.
struct SampledUse {
    tick: u32,
    /// The tick of the next use. `NEVER` if the window has none.
    next: u32,
    bytes: u64,
    footprint: u64,
}

const NEVER: u32 = u32::MAX;

/// Adds a use of the sample whose last use has the number `last`, from 1.
fn add_use(uses: &mut Vec<SampledUse>, last: &mut u32, tick: u32, bytes: u64, footprint: Footprint) {
    if let Some(before) = last.checked_sub(1) {
        uses[before as usize].next = tick;
    }
    uses.push(SampledUse { tick, next: NEVER, bytes, footprint: footprint.of(bytes) });
    *last = uses.len() as u32;
}

impl SampledUses {
    fn of(
        run: &Run,
        sizes: &[Sizes],
        window: u64,
        stride: u64,
        footprint: Footprint,
    ) -> Result<Self, PlanError> {
        let stride = stride.max(1);
        let mut uses: Vec<SampledUse> = Vec::new();
        let mut lasts = LastUses::of(sizes, window)?;
        let mut tick = 0;
        for pass in run.passes() {
            if u64::from(tick) >= window {
                break;
            }
            let dataset = pass.dataset;
            let sizes = &sizes[dataset.0 as usize];
            let stream = run.stream(&pass)?;
            let samples = pass.samples.min(window - u64::from(tick));
            chunks(
                0,
                samples,
                |from, out| stream.fill(from, out),
                |id: SampleId| {
                    let key = SampleKey::new(dataset, id);
                    if stride == 1 || mixed(key).is_multiple_of(stride) {
                        add_use(&mut uses, lasts.of_sample(key), tick, sizes.bytes(id), footprint);
                    }
                    tick += 1;
                },
            );
        }
        Ok(Self { uses, window, stride, whole: window == run.samples() })
    }

    /// The number of look-ups of [`computed`](Self::computed). `None` for windows that are walked
    /// in any case, and for orders whose inverse is not computed.
    fn look_ups(run: &Run, window: u64, stride: u64) -> Option<u64> {
        let phases = &run.schedule().phases;
        let is_computed = |phase: &Phase| phase.sampler.is_computed() && phase.sampler.is_distinct();
        if window <= WINDOW || !phases.iter().all(is_computed) {
            return None;
        }
        let (mut cost, mut at) = (0_u64, 0_u64);
        for pass in run.passes() {
            if at >= window {
                break;
            }
            at = at.saturating_add(pass.samples.max(1));
            cost = cost.saturating_add(phases[pass.phase as usize].sampler.population() / stride.max(1));
        }
        Some(cost)
    }

    /// As `of`, for orders whose inverse is computed: the uses of one sample in `stride` are looked
    /// up instead of searched for. Such an order has each sample at most once.
    fn computed(
        run: &Run,
        sizes: &[Sizes],
        window: u64,
        stride: u64,
        footprint: Footprint,
    ) -> Result<Self, PlanError> {
        let stride = stride.max(1);
        let mut found: Vec<(u32, SampleKey)> = Vec::new();
        let mut first = 0;
        for pass in run.passes() {
            if first >= window {
                break;
            }
            let stream = run.stream(&pass)?;
            let key = |id| SampleKey::new(pass.dataset, SampleId(id));
            let ids = 0..sizes[pass.dataset.0 as usize].len();
            let mut find = |key: SampleKey| {
                let tick = stream.next_use(key.id, 0).map(|at| first + at).filter(|tick| *tick < window);
                found.extend(tick.map(|tick| (tick as u32, key)));
            };
            // In an order that repeats, all samples at a distance may be one rank's.
            if run.schedule().phases[pass.phase as usize].sampler.repeats() {
                ids.map(key).filter(|key| mixed(*key).is_multiple_of(stride)).for_each(&mut find);
            } else {
                ids.step_by(stride as usize).map(key).for_each(&mut find);
            }
            first += pass.samples;
        }
        found.sort_unstable();
        let mut lasts = LastUses::Map(KeyMap::default());
        let mut uses: Vec<SampledUse> = Vec::with_capacity(found.len());
        for (tick, key) in found {
            let bytes = sizes[key.dataset.0 as usize].bytes(key.id);
            add_use(&mut uses, lasts.of_sample(key), tick, bytes, footprint);
        }
        Ok(Self { uses, window, stride, whole: window == run.samples() })
    }

    /// The middle quarter of the window, where occupancy is measured. Near the ends, some gaps
    /// would be missed because they begin or end outside. If the window is the whole run, nothing
    /// lies outside, and this is its plateau.
    fn middle(&self) -> (u64, u64) {
        let end = self.window / 8 * 3;
        (end, self.window - end)
    }

    fn horizon(&self, capacity: u64) -> u64 {
        let (from, to) = self.middle();
        let mut gaps: Vec<(u32, u64)> = Vec::new();
        for used in self.uses.iter().filter(|used| used.next != NEVER) {
            let overlap = u64::from(used.next).min(to).saturating_sub(u64::from(used.tick).max(from));
            if overlap > 0 {
                gaps.push((used.next - used.tick, overlap.saturating_mul(used.footprint)));
            }
        }
        horizon(&mut gaps, u128::from(capacity) * u128::from(to - from) / u128::from(self.stride))
    }

    /// Simulates the rule in a cache that refuses samples that do not fit.
    fn simulate(&self, capacity: u64, horizon: u64) -> ThresholdForecast {
        let (from, to) = if self.whole { (0, self.window) } else { self.middle() };
        let capacity = capacity / self.stride;
        // By tick: whether the sample of the use is still resident. Uses are in order of their
        // ticks.
        let mut due = vec![false; self.window as usize + 1];
        let (mut hit_bytes, mut bytes) = (0u128, 0u128);
        let (mut occupied, mut most) = (0u64, 0u64);
        for used in &self.uses {
            let hit = due[used.tick as usize];
            if hit {
                occupied -= used.footprint;
            }
            if (from..to).contains(&used.tick.into()) {
                bytes += u128::from(used.bytes);
                hit_bytes += if hit { u128::from(used.bytes) } else { 0 };
            }
            let near = used.next != NEVER && u64::from(used.next - used.tick) <= horizon;
            if near && used.footprint <= capacity - occupied {
                due[used.next as usize] = true;
                occupied += used.footprint;
                most = most.max(occupied);
            }
        }
        ThresholdForecast { horizon, hit_bytes, bytes, occupancy: most.saturating_mul(self.stride) }
    }
}

/// The largest horizon at which the areas (space times ticks) of all gaps within it sum up to at
/// most `room`. `u64::MAX` if all gaps together do not exceed it. Sorts the gaps.
fn horizon(gaps: &mut [(u32, u64)], room: u128) -> u64 {
    gaps.sort_unstable();
    let mut area = 0u128;
    for equal in gaps.chunk_by(|a, b| a.0 == b.0) {
        area += equal.iter().map(|gap| u128::from(gap.1)).sum::<u128>();
        if area > room {
            // All shorter gaps fit.
            return u64::from(equal[0].0 - 1);
        }
    }
    u64::MAX
}

/// A hash of a key, independent of the sample's position in its dataset.
const fn mixed(key: SampleKey) -> u64 {
    mix(key.id.0 ^ ((key.dataset.0 as u64) << 40))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use foreread_oracle::{Deal, Feistel, PhaseKind, Schedule, Weighted};
    use foreread_types::{DatasetId, Rank};

    use super::*;

    #[test]
    fn horizon_is_the_largest_that_fits() {
        let gaps = [(7, 10), (3, 5), (3, 5), (9, 1)];
        let at = |room| horizon(&mut gaps.to_vec(), room);
        assert_eq!([at(0), at(9), at(10), at(19), at(20), at(21)], [2, 2, 6, 6, 8, u64::MAX]);
        assert_eq!(horizon(&mut [], 0), u64::MAX);
    }

    fn drawn(samples: u64, epochs: u64) -> Run {
        let sampler = Weighted::new(&vec![1.0; samples as usize], samples, 1).unwrap();
        let (kind, dataset) = (PhaseKind::Train, DatasetId(0));
        let phase = Phase { kind, dataset, sampler: Arc::new(sampler), batch_size: None, drop_last: false };
        Run::new(Arc::new(Schedule::new(epochs, vec![phase]).unwrap()), Deal::Torch, 1, Rank(0)).unwrap()
    }

    #[test]
    fn sampled_forecast_is_close_to_the_full_one() {
        let samples = 40_000;
        let (run, sizes) = (drawn(samples, 8), [Sizes::uniform(samples, 10)]);
        let capacity = samples * 10 / 2;
        let of = |stride| {
            let sample = SampledUses::of(&run, &sizes, samples * 8, stride, Footprint::EXACT).unwrap();
            sample.simulate(capacity, sample.horizon(capacity))
        };
        let all = of(1);
        for stride in [2, 8] {
            let some = of(stride);
            assert!(some.horizon.abs_diff(all.horizon) < all.horizon / 20, "{some:?} {all:?}");
            let hits = |forecast: ThresholdForecast| forecast.hit_bytes as f64 / forecast.bytes as f64;
            assert!((hits(some) - hits(all)).abs() < 0.02, "{some:?} {all:?}");
            assert!(some.occupancy.abs_diff(all.occupancy) < all.occupancy / 20, "{some:?} {all:?}");
        }
    }

    /// Two ranks over a hundred million windows took four seconds per forecast.
    #[test]
    fn uses_that_are_computed_are_those_of_a_walk() {
        let samples = 40_000;
        let sizes = [Sizes::uniform(samples, 10)];
        let (kind, dataset, capacity) = (PhaseKind::Train, DatasetId(0), samples * 10 / 9);
        let sampler = Arc::new(Feistel::new(samples, 1).unwrap());
        let phase = Phase { kind, dataset, sampler, batch_size: Some(7), drop_last: true };
        let run =
            Run::new(Arc::new(Schedule::new(20, vec![phase]).unwrap()), Deal::Torch, 3, Rank(1)).unwrap();
        for window in [run.samples(), run.samples() / 3] {
            let all = SampledUses::of(&run, &sizes, window, 1, Footprint::EXACT).unwrap();
            let computed =
                |stride| SampledUses::computed(&run, &sizes, window, stride, Footprint::EXACT).unwrap();
            let of = |uses: &SampledUses| -> Vec<(u32, u32)> {
                uses.uses.iter().map(|used| (used.tick, used.next)).collect()
            };
            assert_eq!(of(&computed(1)), of(&all));
            let forecast = |sample: SampledUses| sample.simulate(capacity, sample.horizon(capacity));
            let (some, all) = (forecast(computed(8)), forecast(all));
            assert!(some.horizon.abs_diff(all.horizon) < all.horizon / 10, "{some:?} {all:?}");
            let hits = |forecast: ThresholdForecast| forecast.hit_bytes as f64 / forecast.bytes as f64;
            assert!((hits(some) - hits(all)).abs() < 0.02, "{some:?} {all:?}");
        }
    }

    /// The uses of samples that the rule keeps, where all have one byte.
    fn hits(stream: &[SampleId], capacity: u64, horizon: u64) -> u128 {
        let (mut next, mut ahead) = (vec![None; stream.len()], std::collections::HashMap::new());
        for (at, id) in stream.iter().enumerate().rev() {
            next[at] = ahead.insert(*id, Tick(at as u64));
        }
        let (mut kept, mut hits) = (std::collections::HashSet::new(), 0);
        for (at, id) in stream.iter().enumerate() {
            hits += u128::from(kept.remove(id));
            let is_kept =
                next[at].is_some() && Retention::Threshold { horizon }.keeps(Tick(at as u64), next[at]);
            if is_kept && (kept.len() as u64) < capacity {
                kept.insert(*id);
            }
        }
        hits
    }

    #[test]
    fn forecast_equals_the_simulated_rule() {
        let samples = 5000;
        let (run, sizes) = (drawn(samples, 10), [Sizes::uniform(samples, 1)]);
        let mut stream = Vec::new();
        for pass in run.passes() {
            let of_pass = run.stream(&pass).unwrap();
            stream.extend((0..of_pass.len()).map(|index| of_pass.at(index)));
        }
        for capacity in [0, 1, 1000, 3000, 5000] {
            let forecast = forecast(&run, &sizes, capacity, Footprint::EXACT).unwrap();
            let hits = hits(&stream, capacity, forecast.horizon);
            assert_eq!((forecast.hit_bytes, forecast.bytes), (hits, stream.len() as u128));
            assert!(forecast.occupancy <= capacity);
        }
    }
}
