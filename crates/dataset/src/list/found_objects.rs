//! The objects that a listing has found: in memory, or in sorted runs on disk if they are many.

use std::path::{Path, PathBuf};

use foreread_tier::Object;

use crate::catalog_name::is_catalogs;
use crate::list::choose_format;
use crate::list::directory_markers::DirectoryMarkers;
use crate::list::object_runs::ObjectRuns;
use crate::{DatasetError, DatasetErrorKind, Format, Grouping, IndexOptions, IndexProgress};

/// The objects that a listing has found.
#[derive(Debug, Default)]
pub(crate) struct FoundObjects {
    pub(crate) objects: Vec<Object>,
    pub(crate) progress: IndexProgress,
    pub(crate) catalogs: u64,
    pub(crate) unwanted: u64,
    disk: Option<ListingDisk>,
}

/// Where objects go that are too many.
#[derive(Debug)]
struct ListingDisk {
    directory: PathBuf,
    /// The most objects in memory.
    most: usize,
    runs: Option<ObjectRuns>,
    /// The markers of directories, once all objects are listed.
    markers: Option<DirectoryMarkers>,
    /// Whether the objects may be shards.
    may_be_packed: bool,
    /// Objects with names of Arrow files, some of which may be catalogs.
    arrow: usize,
}

/// A listing of files in sorted runs.
pub(crate) struct LargeListing {
    pub(crate) runs: ObjectRuns,
    pub(crate) markers: DirectoryMarkers,
    pub(crate) directory: PathBuf,
    pub(crate) progress: IndexProgress,
}

impl FoundObjects {
    /// None so far. Too many are written to the directory of the unfinished index, or of temporary
    /// files.
    pub(crate) fn with_disk(options: &IndexOptions) -> Self {
        let next_to = options.partial.as_deref().and_then(Path::parent);
        let next_to = next_to.map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path });
        let disk = ListingDisk {
            directory: next_to.map_or_else(std::env::temp_dir, Path::to_owned),
            most: options.most_in_memory(),
            runs: None,
            markers: None,
            may_be_packed: false,
            arrow: 0,
        };
        Self { disk: Some(disk), ..Self::default() }
    }

    /// The same without objects, for a listing that begins again.
    pub(crate) fn cleared(&mut self) {
        let disk = self.disk.take();
        let disk = disk.map(|disk| ListingDisk {
            runs: None,
            markers: None,
            may_be_packed: false,
            arrow: 0,
            ..disk
        });
        *self = Self { disk, ..Self::default() };
    }

    /// Adds an object if it is selected.
    pub(crate) fn choose(
        &mut self,
        object: Object,
        wanted: bool,
        progress: &mut impl FnMut(IndexProgress),
    ) -> Result<(), DatasetError> {
        if is_catalogs(&object.path) {
            self.catalogs += 1;
        } else if !wanted {
            self.unwanted += 1;
        } else {
            self.add(object)?;
            progress(self.progress);
        }
        Ok(())
    }

    pub(crate) fn add(&mut self, object: Object) -> Result<(), DatasetError> {
        self.progress.objects += 1;
        self.progress.samples += 1;
        self.progress.bytes = self.progress.bytes.saturating_add(object.size);
        if let Some(disk) = &mut self.disk {
            disk.may_be_packed = disk.may_be_packed || choose_format::may_be_packed(&object);
            disk.arrow += usize::from(Format::of_shard(&object.path) == Some(Format::Arrow));
            if self.objects.len() >= disk.most {
                disk.write(&mut self.objects)?;
            }
        }
        self.objects.push(object);
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.disk.as_ref().is_none_or(|disk| disk.runs.is_none())
    }

    /// Removes the markers of directories, or keeps them for later, because all objects are listed.
    pub(crate) fn complete(
        &mut self,
        markers: DirectoryMarkers,
        progress: &mut impl FnMut(IndexProgress),
    ) -> Result<(), DatasetError> {
        if let Some(disk) = self.disk.as_mut().filter(|disk| disk.runs.is_some()) {
            disk.write(&mut self.objects)?;
            disk.markers = Some(markers);
        } else {
            self.sift(markers, progress);
        }
        Ok(())
    }

    fn sift(&mut self, markers: DirectoryMarkers, progress: &mut impl FnMut(IndexProgress)) {
        let before = self.objects.len();
        markers.sift(&mut self.objects);
        let gone = (before - self.objects.len()) as u64;
        if gone > 0 {
            tracing::debug!(gone, "empty objects stand for directories and are not samples");
            self.progress.objects -= gone;
            self.progress.samples -= gone;
            progress(self.progress);
        }
    }

    /// The listing, if it is one of so many files that they are on disk. Shards and groups of files
    /// are in memory, however many there are.
    pub(crate) fn take_large(
        &mut self,
        options: &IndexOptions,
        progress: &mut impl FnMut(IndexProgress),
    ) -> Result<Option<LargeListing>, DatasetError> {
        let Some(ListingDisk { directory, runs: Some(runs), markers, may_be_packed, arrow, .. }) =
            self.disk.take()
        else {
            return Ok(None);
        };
        let markers = markers.unwrap_or_default();
        let are_files = match options.format {
            Some(format) => {
                format == Format::Files && !choose_format::are_looked_at(arrow, runs.len() as usize)
            }
            None => !may_be_packed && !options.format_options.is_tokens(),
        };
        if are_files && options.grouping == Grouping::None {
            return Ok(Some(LargeListing { runs, markers, directory, progress: self.progress }));
        }
        let objects = runs.merged().collect::<Result<_, _>>();
        self.objects = objects.map_err(|error| unsorted(&directory, error))?;
        self.sift(markers, progress);
        Ok(None)
    }
}

impl ListingDisk {
    /// Writes the objects as a run.
    fn write(&mut self, objects: &mut Vec<Object>) -> Result<(), DatasetError> {
        if self.runs.is_none() {
            let made = ObjectRuns::new(&self.directory);
            self.runs = Some(made.map_err(|error| unsorted(&self.directory, error))?);
        }
        match &mut self.runs {
            Some(runs) => runs.add(objects).map_err(|error| unsorted(&self.directory, error)),
            None => Ok(()),
        }
    }
}

/// The error for a directory in which a listing cannot be sorted.
pub(crate) fn unsorted(directory: &Path, error: std::io::Error) -> DatasetError {
    let message = format!(
        "{}: the listing is too long for memory, and cannot be sorted in this directory: {error}; give it \
         about 200 bytes per object, or set TMPDIR to another one",
        directory.display()
    );
    DatasetError::new(DatasetErrorKind::Io, message).with_source(error)
}
