//! Opens directories by path or URL, and detects Lustre.
//!
//! A directory is on Lustre if its file system says so. It also is if it is on no local file system
//! and a file in it has a valid layout. That covers clients that reach Lustre through another file
//! system. The price is some requests when such a directory is opened.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use foreread_local::{LocalConfig, LocalOrigin, directory_of};
use foreread_tier::{Backend, Buffers, ErrorKind, OpenContext, OpenOptions, OriginTier, Tier, TierError};
use rustix::fs::{Dir, FileType, Mode, OFlags};

use crate::{NAME, ceph, open_lustre, read_layout};

/// The magic number of Lustre's file system.
const LUSTRE: u64 = 0x0BD0_0BD0;

/// Directory entries that are searched for a file with a layout.
const MOST_ENTRIES: usize = 256;

/// Nested directories that are searched.
const MOST_DEPTH: usize = 4;

/// Opens the directories that plain paths and `file` URLs name, on Lustre or not.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct LustreBackend;

impl LustreBackend {
    /// The backend. It has no settings.
    pub const fn new() -> Self {
        Self
    }
}

#[async_trait]
impl Backend for LustreBackend {
    fn schemes(&self) -> &[&str] {
        &["file", "lustre"]
    }

    /// [`open_lustre`] on Lustre, else a [`LocalOrigin`]. For `lustre:///directory` it is
    /// [`open_lustre`] on any file system.
    ///
    /// # Cancel safety
    /// A dropped future leaves no thread or file once the directory has been opened or refused.
    async fn open(
        &self,
        url: &str,
        options: &OpenOptions,
        context: &OpenContext,
    ) -> Result<Arc<dyn OriginTier>, TierError> {
        let forced = url.get(..9).filter(|scheme| scheme.eq_ignore_ascii_case("lustre://"));
        let directory = match forced {
            Some(scheme) => directory_of(&format!("file://{}", &url[scheme.len()..]))?,
            None => directory_of(url)?,
        };
        let (config, is_lustre) = (LocalConfig::from_options(options)?, forced.is_some());
        let buffers = Arc::clone(&context.buffers);
        // A dead file server may not answer for minutes, which must not block a runtime thread.
        let open = move || open(&directory, config, buffers, is_lustre);
        let opening = context.runtime.spawn_blocking(open);
        opening.await.unwrap_or_else(|error| {
            Err(TierError::new(ErrorKind::Closed, NAME)
                .with_object(url)
                .with_detail("the runtime ended while the directory was opened")
                .with_source(error))
        })
    }
}

fn open(
    directory: &Path,
    config: LocalConfig,
    buffers: Arc<dyn Buffers>,
    is_lustre: bool,
) -> Result<Arc<dyn OriginTier>, TierError> {
    let local = LocalOrigin::open(directory, config.clone(), Arc::clone(&buffers))?;
    let is_lustre = is_lustre
        || local.profile().patience.is_some()
            && match detect(local.directory()) {
                Some(FileLayout::Lustre) => true,
                Some(FileLayout::Ceph(layout)) => {
                    tracing::info!("{} is on CephFS, with the layout {layout}", directory.display());
                    false
                }
                None => false,
            };
    if is_lustre {
        return Ok(Arc::new(open_lustre(directory, config, buffers)?));
    }
    Ok(Arc::new(local))
}

/// A kind of file system that tells how it stores a file.
enum FileLayout {
    Lustre,
    Ceph(String),
}

/// The kind of file system of a directory, by its number or by the layout of a file.
fn detect(directory: BorrowedFd<'_>) -> Option<FileLayout> {
    let is_lustre =
        rustix::fs::fstatfs(directory).is_ok_and(|stat| stat.f_type as u64 & 0xFFFF_FFFF == LUSTRE);
    if is_lustre { Some(FileLayout::Lustre) } else { first_layout(directory, MOST_DEPTH).flatten() }
}

/// The layout of the first file below a directory. `None` if there is no file.
fn first_layout(directory: BorrowedFd<'_>, depth: usize) -> Option<Option<FileLayout>> {
    let mut below: Vec<OwnedFd> = Vec::new();
    for entry in Dir::read_from(directory).ok()?.take(MOST_ENTRIES).flatten() {
        let Ok(name) = entry.file_name().to_str() else { continue };
        if name.starts_with('.') {
            continue;
        }
        match entry.file_type() {
            FileType::RegularFile => {
                let layout = read_layout(directory, name).ok()?;
                let is_lustre = layout.is_some_and(|layout| layout.is_known() && layout.stripe_count() > 0);
                let ceph = || ceph::layout(directory, name).map(FileLayout::Ceph);
                return Some(if is_lustre { Some(FileLayout::Lustre) } else { ceph() });
            }
            FileType::Directory if depth > 0 && below.len() < MOST_DEPTH => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                below.extend(rustix::fs::openat(directory, name, flags, Mode::empty()));
            }
            _ => {}
        }
    }
    below.iter().find_map(|below| first_layout(below.as_fd(), depth - 1))
}
