//! A dataset that grows: the catalog of a new listing, with the numbers of an earlier one.
//!
//! A sample keeps its number while its file, its place in the file and its version are the same. So
//! splits, caches and lists of numbers stay valid. Where a file system has recorded a change of a
//! file, but its time and length are the same, the number stays. Copies on disks are not used then.
//! New samples have numbers at the end. The numbers of removed samples are not used again: their
//! rows stay, and no pass reads them. A changed file is a gone one and a new one, because caches
//! know bytes by the number. Classes keep their numbers, too, and new ones follow. The price: rows
//! of gone samples stay in the file, and both catalogs are in memory while they are joined.

use std::collections::{HashMap, VecDeque};

use arrow_schema::ArrowError;
use foreread_types::{DatasetIdentity, Fingerprint, SampleId};
use xxhash_rust::xxh3::Xxh3;

use crate::catalog::growth_record::{GrowthPiece, GrowthRecord};
use crate::catalog::join::join;
use crate::catalog::part::number_text;
use crate::catalog_file::keys::REQUEST_KEY;
use crate::catalog_file::listing::Listing;
use crate::{Catalog, DatasetError, DatasetErrorKind};

/// The most files that a report names.
const NAMED: usize = 5;

/// The samples of a new listing that an earlier listing had not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Growth {
    /// The new samples.
    pub added: u64,
    /// The samples that are gone, or whose files have changed.
    pub gone: u64,
    /// The paths of some of these.
    pub names: Vec<String>,
}

impl Catalog {
    /// The numbers at which additions begin, and the number of samples at the end.
    pub(crate) fn segments(&self) -> Vec<u64> {
        let starts = self.0.growth.iter().flat_map(|growth| growth.record.starts.iter().copied());
        starts.chain([self.with_gone().len()]).collect()
    }

    /// How the index was requested ([`IndexOptions::request`](crate::IndexOptions::request)).
    pub fn request(&self) -> Option<&str> {
        self.image().metadata(REQUEST_KEY)
    }

    /// The catalog of `listing`, a new listing of the same dataset, with the numbers that samples
    /// have in this one.
    ///
    /// # Errors
    /// [`DatasetErrorKind::Invalid`] for a part, which new samples are no part of, and for listings
    /// with other columns. [`DatasetErrorKind::Empty`] if no sample is left. Those of
    /// [`to_bytes`](Self::to_bytes).
    pub fn grown(&self, listing: &Self) -> Result<(Self, Growth), DatasetError> {
        let base = listing.base_url();
        let invalid = |why: &str| DatasetError::new(DatasetErrorKind::Invalid, format!("{base}: {why}"));
        if self.is_part() || listing.is_part() {
            return Err(invalid("new samples are in no part of a catalog"));
        }
        let last =
            self.0.growth.as_ref().map_or_else(|| self.listed(), |growth| growth.record.listing.clone());
        // A random listing is not equal to itself, because nothing proves that its data are.
        if last == listing.listed() && !matches!(listing.0.listing, Listing::Random(_)) {
            return Ok((self.clone(), Growth::default()));
        }
        let failed = |error: ArrowError| {
            let why = match &error {
                ArrowError::SchemaError(why) => why.clone(),
                other => other.to_string(),
            };
            invalid(&format!("the catalog cannot be updated: {why}")).with_source(error)
        };
        let (old, new) = (self.with_gone(), listing.with_gone());
        if old.image().runs().are_there() != new.image().runs().are_there() {
            return Err(invalid(
                "its shards differ in another way than before, so samples would lose their numbers: make a \
                 new catalog by an index, or leave out the new shards",
            ));
        }
        if let Some(lost) = old.value_names().iter().find(|name| !new.value_names().contains(name)) {
            return Err(invalid(&format!(
                "the column {lost:?} is not there any more, and samples have its values: add it, or make a \
                 new catalog by an index"
            )));
        }
        let rows = JoinedRows::of(self, &old, &new)?;
        let gone = rows.gone(&old);
        let growth = Growth {
            added: rows.added.iter().map(|row| new.run(*row).1).sum(),
            gone: gone.len() as u64,
            names: gone
                .iter()
                .take(NAMED)
                .filter_map(|id| Some(old.path(SampleId(*id)).ok()?.into_owned()))
                .collect(),
        };
        if growth.added == 0 && gone.len() as u64 == self.len() {
            let message = format!("{base}: none of its samples is left, and there is no new one");
            return Err(DatasetError::new(DatasetErrorKind::Empty, message));
        }
        let mut starts = self.segments();
        if growth.added == 0 {
            starts.pop();
        }
        let record = GrowthRecord {
            starts,
            gone: number_text(&rows.unused(&old, |_| true), old.len() + growth.added),
            pieces: if rows.are_unchanged { self.pieces_with(&new, growth.added) } else { Vec::new() },
            listing: listing.listed(),
        };
        let bytes = [old.to_bytes()?, new.to_bytes()?];
        let joined = join([&bytes[0], &bytes[1]], &rows.sources(), &record, self.joined_fingerprint(&new));
        let name = format!("the updated catalog of {base}");
        Ok((Self::from_bytes(joined.map_err(failed)?, name)?, growth))
    }

