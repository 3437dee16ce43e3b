//! LMDB: finds the values of a database, in the order of its keys.
//!
//! A database is a B-tree of pages. A value lies in a leaf page next to its key, or alone in
//! adjacent overflow pages. In both cases it is one extent. So the pages of the tree are read, and
//! overflow pages never. If all values are in overflow pages, that is one page for many values.
//!
//! Decision: both formats of 64 bit are read, that of LMDB 0.9 and that of 1.0. They differ in the
//! page header only. Values remain raw bytes: encoded images, Caffe's `Datum`, pickles.
//!
//! The price: leaf pages hold small values as well, so nearly the whole file is read where values
//! are smaller than about half a page. Overflow pages are not checked, since each would be a
//! request. The main database is walked even if another one is selected by name.
//!
//! `meta` finds the format and the snapshot, `page` reads pages, `walk` reads trees.

mod meta;
mod page;
mod walk;

use std::collections::HashMap;

use foreread_types::setting;

use crate::columns::SharedTexts;
use crate::joined::{self, JoinedColumn};
use crate::parts::{listed, shown};
use crate::{
    BlockReader, ColumnValues, Extents, FileSource, FormatError, FormatErrorKind, FoundSamples, ValueColumn,
};
use meta::{Db, Snapshot};
use walk::{Found, Tree};

/// The most names of databases in an error.
const NAMED: usize = 20;

/// The most bytes of a label.
const MOST_TEXT: u64 = 16 << 10;

/// The size of blocks of labels, the most bytes of a request, and labels in memory at once.
const BLOCK: u64 = 64 << 10;
const REQUEST: u64 = 1 << 20;
const AT_ONCE: usize = 4096;

/// The choice of the parts to read of an LMDB file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LmdbOptions {
    /// The name of the sub-database. Without it, the main database is read if it has values, and
    /// its only sub-database otherwise.
    pub database: Option<String>,
    /// The beginning of the keys whose values are samples. Without it all values are, except those
    /// of keys that data sets use for their own counters. The empty text takes those as well.
    pub prefix: Option<String>,
    /// The beginnings of the keys of further fields: the value under `mask-7` is a field of the
    /// sample `image-7`, if `image-` is the prefix of samples. Samples that lack one are skipped.
    pub joined: Vec<String>,
    /// The beginning of the keys whose values are labels: the text under `label-7` belongs to the
    /// sample `image-7`, if `image-` is the prefix of samples.
    pub labels: Option<String>,
}

/// The use of values, by the beginning of their keys.
#[derive(Clone, Copy, Debug)]
enum ValueUse {
    Sample,
    /// With its number among the further fields.
    Field(usize),
    Label,
}

impl LmdbOptions {
    /// The beginnings of keys that were chosen.
    fn prefixes(&self) -> impl Iterator<Item = (&str, ValueUse)> {
        let fields = self.joined.iter().enumerate().map(|(number, prefix)| (prefix, ValueUse::Field(number)));
        let samples = self.prefix.iter().map(|prefix| (prefix, ValueUse::Sample));
        let labels = self.labels.iter().map(|prefix| (prefix, ValueUse::Label));
        samples.chain(fields).chain(labels).map(|(prefix, used)| (prefix.as_str(), used))
    }
}

/// Finds the values of an LMDB database.
///
/// Keys that are not printable UTF-8, and all keys of `INTEGERKEY` databases, are written as hex
/// digits after `0x`. The keys that data sets use for their own counters, such as `__len__`, are
/// skipped with a note, unless [`LmdbOptions::prefix`] selects keys.
///
/// # Errors
/// [`Damaged`](FormatErrorKind::Damaged) if the file is not a valid database or is being written.
/// [`Unsupported`](FormatErrorKind::Unsupported) if its writer is of 32 bit or of another byte
/// order. Also if it is encrypted, has several values per key, or a sub-database must be selected.
/// [`Unread`](FormatErrorKind::Unread) if the source fails.
pub async fn index(source: &dyn FileSource, options: &LmdbOptions) -> Result<FoundSamples, FormatError> {
    let snapshot = Snapshot::read(source).await?;
    let found = samples(source, &snapshot, options).await;
    let unread = |error: &FormatError| error.kind() == FormatErrorKind::Unread;
    if found.as_ref().is_err_and(unread) {
        return found;
    }
    // Pages of an old snapshot are used again, so a walk next to a writer may have read both.
    match Snapshot::read(source).await {
        Ok(again) if again == snapshot => found,
        Err(error) if unread(&error) => Err(error),
        _ => Err(FormatError::damaged(
            0,
            "the database is being written to; index it after its writer has finished, or index a copy \
             made by `mdb_copy`",
        )),
    }
}

