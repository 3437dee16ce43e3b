//! Which listed objects become samples: globs and names.

use std::collections::{BTreeSet, HashMap, HashSet};

use foreread_tier::TierError;
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use crate::messages::listed;
use crate::{DatasetError, DatasetErrorKind, IndexOptions};

/// The objects of a listing that are wanted.
#[derive(Debug)]
pub(crate) enum Selection<'a> {
    Globs(Box<GlobFilter>),
    Names(SelectedNames<'a>),
}

/// The objects with these names.
#[derive(Debug)]
pub(crate) struct SelectedNames<'a> {
    pub(crate) names: HashSet<&'a str>,
    /// Identifies them.
    pub(crate) digest: u128,
    /// The directory that contains all of them. Empty for the top.
    pub(crate) directory: String,
}

impl Selection<'_> {
    /// Whether the path is selected.
    pub(crate) fn wants(&mut self, path: &str) -> bool {
        match self {
            Self::Globs(globs) => globs.wants(path),
            Self::Names(names) => names.names.contains(path),
        }
    }

    /// Whether the name that could not be listed has no selected objects.
    pub(crate) fn excludes(&self, error: &TierError) -> bool {
        match self {
            Self::Globs(globs) => globs.excludes(error),
            Self::Names(SelectedNames { names, .. }) => error.object().is_some_and(|path| {
                let is_at = |name: &&str| {
                    name.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                };
                !names.iter().any(is_at)
            }),
        }
    }

    /// The directory to be listed.
    pub(crate) fn directory(&self) -> &str {
        match self {
            Self::Globs(_) => "",
            Self::Names(names) => &names.directory,
        }
    }

    /// The text that distinguishes the listing from others of this location: included and excluded
    /// names.
    pub(crate) fn key(&self) -> (Vec<String>, Vec<String>) {
        match self {
            Self::Globs(globs) => {
                (globs.include.as_ref().map_or(Vec::new(), PathPatterns::given), globs.exclude.given())
            }
            Self::Names(names) => (vec![format!("names {:032x}", names.digest)], Vec::new()),
        }
    }

    /// Checks that each included name has matched a path, as [`GlobFilter::check_matched`] does.
    pub(crate) fn check_matched(&self, base_url: &str, is_resumed: bool) -> Result<(), DatasetError> {
        match self {
            Self::Globs(globs) => globs.check_matched(base_url, is_resumed),
            Self::Names(_) => Ok(()),
        }
    }
}

/// The globs of an index.
#[derive(Debug)]
pub(crate) struct GlobFilter {
    include: Option<PathPatterns>,
    exclude: PathPatterns,
}

impl GlobFilter {
    pub(crate) fn new(options: &IndexOptions) -> Result<Self, DatasetError> {
        let include =
            (!options.include.is_empty()).then(|| PathPatterns::new(&options.include)).transpose()?;
        Ok(Self { include, exclude: PathPatterns::new(&options.exclude)? })
    }

    /// Whether the path is selected. Patterns that match it are noted.
    pub(crate) fn wants(&mut self, path: &str) -> bool {
        self.include.as_mut().is_none_or(|include| include.note(path)) && !self.exclude.matches(path)
    }

    /// Whether the name that could not be listed is excluded. If it is a directory, all of its
    /// content must be excluded. A name that is only *not included* may be a directory with
    /// included objects.
    pub(crate) fn excludes(&self, error: &TierError) -> bool {
        error
            .object()
            .is_some_and(|path| self.exclude.matches(path) || self.exclude.matches(&format!("{path}/")))
    }

    /// Checks that each included name has matched a path. Globs that match nothing are a warning,
    /// because users list endings that may be absent. A listing that was resumed knows matches of
    /// selected paths only.
    ///
    /// # Errors
    /// [`DatasetErrorKind::Invalid`] with the number and the first of the names that have not.
    pub(crate) fn check_matched(&self, base_url: &str, is_resumed: bool) -> Result<(), DatasetError> {
        let Some(include) = self.include.as_ref().filter(|_| !is_resumed) else { return Ok(()) };
        let (globs, unmatched): (Vec<&str>, Vec<&str>) = (include.texts.iter().zip(&include.matched))
            .filter_map(|(text, matched)| (!matched).then_some(text.as_str()))
            .partition(|text| text.contains(['*', '?', '[', '{']));
        if !globs.is_empty() {
            let (count, all) = (globs.len(), include.texts.len());
            tracing::warn!(
                "{base_url}: {count} of {all} globs in `include` match nothing: {}",
                listed(globs.into_iter(), count)
            );
        }
        if unmatched.is_empty() {
            return Ok(());
        }
        let (count, all) = (unmatched.len(), include.texts.len());
        let message = format!(
            "{base_url}: {count} of {all} names in `include` match nothing: {}; they are compared with paths \
             below {base_url}. Correct or remove them",
            listed(unmatched.into_iter(), count)
        );
        Err(DatasetError::new(DatasetErrorKind::Invalid, message))
    }
}

/// Globs. Each is also the name of one path, whatever characters are in it.
#[derive(Debug)]
struct PathPatterns {
    /// As the user has given them.
    given: Vec<String>,
    texts: Vec<String>,
    set: GlobSet,
    names: HashMap<String, usize>,
    /// Which patterns have matched, and their number.
    matched: Vec<bool>,
    count: usize,
    found: Vec<usize>,
}

impl PathPatterns {
    fn new(globs: &[String]) -> Result<Self, DatasetError> {
        let mut set = GlobSetBuilder::new();
        let texts: BTreeSet<&String> = globs.iter().collect();
        for text in &texts {
            let glob = GlobBuilder::new(text).literal_separator(true).build();
            set.add(glob.map_err(|error| bad_glob(text, error))?);
        }
        let texts: Vec<String> = texts.into_iter().cloned().collect();
        Ok(Self {
            given: globs.to_vec(),
            set: set.build().map_err(|error| bad_glob(&globs.join(" "), error))?,
            names: texts.iter().cloned().zip(0..).collect(),
            matched: vec![false; texts.len()],
            texts,
            count: 0,
            found: Vec::new(),
        })
    }

    fn given(&self) -> Vec<String> {
        self.given.clone()
    }

    fn matches(&self, path: &str) -> bool {
        self.set.is_match(path) || self.names.contains_key(path)
    }

    /// The same, and notes the patterns that match.
    fn note(&mut self, path: &str) -> bool {
        if self.count == self.texts.len() {
            return self.matches(path);
        }
        self.set.matches_into(path, &mut self.found);
        self.found.extend(self.names.get(path));
        for &at in &self.found {
            self.count += usize::from(!self.matched[at]);
            self.matched[at] = true;
        }
        !self.found.is_empty()
    }
}

fn bad_glob(text: &str, error: globset::Error) -> DatasetError {
    let message = format!("{text:?} is not a valid glob: {}", error.kind());
    DatasetError::new(DatasetErrorKind::Invalid, message).with_source(error)
}
