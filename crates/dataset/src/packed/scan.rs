//! Scanning the members of a shard, from several positions at once.
//!
//! A format is a [`ShardParser`]: from the bytes at a position it returns what is there and the
//! next position. It does no I/O, so that fuzzers and tests feed it as an origin does.
//!
//! The headers of a shard are a chain, each found through the one before it. A store with 10 ms
//! latency delivers a hundred a second. So a large shard of small members is scanned from several
//! positions. Each *guesses* a header by its form and continues from there. A guess counts only if
//! the scan before it arrives at exactly that position; the rest is scanned again. So the result is
//! that of one scan, whatever the data contain (a tar in a tar looks like headers, too). The price
//! is the bytes that are searched for a first header, less than a thousandth of the shard.

use std::borrow::Cow;

use foreread_tier::Object;
use futures::future::join_all;

use super::reader::{ShardReader, ShardStore};
use super::rows::TextList;
use super::shard_error::ShardError;

/// What a machine says of the place where it stands.
#[derive(Debug)]
pub(crate) enum ParseStep<'a> {
    /// It must see so many bytes of it first.
    Needs(u64),
    /// No member; it goes on there.
    Go(u64),
    /// Something that is no sample; it goes on there.
    Skip(u64),
    /// A member; it goes on there.
    ShardMember(ShardMember<'a>, u64),
    /// The end.
    End,
}

/// One member of a shard.
#[derive(Debug)]
pub(crate) struct ShardMember<'a> {
    pub(crate) name: Cow<'a, str>,
    pub(crate) start: u64,
    pub(crate) length: u64,
    /// Of the data, where the format has it.
    pub(crate) crc32c: u32,
}

/// A packed format.
pub(crate) trait ShardParser: Default + Send {
    /// Says what is at `at` of a shard of `size` bytes, of which `bytes` are the next that are at
    /// hand. Where it sends the walk is always further on.
    fn step<'a>(&mut self, at: u64, bytes: &'a [u8], size: u64) -> Result<ParseStep<'a>, ShardError>;

    /// Whether what comes next does not depend on what came before.
    fn is_fresh(&self) -> bool;

    /// Whether something came before on which all that comes later depends, so that it must be
    /// walked in one go.
    fn is_bound(&self) -> bool {
        false
    }

    /// The first place in `bytes` that looks as if a fresh machine could stand there.
    fn find(bytes: &[u8]) -> Option<usize>;
}

/// MemberScan that were found, in their order.
#[derive(Debug, Default)]
pub(crate) struct MemberScan {
    pub(crate) names: TextList,
    /// Start, length, checksum.
    pub(crate) places: Vec<(u64, u64, u32)>,
    pub(crate) skipped: u64,
}

impl MemberScan {
    fn push(&mut self, member: &ShardMember<'_>) {
        self.names.push(&member.name);
        self.places.push((member.start, member.length, member.crc32c));
    }
}

/// A walk so far.
#[derive(Debug, Default)]
struct ParallelScan {
    members: MemberScan,
    /// Where it stood fresh, with the members and the others that it had found by then; only of
    /// guesses.
    marks: Vec<(u64, usize, u64)>,
    /// Where it stands, fresh; `None` at the end.
    reached: Option<u64>,
    bound: bool,
}

impl ParallelScan {
    fn starting_at(at: u64) -> Self {
        Self { reached: Some(at), ..Self::default() }
    }

    /// Goes on until it stands fresh at `until` or beyond, or has found `most` members.
    async fn on<M: ShardParser>(
        &mut self,
        reader: &mut ShardReader<'_>,
        size: u64,
        until: u64,
        most: usize,
        marking: bool,
    ) -> Result<(), ShardError> {
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
                ParseStep::Needs(_) => return Err(ShardError::damaged(at, "it makes no sense")),
                ParseStep::Go(next) => next,
                ParseStep::Skip(next) => {
                    self.members.skipped += 1;
                    next
                }
                ParseStep::ShardMember(member, next) => {
                    self.members.push(&member);
                    next
                }
                ParseStep::End => {
                    self.reached = None;
                    return Ok(());
                }
            };
            if next <= at {
                return Err(ShardError::damaged(at, "it goes round in circles"));
            }
            if next > size {
                return Err(ShardError::cut_short(at, size));
            }
            (at, needs) = (next, 0);
        }
    }

    /// Takes over what `guess` found from where this walk stands on; `false` if it never stood
    /// there.
    fn join(&mut self, guess: &ParallelScan) -> bool {
        let Some(at) = self.reached else { return true };
        let Ok(mark) = guess.marks.binary_search_by_key(&at, |&(place, ..)| place) else { return false };
        let (_, members, skipped) = guess.marks[mark];
        for member in members..guess.members.places.len() {
            self.members.names.push(guess.members.names.get(member));
        }
        self.members.places.extend_from_slice(&guess.members.places[members..]);
        self.members.skipped += guess.members.skipped - skipped;
        self.reached = guess.reached;
        self.bound |= guess.bound;
        true
    }
}

/// How many members say how far apart heads are.
const FIRST: usize = 64;
/// The bytes that are looked through for a first head, at a time.
const LOOK: u64 = 64 << 10;
/// The share of a shard that may be looked through.
const SHARE: u64 = 1000;
/// Fewer guesses than these are not worth what they look through.
const FEWEST: u64 = 4;

/// All members of a shard, found by at most `places` walks at once.
pub(crate) async fn members<M: ShardParser>(
    store: &ShardStore<'_>,
    object: &Object,
    places: usize,
) -> Result<MemberScan, ShardError> {
    let size = object.size;
    let mut reader = ShardReader::new(store, object);
    let mut whole = ParallelScan::starting_at(0);
    whole.on::<M>(&mut reader, size, u64::MAX, FIRST, false).await?;
    let (Some(at), false) = (whole.reached, whole.bound) else {
        return rest::<M>(reader, size, whole).await;
    };
    // How far a guess has to look on average is half of what lies between two heads.
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
        // Something that holds for all later members was met by one walk and not by the others.
        return rest::<M>(reader, size, ParallelScan::starting_at(0)).await;
    }
    rest::<M>(reader, size, whole).await
}

/// Walks to the end.
async fn rest<M: ShardParser>(
    mut reader: ShardReader<'_>,
    size: u64,
    walk: ParallelScan,
) -> Result<MemberScan, ShardError> {
    // A machine that is bound must see all of it.
    let mut walk = if walk.bound { ParallelScan::starting_at(0) } else { walk };
    walk.on::<M>(&mut reader, size, u64::MAX, usize::MAX, false).await?;
    Ok(walk.members)
}

/// A walk from the first place in `from..until` that looks like a head, among the next `reach`
/// bytes; what goes wrong is left to the walk that arrives here.
async fn guess<M: ShardParser>(
    store: &ShardStore<'_>,
    object: &Object,
    from: u64,
    until: u64,
    reach: u64,
) -> ParallelScan {
    let mut at = from.next_multiple_of(512);
    let last = at.saturating_add(reach).min(until);
    while at < last {
        let length = LOOK.min(object.size - at);
        let Ok(bytes) = store.read(object, at, length).await else { break };
        if let Some(place) = M::find(&bytes) {
            let mut walk = ParallelScan::starting_at(at + place as u64);
            let mut reader = ShardReader::new(store, object);
            // What was found before the trouble is right, if it is right at all.
            let _ = walk.on::<M>(&mut reader, object.size, until, usize::MAX, true).await;
            return walk;
        }
        at += LOOK - 512; // what was cut in two
    }
    ParallelScan::starting_at(until)
}
