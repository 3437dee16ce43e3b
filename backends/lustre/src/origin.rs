//! A directory of a Lustre file system as an origin.
//!
//! Reads, listings and the bounds on silent servers are those of [`LocalOrigin`]. This origin adds
//! the layouts of files, and lists each directory on one thread, because Lustre reads attributes
//! ahead for a single thread only.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use foreread_local::{ListThreads, LocalConfig, LocalOrigin};
use foreread_tier::{
    Buffers, LayoutsFuture, Object, ObjectLayout, OriginTier, ReadFuture, ReadRequest, Tier, TierError,
    TierProfile,
};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt, future};
use tokio::sync::oneshot;

use crate::{NAME, read_layout};

/// Threads that read layouts. After a listing the client has most of them.
const LAYOUT_THREADS: usize = 8;

/// A directory of a Lustre file system whose files are samples.
///
/// It may be opened on any directory. On other file systems no file has a layout.
#[derive(Debug)]
pub struct LustreOrigin {
    files: LocalOrigin,
}

impl LustreOrigin {
    /// Opens the directory `root`. Samples are read into memory from `buffers`.
    ///
    /// # Errors
    /// Those of [`LocalOrigin::open`].
    pub fn open(
        root: impl AsRef<Path>,
        config: LocalConfig,
        buffers: Arc<dyn Buffers>,
    ) -> Result<Self, TierError> {
        let config = config.with_list_threads(ListThreads::OnePerDirectory).with_name(NAME);
        Ok(Self { files: LocalOrigin::open(root, config, buffers)? })
    }
}

impl Tier for LustreOrigin {
    fn name(&self) -> &str {
        NAME
    }

    fn profile(&self) -> &TierProfile {
        self.files.profile()
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        self.files.read(request)
    }

    fn submit(&self) {
        self.files.submit();
    }
}

impl OriginTier for LustreOrigin {
    fn list(&self, prefix: &str, after: Option<&str>) -> BoxStream<'static, Result<Object, TierError>> {
        self.files.list(prefix, after).map(|object| object.map_err(|error| error.with_tier(NAME))).boxed()
    }

    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
        self.files.stat(path).map(|object| object.map_err(|error| error.with_tier(NAME))).boxed()
    }

    fn directories(&self) -> BoxFuture<'static, Result<Vec<String>, TierError>> {
        self.files.directories().map(|names| names.map_err(|error| error.with_tier(NAME))).boxed()
    }

    fn place(&self) -> &str {
        self.files.place()
    }

    /// Reads the layouts on some threads. A file whose layout cannot be read has none.
    fn layouts(&self, paths: Vec<Arc<str>>) -> Option<LayoutsFuture> {
        let parts: Vec<_> =
            paths.chunks(paths.len().div_ceil(LAYOUT_THREADS).max(1)).map(<[_]>::to_vec).collect();
        let root = self.files.directory();
        let reads: Vec<_> = parts.into_iter().map(|part| read_part(root, part)).collect();
        Some(future::join_all(reads).map(|parts| parts.into_iter().flatten().collect()).boxed())
    }
}

/// Reads some layouts on a thread of their own.
fn read_part(
    root: BorrowedFd<'_>,
    paths: Vec<Arc<str>>,
) -> impl Future<Output = Vec<Option<Box<dyn ObjectLayout>>>> + Send + 'static {
    let (done, layouts) = oneshot::channel();
    let (count, root) = (paths.len(), root.try_clone_to_owned());
    let read = move || {
        if let Ok(root) = root {
            // The receiver may be gone.
            let _ = done.send(read_all(&root, &paths));
        }
    };
    // Without a thread, or if it ends early, the channel is closed: no layout is known.
    let started = std::thread::Builder::new().name("foreread-layouts".to_owned()).spawn(read);
    async move {
        let unknown = || std::iter::repeat_with(|| None).take(count).collect();
        match started {
            Ok(_) => layouts.await.unwrap_or_else(|_| unknown()),
            Err(_) => unknown(),
        }
    }
}

fn read_all(root: &OwnedFd, paths: &[Arc<str>]) -> Vec<Option<Box<dyn ObjectLayout>>> {
    let layout = |path: &Arc<str>| {
        let layout = read_layout(root.as_fd(), path).ok().flatten()?;
        layout.is_known().then(|| Box::new(layout) as Box<dyn ObjectLayout>)
    };
    paths.iter().map(layout).collect()
}
