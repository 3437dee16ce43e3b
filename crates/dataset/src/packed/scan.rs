//! Scans the members of a shard, from several positions at once.
//!
//! A format is a [`ShardParser`]. From the bytes at a position it returns the element there and the
//! next position. It does no I/O, so that fuzzers and tests feed it as an origin does.
//!
//! The headers of a shard are a chain, each found through the one before it. A store with 10 ms
//! latency delivers 100 headers/s. So a large shard of small members is scanned from several
//! positions. Each *guesses* a header by its form and continues from there. A guess counts only if
//! the scan before it arrives at exactly that position. Otherwise its range is scanned again. So
//! the result is that of one scan, whatever the data contain (a tar in a tar looks like headers,
//! too). The price is the bytes that are searched for a first header, less than a thousandth of the
//! shard.

use std::borrow::Cow;

use foreread_formats::FormatError;
use foreread_tier::Object;
use futures::future::join_all;

use super::reader::{ShardReader, ShardStore};
use super::rows::TextList;

/// The parser's result at a position. Positions are offsets in the shard.
#[derive(Debug)]
pub(crate) enum ParseStep<'a, N = ()> {
    /// `bytes` are too few: the parser needs this many from `at` on. The call is repeated with
    /// them, so the parser's state must be unchanged. Another `Needs` at this position must be
    /// larger.
    Needs(u64),
    /// No member: a header before one, padding, or a part of the end mark. The parser continues at
    /// this position. Only members and skipped ones are counted.
    Go(u64),
    /// A member that is not a sample. It is counted as skipped. The parser continues at this
    /// position.
    Skip(u64),
    /// A member, and the next position.
    ShardMember(ShardMember<'a, N>, u64),
    /// The end of the shard.
    End,
}

/// One member of a shard.
#[derive(Debug)]
pub(crate) struct ShardMember<'a, N = ()> {
    /// Empty if members have no names.
    pub(crate) name: Cow<'a, str>,
    /// The offset of the data in the shard.
    pub(crate) start: u64,
    /// The length of the data.
    pub(crate) length: u64,
    /// The checksum of the data. 0 if the format has none.
    pub(crate) crc32c: u32,
    /// Other data of it that the parser has read.
    pub(crate) note: N,
}

/// A packed format. A scan begins with the default value.
pub(crate) trait ShardParser: Default + Send {
    /// The kept data of a member in addition to its name, place and checksum.
    type Note: Clone + Default + Send + Sync;

    /// Parses the element at `at` of a shard of `size` bytes. `bytes` are the buffered bytes from
    /// there, possibly none. The next position is greater than `at` and at most `size`. The scan
    /// continues until [`ParseStep::End`] or an error, so the parser is called at `size`, too.
    ///
    /// # Errors
    /// The shard is damaged or truncated, or has a feature that is not supported.
    fn step<'a>(
        &mut self,
        at: u64,
        bytes: &'a [u8],
        size: u64,
    ) -> Result<ParseStep<'a, Self::Note>, FormatError>;

    /// Whether the next element does not depend on the elements before it. Scans are joined only
    /// at such positions.
    fn is_fresh(&self) -> bool;

    /// Whether all later elements depend on an earlier one, so that the shard must be scanned in
    /// sequence.
    fn is_bound(&self) -> bool {
        false
    }

    /// The first offset in `bytes` at which a fresh parser could plausibly start. A wrong one
    /// costs time and not correctness. `None` everywhere means that no scan starts in the middle:
    /// right for headers that cannot be recognized.
    fn find(bytes: &[u8]) -> Option<usize>;
}

/// The members found, in their order.
#[derive(Debug, Default)]
pub(crate) struct MemberScan<N = ()> {
    /// The members' names.
    pub(crate) names: TextList,
    /// Start, length, checksum.
    pub(crate) places: Vec<(u64, u64, u32)>,
    /// The note of each member.
    pub(crate) notes: Vec<N>,
    /// The number of [skipped](ParseStep::Skip) members.
    pub(crate) skipped: u64,
}

impl<N> MemberScan<N> {
    fn push(&mut self, member: ShardMember<'_, N>) {
        self.names.push(&member.name);
        self.notes.push(member.note);
        self.places.push((member.start, member.length, member.crc32c));
    }
}

/// The state of a scan.
#[derive(Debug, Default)]
struct ParallelScan<N> {
    members: MemberScan<N>,
    /// Positions at which the parser was fresh, with the numbers of members and skipped elements
    /// found by then. Only guesses have them.
    marks: Vec<(u64, usize, u64)>,
    /// The position at which the scan is fresh. `None` at the end.
    reached: Option<u64>,
    bound: bool,
}

impl<N: Clone + Default> ParallelScan<N> {
    fn starting_at(at: u64) -> Self {
        Self { reached: Some(at), ..Self::default() }
    }