async fn samples(
    source: &dyn FileSource,
    snapshot: &Snapshot,
    options: &LmdbOptions,
) -> Result<FoundSamples, FormatError> {
    let tree = Tree::new(source, snapshot, options);
    let (at, main) = snapshot.main();
    refuse_duplicates(at, main, "the main database")?;
    let found = tree.walk(at, main).await?;
    let selected = match &options.database {
        Some(name) if name.is_empty() => None,
        Some(name) => Some(named(at, &found, name)?),
        // Few values next to databases are notes about them, and many are samples.
        None if !found.rows.is_empty() && !found.databases.is_empty() => {
            let list = list(&found.databases);
            let why = format!(
                "there are {} values and named databases: use {} with one of {list}, or {} for the \
                 values",
                found.rows.len(),
                setting("key").to("NAME"),
                setting("key").to("")
            );
            return Err(FormatError::unsupported(at, why));
        }
        None if !found.rows.is_empty() => None,
        None => match &found.databases[..] {
            [] => None,
            [only] => Some(only.clone()),
            several => return Err(ambiguous(at, several)),
        },
    };
    let version = snapshot.format().version();
    let Some((name, at, db)) = selected else {
        return found.into_samples(source, options, &format!("LMDB {version}"), "the main database").await;
    };
    refuse_duplicates(at, &db, &format!("database '{name}'"))?;
    let found = tree.walk(at, &db).await?;
    let what = format!("LMDB {version} database {name}");
    found.into_samples(source, options, &what, &format!("database {name}")).await
}

fn named(at: u64, found: &Found, name: &str) -> Result<(String, u64, Db), FormatError> {
    if let Some(found) = found.databases.iter().find(|(other, ..)| other == name) {
        return Ok(found.clone());
    }
    let key = setting("key");
    Err(FormatError::unsupported(
        at,
        match &found.databases[..] {
            [] => format!("there is no database '{name}', only the main one: leave out {key}"),
            others => format!("there is no database '{name}': use {key} with one of {}", list(others)),
        },
    ))
}

fn ambiguous(at: u64, databases: &[(String, u64, Db)]) -> FormatError {
    let (list, key) = (list(databases), setting("key").to("NAME"));
    FormatError::unsupported(at, format!("there are several databases: use {key} with one of {list}"))
}

fn list(databases: &[(String, u64, Db)]) -> String {
    let named = databases.iter().take(NAMED);
    let mut names: Vec<String> =
        named.map(|(name, _, db)| format!("{name} ({} entries)", db.entries)).collect();
    if databases.len() > NAMED {
        names.push(format!("{} more", databases.len() - NAMED));
    }
    names.join(", ")
}

fn refuse_duplicates(at: u64, db: &Db, name: &str) -> Result<(), FormatError> {
    if !db.has_duplicates() {
        return Ok(());
    }
    Err(FormatError::unsupported(
        at,
        format!(
            "{name} may have several values per key (DUPSORT): copy it into a database without DUPSORT, \
             with one key per value"
        ),
    ))
}

impl Found {
    /// The samples of the database `chosen`, with their labels.
    async fn into_samples(
        mut self,
        source: &dyn FileSource,
        options: &LmdbOptions,
        what: &str,
        chosen: &str,
    ) -> Result<FoundSamples, FormatError> {
        let found = match options.joined.is_empty() {
            true => FoundSamples::at(Extents::Rows(std::mem::take(&mut self.rows)), ""),
            false => self.join_fields(options)?,
        };
        let skipped = self.skipped + self.databases.len() as u64;
        let mut summary = format!("{what}: {} values", found.len());
        if skipped > 0 {
            summary.push_str(&format!(", {skipped} skipped"));
        }
        let mut notes = Vec::new();
        if !self.conventional.is_empty() {
            let keys = listed(self.conventional.iter().map(String::as_str));
            notes.push(format!(
                "{} values are not samples by the names of their keys ({keys}), which data sets use for \
                 counters: {} takes all keys, and {} those that begin with it",
                self.conventional.len(),
                setting("field").to(""),
                setting("field").to("PREFIX")
            ));
        }
        if !options.joined.is_empty() && found.skipped > 0 {
            notes.push(format!(
                "{} values lack one of the fields under the rest of their key, and are no samples",
                found.skipped
            ));
        }
        let mut columns = Vec::new();
        if options.labels.is_some() {
            let prefix = options.prefix.as_deref().unwrap_or_default();
            let values = labels(source, &self, prefix).await?;
            summary.push_str(&format!(", {} labels", self.labels.len()));
            columns.push(ValueColumn { name: "label".to_owned(), values });
        }
        let found = FoundSamples { keys: Some(self.keys), columns, skipped, notes, summary, ..found };
        Ok(found.with_chosen(chosen, options.labels.as_deref()))
    }
}

