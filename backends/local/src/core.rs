//! The origin: a directory, its profile, its readers and its listings.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use foreread_tier::{
    Buffers, ErrorKind, LayoutsFuture, Object, OriginTier, ReadFuture, ReadRequest, Tier, TierError,
    TierProfile,
};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use tokio::sync::oneshot;

use crate::LocalConfig;
use crate::error::{NAME, from_errno};
use crate::file_reader::{FileReader, check_path};
use crate::file_system::is_on_this_machine;
use crate::lister::ListSettings;
use crate::place::{self, ChangeTimes, DirectoryPlace};
use crate::pool::ReadPool;

/// A directory whose files are samples.
///
/// Reads run on the origin's own threads (`foreread-local`). The first reads start them, and they
/// end after the origin is dropped. Listings do the same (`foreread-list`). A thread that hangs in
/// the kernel (a dead file server) outlives the origin. Only its own read's future waits for it.
///
/// Absolute paths and paths with `.`, `..` or empty parts are refused before the file system sees
/// them. Symbolic links below the root may lead anywhere: users with write access there decide
/// which files are read.
#[derive(Debug)]
pub struct LocalOrigin {
    profile: TierProfile,
    config: LocalConfig,
    place: DirectoryPlace,
    pool: ReadPool<FileReader>,
    layouts: Option<LayoutReader>,
}

/// Reads the layouts of files below an open directory.
pub type LayoutReader = fn(BorrowedFd<'_>, Vec<Arc<str>>) -> LayoutsFuture;

impl LocalOrigin {
    /// Opens the directory `root`. Samples are read into memory from `buffers`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it does not exist, [`ErrorKind::Invalid`] if it is not a
    /// directory, [`ErrorKind::Denied`] if it may not be read.
    pub fn open(
        root: impl AsRef<Path>,
        config: LocalConfig,
        buffers: Arc<dyn Buffers>,
    ) -> Result<Self, TierError> {
        let root = root.as_ref();
        let name = root.display().to_string();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(root, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::NOENT => from_errno(errno, &name).with_detail("there is no such file or directory"),
            Errno::NOTDIR if is_something_else(root) => TierError::new(ErrorKind::Invalid, NAME)
                .with_object(&*name)
                .with_detail("it is not a directory")
                .with_source(std::io::Error::from(errno)),
            errno => from_errno(errno, &name),
        })?;
        let cached = is_on_this_machine(directory.as_fd());
        let patience = (!cached).then_some(config.patience);
        let profile = TierProfile::new(config.parallelism).with_kernel_cached(cached).with_patience(patience);
        place::check_descriptors().map_err(|errno| from_errno(errno, &name))?;
        let place = DirectoryPlace::of(directory.as_fd(), root);
        let reader = FileReader::new(directory, place.times, buffers);
        let pool = ReadPool::new(reader, config.name, config.bounds(), patience);
        Ok(Self { profile, config, place, pool, layouts: None })
    }

    /// The same with the layouts of its files.
    #[must_use]
    pub fn with_layouts(self, layouts: LayoutReader) -> Self {
        Self { layouts: Some(layouts), ..self }
    }

    /// The open directory.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.pool.reader().root()
    }

    /// The directory for a thread that looks at `object`.
    fn directory_for(&self, object: &str) -> Result<OwnedFd, TierError> {
        let directory = self.directory().try_clone_to_owned();
        directory.map_err(|error| from_errno(Errno::from_io_error(&error).unwrap_or(Errno::IO), object))
    }
}

fn is_something_else(path: &Path) -> bool {
    rustix::fs::stat(path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) != FileType::Directory)
}

impl Tier for LocalOrigin {
    fn name(&self) -> &str {
        self.config.name
    }

    fn profile(&self) -> &TierProfile {
        &self.profile
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        self.pool.read(request)
    }

    /// Wakes as many threads as are useful.
    fn submit(&self) {
        self.pool.submit();
    }
}

impl OriginTier for LocalOrigin {
    fn list(&self, prefix: &str, after: Option<&str>) -> BoxStream<'static, Result<Object, TierError>> {
        let LocalConfig { parallelism, list_threads: threads, name, .. } = self.config;
        let settings = ListSettings { parallelism, threads, times: self.place.times };
        let found = match self.directory_for(prefix) {
            Ok(root) => crate::lister::list(root, prefix, after, settings).left_stream(),
            Err(error) => futures::stream::iter([Err(error)]).right_stream(),
        };
        found.map(move |object| object.map_err(|error| error.with_tier(name))).boxed()
    }

    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
        let (root, times) = (self.directory_for(path), self.place.times);
        let path: Arc<str> = path.into();
        on_a_thread(self.config.name, Arc::clone(&path), move |_| stat(root?, path, times))
    }

    fn directories(&self) -> BoxFuture<'static, Result<Vec<String>, TierError>> {
        let root = self.directory_for(".");
        on_a_thread(self.config.name, ".".into(), move |is_abandoned| {
            crate::lister::directories(&root?, is_abandoned).map_err(|errno| from_errno(errno, "."))
        })
    }

    fn place(&self) -> &str {
        &self.place.place
    }

    fn layouts(&self, paths: Vec<Arc<str>>) -> Option<LayoutsFuture> {
        self.layouts.map(|layouts| layouts(self.directory(), paths))
    }
}

/// The answer of `call` about `path`, from a thread of its own. A dead file server may not answer
/// for minutes, which must not block a runtime thread. `call` gets a function that tells whether
/// the caller is gone.
fn on_a_thread<T: Send + 'static>(
    name: &'static str,
    path: Arc<str>,
    call: impl FnOnce(&dyn Fn() -> bool) -> Result<T, TierError> + Send + 'static,
) -> BoxFuture<'static, Result<T, TierError>> {
    let (done, found) = oneshot::channel();
    let started = std::thread::Builder::new().name("foreread-stat".to_owned()).spawn(move || {
        let answer = call(&|| done.is_closed());
        // The receiver may be gone.
        let _ = done.send(answer);
    });
    let closed = |path: &str| {
        TierError::new(ErrorKind::Transient, NAME)
            .with_object(path)
            .with_detail("no thread could be started; raise `ulimit -u`")
    };
    async move {
        let answer = match started {
            Ok(_) => found.await.unwrap_or_else(|_| Err(closed(&path))),
            Err(error) => Err(closed(&path).with_source(error)),
        };
        answer.map_err(|error| error.with_tier(name))
    }
    .boxed()
}

/// Describes a file below `root`.
fn stat(root: OwnedFd, path: Arc<str>, times: ChangeTimes) -> Result<Object, TierError> {
    check_path(&path)?;
    let stat = rustix::fs::statx(&root, &*path, AtFlags::empty(), place::WANTED)
        .map_err(|errno| from_errno(errno, &path))?;
    if FileType::from_raw_mode(u32::from(stat.stx_mode)) != FileType::RegularFile {
        return Err(from_errno(Errno::NOENT, &path).with_detail("it is not a file"));
    }
    Ok(Object { path, size: stat.stx_size, version: Some(times.version(&stat)) })
}
