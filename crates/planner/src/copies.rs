//! Second copies, from the room that is left when every sample has one.
//!
//! A copy beside the owner's saves the network its store's later uses, and the origin nothing. So they come last, and
//! go to the stores that use a sample most often, those first that save most for their room, until a store is full. A copy
//! is made from what the first use there brought, so it costs no read.
//!
//! Every store's copies are chosen on every rank, because what they save is part of the prediction; a rank keeps the
//! table of its own store (two bits a sample) and of the others only a digest. Only the stores that [`Readers`] has
//! counted for a sample can get a copy: at least its two most frequent readers, and all where samples are few.
//!
//! [`Readers`]: crate::readers::Readers

use foreread_oracle::Fingerprinter;
use foreread_types::{Fingerprint, SampleId, SampleKey};

use crate::assign::{Assigned, Part, Prices};
use crate::cluster::{Cluster, LevelIndex, MAX_LEVELS};
use crate::error::Reason;
use crate::forecast::Amount;
use crate::knapsack::Filled;
use crate::owners::unpack;
use crate::placement::Table;
use crate::rooms::Rooms;

/// A store's copy of a sample that another store owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SecondCopy {
    /// The sample.
    pub key: SampleKey,
    /// The position of the store in [`Cluster::stores`].
    pub store: usize,
    /// The level of that store.
    pub level: LevelIndex,
}

/// Which second copies there are.
pub(crate) struct Copies {
    /// Of the rank's own store, by dataset.
    pub(crate) own: Vec<Table>,
    /// Of all stores, the best first; empty where nobody asked.
    pub(crate) all: Vec<SecondCopy>,
    /// By store, by level.
    pub(crate) filled: Vec<[Filled; MAX_LEVELS]>,
    /// By store, the uses that they serve.
    pub(crate) near: Vec<Amount>,
    /// Names all copies of all stores.
    pub(crate) print: Fingerprint,
}

/// Chooses them; `own` is the rank's store, and `all` whether the others' are asked for. None where nobody counted who
/// uses what.
pub(crate) fn choose(
    cluster: &Cluster,
    parts: &[Part<'_>],
    assigned: &[Assigned],
    rooms: &mut Rooms,
    own: usize,
    all: bool,
) -> Result<Option<Copies>, Reason> {
    let empty =
        (0..cluster.stores.len()).all(|store| (0..MAX_LEVELS).all(|level| rooms.left(store, level) == 0));
    if empty || parts.iter().any(|part| !part.readers.is_counted()) {
        return Ok(None);
    }
    let prices = Prices::new(cluster);
    let mut items: Vec<(u32, u32, u32, u16)> = Vec::new();
    for (at, (part, assigned)) in parts.iter().zip(assigned).enumerate() {
        for (id, &owner) in assigned.owners.iter().enumerate() {
            let Some((owner, _)) = unpack(owner) else { continue };
            let bytes = part.sizes.bytes(SampleId(id as u64));
            for (store, uses) in part.readers.candidates(id) {
                if store != owner && uses > 1 {
                    items.try_reserve(1).map_err(|_| too_large(part))?;
                    items.push((prices.rank(1, bytes, uses - 1), at as u32, id as u32, store as u16));
                }
            }
        }
    }
    items.sort_unstable();
    let stores = cluster.stores.len();
    let mut copies = Copies {
        own: parts.iter().map(|_| Table::NOTHING).collect(),
        all: Vec::new(),
        filled: vec![[Filled::default(); MAX_LEVELS]; stores],
        near: vec![Amount::default(); stores],
        print: Fingerprinter::new("copies 1").finish(),
    };
    let mut print = Fingerprinter::new("copies 1");
    for (_, at, id, store) in items {
        let (part, store) = (&parts[at as usize], usize::from(store));
        let bytes = part.sizes.bytes(SampleId(id.into()));
        let Some(level) = rooms.take(store, bytes) else { continue };
        let filled = &mut copies.filled[store][usize::from(level.0)];
        filled.samples += 1;
        filled.bytes += u128::from(bytes);
        filled.footprint += cluster.stores[store].levels[usize::from(level.0)].footprint.of(bytes);
        // The first use there brings the copy.
        let uses = part.readers.uses_at(id as usize, store) - 1;
        copies.near[store] =
            copies.near[store].plus(Amount { samples: uses, bytes: uses.saturating_mul(bytes) });
        print =
            print.number(u64::from(id) << 32 | (store as u64) << 2 | u64::from(level.0)).number(at.into());
        if all {
            copies.all.try_reserve(1).map_err(|_| too_large(part))?;
            let key = SampleKey::new(part.dataset, SampleId(id.into()));
            copies.all.push(SecondCopy { key, store, level });
        }
        if store == own {
            let table = &mut copies.own[at as usize];
            if matches!(table, Table::Ranges(_)) {
                *table = Table::bits(part.sizes.len()).ok_or_else(|| too_large(part))?;
            }
            table.keep(id.into(), level);
        }
    }
    copies.print = print.finish();
    Ok(Some(copies))
}

fn too_large(part: &Part<'_>) -> Reason {
    Reason::Memory { dataset: part.dataset, samples: part.sizes.len() }
}