impl Found {
    /// Joins samples with the values of further fields, which belong to them by the rest of their
    /// keys. Samples that lack one are skipped.
    fn join_fields(&mut self, options: &LmdbOptions) -> Result<FoundSamples, FormatError> {
        let first = options.prefix.as_deref().unwrap_or_default();
        let prefixes = std::iter::once(first).chain(options.joined.iter().map(String::as_str));
        let all: Vec<&str> = options.prefixes().map(|(prefix, _)| prefix).collect();
        if let Some(twice) = all.iter().enumerate().find(|(at, prefix)| all[..*at].contains(prefix)) {
            let why = format!("{:?} is the beginning of two fields, or of a field and of labels", twice.1);
            return Err(FormatError::unsupported(0, why));
        }
        let mut names = joined::names(prefixes.map(field_name), &[])?.into_iter();
        let rows = std::mem::take(&mut self.rows);
        let all = vec![(rows.len() as u64, true)];
        let of_first = names.next().map(|name| JoinedColumn {
            name,
            extents: Extents::Rows(rows),
            made: None,
            present: all,
        });
        let mut columns: Vec<JoinedColumn> = of_first.into_iter().collect();
        // Values of a field without a sample.
        let mut lonely = 0;
        for (number, name) in names.enumerate() {
            let of_field = self.fields.iter().filter(|(field, _)| *field == number);
            let mut by_name: HashMap<&str, (u64, u64)> =
                of_field.map(|(_, (name, place))| (name.as_str(), *place)).collect();
            if by_name.is_empty() {
                let why =
                    format!("no key begins with {:?}: correct {}", options.joined[number], setting("field"));
                return Err(FormatError::unsupported(0, why));
            }
            let (mut extents, mut present) = (Vec::new(), Vec::with_capacity(self.keys.len()));
            for key in &self.keys {
                let place = key.strip_prefix(first).and_then(|rest| by_name.remove(rest));
                present.push((1, place.is_some()));
                extents.extend(place);
            }
            lonely += by_name.len() as u64;
            columns.push(JoinedColumn { name, extents: Extents::Rows(extents), made: None, present });
        }
        let (found, present) = joined::join(columns)?;
        let mut is_there = present.iter().flat_map(|(count, is_there)| (0..*count).map(move |_| *is_there));
        self.keys.retain(|_| is_there.next().unwrap_or(false));
        self.skipped += found.skipped + lonely;
        Ok(FoundSamples { skipped: found.skipped + lonely, ..found })
    }
}

/// The name of the field of keys that begin so: `image` of `image-`, and `value` of all keys.
fn field_name(prefix: &str) -> &str {
    let name = prefix.trim_end_matches(|end: char| end.is_ascii_punctuation());
    if name.is_empty() { "value" } else { name }
}

/// The text of each sample's label. Samples without one have none.
async fn labels(source: &dyn FileSource, found: &Found, prefix: &str) -> Result<ColumnValues, FormatError> {
    if let Some((name, (at, _))) = found.labels.iter().find(|(_, (_, length))| *length > MOST_TEXT) {
        let why =
            format!("the label of '{}' is longer than 16 KiB: leave out {}", shown(name), setting("label"));
        return Err(FormatError::unsupported(*at, why));
    }
    let reader = BlockReader::new(source, BLOCK);
    let places: Vec<(u64, u64)> = found.labels.iter().map(|(_, place)| *place).collect();
    let mut texts = SharedTexts::default();
    let mut by_name = HashMap::with_capacity(found.labels.len());
    for (labels, places) in found.labels.chunks(AT_ONCE).zip(places.chunks(AT_ONCE)) {
        let read = reader.read_all(places, REQUEST).await?;
        for ((name, (at, _)), bytes) in labels.iter().zip(read) {
            let text = std::str::from_utf8(&bytes).map_err(|_| {
                let why =
                    format!("the label of '{}' is not UTF-8: leave out {}", shown(name), setting("label"));
                FormatError::unsupported(*at, why)
            })?;
            by_name.insert(name.as_str(), texts.share(text));
        }
    }
    let label = |key: &String| by_name.get(key.strip_prefix(prefix)?).cloned();
    Ok(ColumnValues::Texts(found.keys.iter().map(label).collect()))
}