    /// Continues until the parser is fresh at `until` or beyond, or has found `most` members.
    async fn on<M: ShardParser<Note = N>>(
        &mut self,
        reader: &mut ShardReader<'_>,
        size: u64,
        until: u64,
        most: usize,
        marking: bool,
    ) -> Result<(), FormatError> {
        let mut machine = M::default();
        let Some(mut at) = self.reached else { return Ok(()) };
        let enough = self.members.places.len().saturating_add(most);
        let mut needs = 0;
        loop {
            if machine.is_fresh() && needs == 0 {
                self.reached = Some(at);
                if at >= until && at > 0 || self.members.places.len() >= enough {
                    return Ok(());
                }
                if marking {
                    self.marks.push((at, self.members.places.len(), self.members.skipped));
                }
            }
            let bytes = match needs {
                0 => reader.use_at_hand(at),
                least => reader.need(at, least).await?,
            };
            let step = machine.step(at, bytes, size)?;
            self.bound |= machine.is_bound();
            let next = match step {
                ParseStep::Needs(least) if least > needs => {
                    needs = least;
                    continue;
                }
                ParseStep::Needs(_) => return Err(FormatError::damaged(at, "it makes no sense")),
                ParseStep::Go(next) => next,
                ParseStep::Skip(next) => {
                    self.members.skipped += 1;
                    next
                }
                ParseStep::ShardMember(member, next) => {
                    self.members.push(member);
                    next
                }
                ParseStep::End => {
                    self.reached = None;
                    return Ok(());
                }
            };
            if next <= at {
                return Err(FormatError::damaged(at, "it goes round in circles"));
            }
            if next > size {
                return Err(FormatError::cut_short(at, size));
            }
            (at, needs) = (next, 0);
        }
    }

    /// Adopts the members that `guess` found from this scan's position on. `false` if the guess was
    /// never fresh at that position.
    fn join(&mut self, guess: &Self) -> bool {
        let Some(at) = self.reached else { return true };
        let Ok(mark) = guess.marks.binary_search_by_key(&at, |&(place, ..)| place) else { return false };
        let (_, members, skipped) = guess.marks[mark];
        for member in members..guess.members.places.len() {
            self.members.names.push(guess.members.names.get(member));
        }
        self.members.places.extend_from_slice(&guess.members.places[members..]);
        self.members.notes.extend_from_slice(&guess.members.notes[members..]);
        self.members.skipped += guess.members.skipped - skipped;
        self.reached = guess.reached;
        self.bound |= guess.bound;
        true
    }
}

/// The number of members that determine the average distance of headers.
const FIRST: usize = 64;
/// The number of bytes per step in which the first header is searched.
const LOOK: u64 = 64 << 10;
/// At most one byte in this many of a shard may be searched.
const SHARE: u64 = 1000;
/// Fewer guesses are not worth the bytes that are searched for them.
const FEWEST: u64 = 4;

/// All members of a shard, found by at most `places` parallel scans.
pub(crate) async fn members<M: ShardParser>(
    store: &ShardStore<'_>,
    object: &Object,
    places: usize,
) -> Result<MemberScan<M::Note>, FormatError> {
    let size = object.size;
    let mut reader = ShardReader::new(store, object);
    let mut whole = ParallelScan::starting_at(0);
    whole.on::<M>(&mut reader, size, u64::MAX, FIRST, false).await?;
    let (Some(at), false) = (whole.reached, whole.bound) else {
        return rest::<M>(reader, size, whole).await;
    };
    // A guess searches half the distance between two headers on average.
    let stride = at / (whole.members.places.len() as u64 + whole.members.skipped).max(1);
    let worth = (size - at) / LOOK.max(stride).saturating_mul(SHARE);
    let guesses = worth.min(places.saturating_sub(1) as u64);
    if guesses < FEWEST {
        return rest::<M>(reader, size, whole).await;
    }
    let cut = |part: u64| at + ((size - at) as u128 * u128::from(part) / u128::from(guesses + 1)) as u64;
    let first = cut(1);
    let reach = stride.saturating_mul(4);
    let guessing =
        join_all((1..=guesses).map(|part| guess::<M>(store, object, cut(part), cut(part + 1), reach)));
    let (walked, found) =
        futures::future::join(whole.on::<M>(&mut reader, size, first, usize::MAX, false), guessing).await;
    walked?;
    for (guess, part) in found.iter().zip(1..) {
        let end = cut(part + 1);
        while whole.reached.is_some_and(|at| at < end) && !whole.join(guess) {
            let next = whole.reached.map_or(u64::MAX, |at| at + 1);
            whole.on::<M>(&mut reader, size, next, usize::MAX, false).await?;
        }
    }
    if whole.bound {
        // One scan met an element that applies to all later members. The other scans did not see
        // it.
        return rest::<M>(reader, size, ParallelScan::starting_at(0)).await;
    }
    rest::<M>(reader, size, whole).await
}

/// Scans to the end.
async fn rest<M: ShardParser>(
    mut reader: ShardReader<'_>,
    size: u64,
    walk: ParallelScan<M::Note>,
) -> Result<MemberScan<M::Note>, FormatError> {
    // A bound parser must see the whole shard.
    let mut walk = if walk.bound { ParallelScan::starting_at(0) } else { walk };
    walk.on::<M>(&mut reader, size, u64::MAX, usize::MAX, false).await?;
    Ok(walk.members)
}

/// A scan from the first position in `from..until` that looks like a header, within the next
/// `reach` bytes. Its errors are ignored, because the scan that arrives here reports them.
async fn guess<M: ShardParser>(
    store: &ShardStore<'_>,
    object: &Object,
    from: u64,
    until: u64,
    reach: u64,
) -> ParallelScan<M::Note> {
    let mut at = from.next_multiple_of(512);
    let last = at.saturating_add(reach).min(until);
    while at < last {
        let length = LOOK.min(object.size - at);
        let Ok(bytes) = store.read(object, at, length).await else { break };
        if let Some(place) = M::find(&bytes) {
            let mut walk = ParallelScan::starting_at(at + place as u64);
            let mut reader = ShardReader::new(store, object);
            // The members found before the error are as reliable as the others.
            let _ = walk.on::<M>(&mut reader, object.size, until, usize::MAX, true).await;
            return walk;
        }
        at += LOOK - 512; // a header may straddle the boundary
    }
    ParallelScan::starting_at(until)
}
