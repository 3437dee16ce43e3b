//! The settings of a run: the datasets, the place of copies, and the order of its opens.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use foreread_local::disk::SharedRoom;
use foreread_preload::layout::{MAX_PATH, MAX_ROOTS};

use crate::copy_store::{CopyStore, is_local};
use crate::error::FileCacheError;
use crate::original::identity_of;
use crate::root::RootIdentity;
use crate::table::RootName;
use crate::writes::{OwnWrites, WriteBudget};

/// When originals are compared with their copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckOriginals {
    /// At each open on a local file system. On others when a copy is made, and at the start.
    #[default]
    Auto,
    /// At each open: one `stat`.
    Open,
    /// When a copy is made, and at the start.
    Never,
}

impl CheckOriginals {
    const ALL: [(Self, &'static str); 3] =
        [(Self::Auto, "auto"), (Self::Open, "open"), (Self::Never, "never")];

    /// Its name, as agents are sent it.
    pub fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(check, _)| *check == self).map_or("auto", |(_, name)| name)
    }

    /// The one of this name, or the usual one: a later version may have others.
    pub fn of_name(name: &str) -> Self {
        Self::ALL.into_iter().find(|(_, own)| *own == name).map_or(Self::Auto, |(check, _)| check)
    }

    fn of(self, is_local: bool) -> bool {
        match self {
            Self::Auto => is_local,
            Self::Open => true,
            Self::Never => false,
        }
    }
}

/// The order in which a program opens its files, as far as it is known.
pub trait FileOrder: std::fmt::Debug + Send {
    /// The files of an epoch, counted from 0, as positions in `files`: all files of the datasets,
    /// in the order of their paths. `None`: this epoch's order is not known.
    fn epoch(&mut self, epoch: u64, files: &[PathBuf]) -> Option<Vec<usize>>;
}

/// The settings of a run.
#[derive(Debug)]
pub struct RunSettings {
    /// The names of the directories whose files are served.
    pub(crate) roots: Vec<RootName>,
    pub(crate) store: CopyStore,
    pub(crate) check: CheckOriginals,
    pub(crate) order: OrderCell,
    /// The room and the budget of writes that others share. `None`: those of the store.
    pub(crate) shared: Option<(SharedRoom, Arc<dyn WriteBudget>)>,
}

/// An order that the first host takes.
#[derive(Debug, Default)]
pub(crate) struct OrderCell(Mutex<Option<Box<dyn FileOrder>>>);

impl OrderCell {
    pub(crate) fn take(&self) -> Option<Box<dyn FileOrder>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl RunSettings {
    /// Serves files of these directories from copies in `store`.
    ///
    /// # Errors
    /// A directory that is not there.
    pub fn new(roots: &[PathBuf], store: CopyStore) -> Result<Self, FileCacheError> {
        let mut all: Vec<RootName> = Vec::new();
        for root in roots {
            check_root(root)?;
            let found = root.canonicalize().map_err(|error| FileCacheError::system("find", root, error))?;
            let identity = RootIdentity::of(&found);
            let identity = identity.map_err(|error| FileCacheError::system("look at", root, error))?;
            let given =
                std::path::absolute(root).map_err(|error| FileCacheError::system("find", root, error))?;
            if !found.is_dir() || found.parent().is_none() {
                let why = format!("{} is not a directory of files", root.display());
                return Err(FileCacheError::invalid(why));
            }
            // Programs may use both names.
            for path in [found.clone(), given] {
                if path.as_os_str().len() > MAX_PATH {
                    let why = format!("{} has more than {MAX_PATH} bytes", path.display());
                    return Err(FileCacheError::invalid(why));
                }
                let name = RootName { path, target: found.clone(), identity };
                if !all.contains(&name) {
                    all.push(name);
                }
            }
        }
        if all.len() > MAX_ROOTS {
            let why = format!("at most {MAX_ROOTS} datasets are served, and other names count");
            return Err(FileCacheError::invalid(why));
        }
        let (check, order) = (CheckOriginals::Auto, OrderCell::default());
        Ok(Self { roots: all, store, check, order, shared: None })
    }

    /// The room for copies.
    pub(crate) fn room(&self) -> SharedRoom {
        match &self.shared {
            Some((room, _)) => room.clone(),
            None => SharedRoom::new(self.store.bytes()),
        }
    }

    /// Whether originals are compared with their copies at each open.
    pub(crate) fn checks_originals(&self) -> bool {
        self.check.of(self.roots.iter().any(|root| is_local(&root.target)))
    }

    /// The budget of writes, with so many free bytes. `None`: writes wear nothing out.
    pub(crate) fn writes(&self, free: u64) -> Option<Arc<dyn WriteBudget>> {
        let own = |per_day| Arc::new(OwnWrites::new(self.store.bytes(), free, per_day)) as _;
        match &self.shared {
            Some((_, writes)) => Some(Arc::clone(writes)),
            None => self.store.writes_per_day().map(own),
        }
    }

    /// The same, where originals are compared with their copies then.
    #[must_use]
    pub fn with_check(self, check: CheckOriginals) -> Self {
        Self { check, ..self }
    }

    /// The same with a known order.
    #[must_use]
    pub fn with_order(self, order: Box<dyn FileOrder>) -> Self {
        Self { order: OrderCell(Mutex::new(Some(order))), ..self }
    }
}

/// The identity of a dataset's directory, so that a missing one is an error at the start.
fn check_root(root: &Path) -> Result<(), FileCacheError> {
    identity_of(root)
        .map(|_| ())
        .ok_or_else(|| FileCacheError::invalid(format!("there is no {}", root.display())))
}
