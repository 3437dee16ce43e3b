//! The origin: a directory, its profile, its readers and its listings.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foreread_tier::{
    Buffers, ErrorKind, Object, OriginTier, ReadFuture, ReadRequest, Tier, TierError, TierProfile,
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
    root: PathBuf,
    profile: TierProfile,
    config: LocalConfig,
    place: DirectoryPlace,
    pool: ReadPool<FileReader>,
}

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
        Ok(Self { root: root.to_owned(), profile, config, place, pool })
    }

    /// The directory as it was given.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The open directory.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.pool.reader().root()
    }
}

fn is_something_else(path: &Path) -> bool {
    rustix::fs::stat(path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) != FileType::Directory)
}

impl Tier for LocalOrigin {
    fn name(&self) -> &str {
        NAME
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
        let root = self.pool.reader().root().as_fd().try_clone_to_owned();
        match root {
            Ok(root) => {
                let (parallelism, threads) = (self.config.parallelism, self.config.list_threads);
                let settings = ListSettings { parallelism, threads, times: self.place.times };
                crate::lister::list(root, prefix, after, settings).boxed()
            }
            Err(error) => {
                let error = from_errno(Errno::from_io_error(&error).unwrap_or(Errno::IO), prefix);
                futures::stream::iter([Err(error)]).boxed()
            }
        }
    }

    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
        let root = self.pool.reader().root().as_fd().try_clone_to_owned();
        let (path, times): (Arc<str>, _) = (path.into(), self.place.times);
        let requested = Arc::clone(&path);
        on_a_thread(Arc::clone(&path), move |_| {
            let root = root.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
            root.map_err(|errno| from_errno(errno, &requested)).and_then(|root| stat(root, requested, times))
        })
    }

    fn directories(&self) -> BoxFuture<'static, Result<Vec<String>, TierError>> {
        let root = self.pool.reader().root().as_fd().try_clone_to_owned();
        on_a_thread(".".into(), move |is_abandoned| {
            let root = root.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
            root.and_then(|root| crate::lister::directories(&root, is_abandoned))
                .map_err(|errno| from_errno(errno, "."))
        })
    }

    fn place(&self) -> &str {
        &self.place.place
    }

    fn layouts(&self, _paths: Vec<Arc<str>>) -> Option<foreread_tier::LayoutsFuture> {
        None
    }
}

/// The answer of `call` about `path`, from a thread of its own. A dead file server may not answer
/// for minutes, which must not block a runtime thread. `call` gets a function that tells whether
/// the caller is gone.
fn on_a_thread<T: Send + 'static>(
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
        match started {
            Ok(_) => found.await.unwrap_or_else(|_| Err(closed(&path))),
            Err(error) => Err(closed(&path).with_source(error)),
        }
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