    /// The identity of a listing: its samples, and the changes of files that look the same.
    fn listed(&self) -> String {
        format!("{} {}", self.fingerprint(), self.0.listing.text())
    }

    /// The pieces of this catalog after `added` samples of `new` have come. None where equal
    /// versions do not prove equal bytes.
    fn pieces_with(&self, new: &Self, added: u64) -> Vec<GrowthPiece> {
        let proves = |listing: Listing| matches!(listing, Listing::Versioned | Listing::Changed(_));
        if !proves(self.0.listing) || !proves(new.0.listing) {
            return Vec::new();
        }
        let known = self.0.growth.as_ref().map(|growth| growth.record.pieces.clone());
        let mut pieces = known.unwrap_or_default();
        if pieces.is_empty() {
            let (fingerprint, listing) = (self.with_gone().fingerprint().to_string(), self.0.listing.text());
            pieces.push(GrowthPiece { first: 0, fingerprint, listing });
        }
        if added > 0 {
            let (first, fingerprint) = (self.with_gone().len(), self.joined_fingerprint(new).to_string());
            pieces.push(GrowthPiece { first, fingerprint, listing: new.0.listing.text() });
        }
        pieces
    }

    /// Under which identities caches have the samples of this catalog, if it has grown from an
    /// earlier one: the first number of each piece, and the identity. `place` is that of
    /// [`identity`](Self::identity). Samples of a piece have had their numbers and their bytes
    /// since the catalog with this identity. Empty if the catalog has not grown, or versions do not
    /// prove that.
    pub fn lineage(&self, place: &str) -> Vec<(u64, DatasetIdentity)> {
        let pieces = self.0.growth.iter().flat_map(|growth| &growth.record.pieces);
        let identity = |piece: &GrowthPiece| {
            let (fingerprint, listing) = (piece.fingerprint.parse().ok()?, Listing::parse(&piece.listing)?);
            Some((piece.first, self.identity_of(fingerprint, listing, place)))
        };
        pieces.map(identity).collect::<Option<_>>().unwrap_or_default()
    }

    fn joined_fingerprint(&self, new: &Self) -> Fingerprint {
        let mut hash = Xxh3::new();
        hash.update(b"foreread growth 1\0");
        hash.update(&self.with_gone().fingerprint().0.to_le_bytes());
        hash.update(&new.fingerprint().0.to_le_bytes());
        Fingerprint(hash.digest128())
    }

    /// The number of rows of the file.
    fn rows(&self) -> u64 {
        self.image().runs().rows(self.image().samples())
    }

    /// The first sample of a row, and how many there are.
    pub(crate) fn run(&self, row: u64) -> (u64, u64) {
        self.image().runs().run(row)
    }
}

