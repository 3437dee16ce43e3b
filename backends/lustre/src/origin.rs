//! A directory of a Lustre file system as an origin.
//!
//! Reads, listings and the bounds on silent servers are those of [`LocalOrigin`]. It also has
//! the layouts of files, and lists each directory on one thread, because Lustre reads attributes
//! ahead for a single thread only.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use foreread_local::{ListThreads, LocalConfig, LocalOrigin};
use foreread_tier::{Buffers, LayoutsFuture, ObjectLayout, TierError};
use futures::{FutureExt, future};
use tokio::sync::oneshot;

use crate::{NAME, read_layout};

/// Threads that read layouts. After a listing the client has most of them.
const LAYOUT_THREADS: usize = 8;

/// Opens the directory `root` of a Lustre file system. Samples are read into memory from `buffers`.
///
/// It may be any directory. On other file systems no file has a layout.
///
/// # Errors
/// Those of [`LocalOrigin::open`].
pub fn open_lustre(
    root: impl AsRef<Path>,
    mut config: LocalConfig,
    buffers: Arc<dyn Buffers>,
) -> Result<LocalOrigin, TierError> {
    (config.list_threads, config.name) = (ListThreads::OnePerDirectory, NAME);
    Ok(LocalOrigin::open(root, config, buffers)?.with_layouts(layouts))
}

/// Reads the layouts on some threads. A file whose layout cannot be read has none.
fn layouts(root: BorrowedFd<'_>, paths: Vec<Arc<str>>) -> LayoutsFuture {
    let parts = paths.chunks(paths.len().div_ceil(LAYOUT_THREADS).max(1));
    let reads: Vec<_> = parts.map(|part| read_part(root, part.to_vec())).collect();
    future::join_all(reads).map(|parts| parts.into_iter().flatten().collect()).boxed()
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
