//! The options of an index.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::Format;
use crate::build::header::IndexNotes;
use crate::format_options::FormatOptions;
use crate::list::grouping::Grouping;

/// The options that select the objects of an origin that become samples.
///
/// Globs are matched against the whole path below the base URL. `*` and `?` stop at `/`. `**/` is
/// any number of directories. `[a-z]` and `{a,b}` are alternatives. So `*.jpg` matches objects at
/// the top and `**/*.jpg` matches at any depth. Catalogs are never samples: names that end in
/// `.foreread`, or in a suffix of an unfinished index. Empty objects whose path is a directory of
/// another object are never samples either. Hidden files are not listed in the first place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct IndexOptions {
    /// If not empty, only objects that match one of these globs, or have one of these paths. An
    /// entry without a match is an error.
    pub include: Vec<String>,
    /// Objects that match one of these globs are excluded, even if they are included.
    pub exclude: Vec<String>,
    /// The format of the objects. If `None`, it is detected from their names. They are shards
    /// ([`Format::of_shard`]) if all but the files that accompany them (indexes, checksums,
    /// descriptions) have one format, else files. If names show nothing (`train-00000-of-01024`),
    /// the first bytes of one object decide. If a packed format is set, every object that does not
    /// accompany others is a shard of it, whatever its name.
    pub format: Option<Format>,
    /// Choices within the format.
    pub format_options: FormatOptions,
    /// If not empty, only these objects (their paths below the base URL), each once. A missing one
    /// is an error. Files are numbered in this order.
    pub objects: Vec<String>,
    /// The names of all classes. A class's number is its position here. Each label must be among
    /// them. If the list is empty, samples have no labels. If it is `None`, the directories below
    /// the base URL are the classes, whichever objects are selected.
    pub classes: Option<Vec<String>>,
    /// The file that an unfinished listing is stored in, so that the next index resumes it. Samples
    /// found in shards are stored next to it (suffix `-shards`). `None` stores nothing. The caller
    /// removes both files after the catalog is saved ([`forget_listing`](crate::forget_listing)).
    /// Only origins that list in the order of paths can resume a listing. Most object stores do. If
    /// a store turns out to list in another order, the file is removed, one warning is logged and
    /// the listing restarts. Only shards that have a version are stored.
    #[serde(skip)]
    pub partial: Option<PathBuf>,
    /// A name that stands for the place of the data. Cached data stays valid when the data is
    /// moved, or reached through other endpoints. The user guarantees that all places with this
    /// name hold the same data.
    pub name: Option<String>,
    /// Whether files are samples alone or together. Formats of shards are not looked for then.
    pub grouping: Grouping,
    /// How the index was requested, for a program that repeats it
    /// ([`Catalog::request`](crate::Catalog::request)). The catalog keeps the text.
    #[serde(skip)]
    pub request: Option<String>,
    /// The most objects of a listing in memory, some 200 bytes each, by default two million. More
    /// are sorted in a file of the directory of [`partial`](Self::partial), or of that for
    /// temporary files, which takes about 200 bytes per object meanwhile. The catalog is the same.
    #[serde(skip)]
    pub objects_in_memory: Option<usize>,
    /// Whether rows of a [table](crate::Catalog::of_table) whose file does not exist are left out,
    /// and [groups](Self::grouping) without all of their files. Else they are an error.
    pub skip_missing: bool,
}

impl IndexOptions {
    /// Adds a glob to [`include`](Self::include).
    #[must_use]
    pub fn including(mut self, glob: impl Into<String>) -> Self {
        self.include.push(glob.into());
        self
    }

    /// Sets the format.
    #[must_use]
    pub fn with_format(mut self, format: Format) -> Self {
        self.format = Some(format);
        self
    }

    /// Restricts the index to these objects.
    #[must_use]
    pub fn naming(mut self, objects: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.objects.extend(objects.into_iter().map(Into::into));
        self
    }

    /// Sets [`classes`](Self::classes).
    #[must_use]
    pub fn with_classes(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.classes = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// [`objects_in_memory`](Self::objects_in_memory), or its default.
    pub fn most_in_memory(&self) -> usize {
        self.objects_in_memory.unwrap_or(2_000_000).max(1)
    }

    /// The part that the catalog keeps.
    pub(crate) fn notes(&self) -> IndexNotes<'_> {
        IndexNotes { name: self.name.as_deref(), request: self.request.as_deref() }
    }

    /// Whether only a part of the objects is wanted.
    pub(crate) fn is_selected(&self) -> bool {
        !(self.include.is_empty() && self.exclude.is_empty() && self.objects.is_empty())
    }

    /// Adds a glob to [`exclude`](Self::exclude).
    #[must_use]
    pub fn excluding(mut self, glob: impl Into<String>) -> Self {
        self.exclude.push(glob.into());
        self
    }
}