/// Where the rows of a joined catalog come from.
struct JoinedRows {
    /// For each row of the old catalog the same one in the new catalog, if it is there.
    kept: Vec<Option<u64>>,
    /// The other rows of the new catalog.
    added: Vec<u64>,
    /// The rows of the old catalog that have existed until now.
    existed: Vec<bool>,
    /// Whether the file system has recorded no change of the kept files. Then their bytes are the
    /// same for sure.
    are_unchanged: bool,
}

impl JoinedRows {
    /// Finds each row of the new listing in the old one. Of several rows of one file, those with
    /// equal labels and values are the same, in their order. A single row that is left on either
    /// side is the same, too: its label or values were corrected.
    fn of(named: &Catalog, old: &Catalog, new: &Catalog) -> Result<Self, DatasetError> {
        let is_there = |row: u64| match named.numbers() {
            None => true,
            Some(ids) => ids.binary_search(&old.run(row).0).is_ok(),
        };
        let existed: Vec<bool> = (0..old.rows()).map(is_there).collect();
        let mut places: HashMap<u128, VecDeque<(u64, u64)>> = HashMap::new();
        // A sample that comes back has its number again.
        for wanted in [true, false] {
            for row in (0..old.rows()).filter(|row| existed[*row as usize] == wanted) {
                let (digest, change) = old.row_digest(row)?;
                places.entry(digest).or_default().push_back((row, change));
            }
        }
        let mut arrived: HashMap<u128, Vec<(u64, u64)>> = HashMap::new();
        for row in 0..new.rows() {
            let (digest, change) = new.row_digest(row)?;
            arrived.entry(digest).or_default().push((row, change));
        }
        let names: Vec<&String> =
            old.value_names().iter().filter(|name| new.value_names().contains(name)).collect();
        let (mut kept, mut added) = (vec![None; old.rows() as usize], Vec::new());
        let mut are_unchanged = true;
        for (digest, mut rows) in arrived {
            let mut before = places.remove(&digest).unwrap_or_default();
            let mut keep = |(place, before): (u64, u64), (row, change): (u64, u64)| {
                kept[place as usize] = Some(row);
                are_unchanged &= change == before;
            };
            if before.len() > 1 || rows.len() > 1 {
                let mut contents: HashMap<u128, VecDeque<(u64, u64)>> = HashMap::new();
                for place in before.drain(..) {
                    let content = old.content_digest(place.0, &names)?;
                    contents.entry(content).or_default().push_back(place);
                }
                let mut rest = Vec::new();
                for row in rows {
                    let same = contents.get_mut(&new.content_digest(row.0, &names)?);
                    match same.and_then(VecDeque::pop_front) {
                        Some(place) => keep(place, row),
                        None => rest.push(row),
                    }
                }
                before.extend(contents.into_values().flatten());
                rows = rest;
            }
            if before.iter().any(|(place, _)| existed[*place as usize]) {
                before.retain(|(place, _)| existed[*place as usize]);
            }
            match (before.make_contiguous(), &rows[..]) {
                ([place], [row]) => keep(*place, *row),
                _ => added.extend(rows.iter().map(|(row, _)| *row)),
            }
        }
        added.sort_unstable();
        Ok(Self { kept, added, existed, are_unchanged })
    }

    /// The samples that are not there any more.
    fn gone(&self, old: &Catalog) -> Vec<u64> {
        self.unused(old, |row| self.existed[row])
    }

    /// The samples of old rows that are not there, where `is_wanted`.
    fn unused(&self, old: &Catalog, is_wanted: impl Fn(usize) -> bool) -> Vec<u64> {
        let rows = (0..self.kept.len()).filter(|row| self.kept[*row].is_none() && is_wanted(*row));
        rows.flat_map(|row| {
            let (first, samples) = old.run(row as u64);
            first..first + samples
        })
        .collect()
    }

    /// For each row of the joined catalog: whether it is of the new one, and its number there.
    fn sources(&self) -> Vec<(bool, u64)> {
        let kept = (0..).zip(&self.kept).map(|(row, kept)| kept.map_or((false, row), |kept| (true, kept)));
        kept.chain(self.added.iter().map(|row| (true, *row))).collect()
    }
}
