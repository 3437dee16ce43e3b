//! The calls of the kernel, as requests to the servers.
//!
//! Decision: attributes and names are valid for no time, so the kernel sends each `stat` here. It
//! answers `statx` with `AT_STATX_DONT_SYNC` from its cache all the same, as a Lustre client does.
//! Files bypass the page cache, so that each read arrives, in parts of at most 1 MiB. The price is
//! a path lookup for each name of each path. It costs no request here, because the real client
//! sends the name with the open or the `stat`.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::sync::Arc;
use std::time::Duration;

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyXattr, Request,
};

use crate::counts::RequestKind;
use crate::engine::Part;
use crate::nodes::{attributes, join};
use crate::served::{DirectoryEntries, Handle, OpenFile, Served, WaitingRead};
use crate::stand_in::EvictedFrom;

/// The kernel requests attributes and names again at every use.
const NOT_CACHED: Duration = Duration::ZERO;

const LAYOUT: &[u8] = b"lustre.lov";
/// The attribute of a layout of CephFS.
const CEPH_LAYOUT: &[u8] = b"ceph.file.layout";

/// The file system that the kernel talks to.
pub(crate) struct FuseServer(pub Arc<Served>);

impl Served {
    /// The attributes of a node: of its open file, if there is one, or else by its path.
    fn stat(&self, node: INodeNo) -> Result<FileAttr, Errno> {
        let is_root = node == INodeNo::ROOT;
        let metadata = match self.open_file_of(node) {
            Some(open) => open.file.metadata()?,
            None => {
                let path = self.nodes.path(node).ok_or(Errno::ESTALE)?;
                fs::symlink_metadata(self.in_backing(&path))?
            }
        };
        if !is_root && metadata.ino() != node.0 {
            // Another file has this name now. The kernel looks it up again.
            return Err(Errno::ESTALE);
        }
        Ok(attributes(&metadata, is_root))
    }

    fn open(&self, node: INodeNo, path: Arc<str>) -> Result<FileHandle, Errno> {
        let file = File::open(self.in_backing(&path))?;
        if file.metadata()?.ino() != node.0 {
            return Err(Errno::ESTALE);
        }
        Ok(self.open_handle(Handle::File(Arc::new(OpenFile { file, node, path }))))
    }

    fn open_directory(&self, path: &str) -> Result<FileHandle, Errno> {
        let mut entries: DirectoryEntries = Vec::new();
        for entry in fs::read_dir(self.in_backing(path))? {
            let entry = entry?;
            let kind = FileType::from_std(entry.file_type()?).unwrap_or(FileType::RegularFile);
            entries.push((INodeNo(entry.ino()), kind, entry.file_name()));
        }
        Ok(self.open_handle(Handle::Directory(Arc::new(entries))))
    }

    /// A request to the MDT about a node. It ends with an error if the client was evicted or the
    /// node is gone, and with the path otherwise, once the MDT has answered.
    fn ask(
        self: &Arc<Self>,
        kind: RequestKind,
        node: INodeNo,
        thread: u32,
        answer: impl FnOnce(&Arc<Served>, Result<Arc<str>, Errno>) + Send + 'static,
    ) {
        let Some(path) = self.nodes.path(node) else { return answer(self, Err(Errno::ESTALE)) };
        self.count(kind, &path, thread, None);
        if let Some(errno) = self.evicted(EvictedFrom::Mdt) {
            return answer(self, Err(errno));
        }
        let server = match kind {
            RequestKind::Open | RequestKind::Flush | RequestKind::Opendir => self.opens(),
            _ => self.attributes(),
        };
        let served = Arc::clone(self);
        self.ask_mdt(server, thread, Box::new(move || answer(&served, Ok(path))));
    }

    fn seen(&self, node: INodeNo) {
        if let Some(node) = self.nodes.lock().get_mut(&node.0) {
            node.is_seen = true;
        }
    }
}

impl Filesystem for FuseServer {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Without it, one lookup of a directory waits for another. Kernels before 4.7 lack it.
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let served = &self.0;
        let found = (|| {
            let parent = served.nodes.path(parent).ok_or(Errno::ESTALE)?;
            let path = join(&parent, name.to_str().ok_or(Errno::EILSEQ)?);
            served.count(RequestKind::Lookup, &path, request.pid(), None);
            let attributes = attributes(&fs::symlink_metadata(served.in_backing(&path))?, false);
            served.nodes.found(attributes.ino, &path);
            Ok::<_, Errno>(attributes)
        })();
        match found {
            Ok(attributes) => reply.entry(&NOT_CACHED, &attributes, Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn getattr(&self, request: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let thread = request.pid();
        self.0.ask(RequestKind::Getattr, node, thread, move |served, asked| {
            let found = asked.and_then(|path| Ok((served.stat(node)?, path)));
            let (attributes, path) = match found {
                Ok(found) => found,
                Err(errno) => return reply.error(errno),
            };
            served.seen(node);
            let glimpses: Vec<Part> = match attributes.kind {
                FileType::RegularFile => served.glimpses(node, &path, attributes.size),
                _ => Vec::new(),
            };
            served.engine.submit(thread, &glimpses, Box::new(move || reply.attr(&NOT_CACHED, &attributes)));
        });
    }

    fn readlink(&self, _: &Request, node: INodeNo, reply: ReplyData) {
        let target = self.0.nodes.path(node).and_then(|path| fs::read_link(self.0.in_backing(&path)).ok());
        match target {
            Some(target) => reply.data(target.as_os_str().as_bytes()),
            None => reply.error(Errno::EINVAL),
        }
    }

    fn open(&self, request: &Request, node: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.0.ask(RequestKind::Open, node, request.pid(), move |served, asked| {
            match asked.and_then(|path| served.open(node, path)) {
                Ok(handle) => {
                    served.seen(node);
                    let cached = served.options.cached;
                    let direct = FopenFlags::FOPEN_DIRECT_IO;
                    reply.opened(handle, if cached { FopenFlags::FOPEN_KEEP_CACHE } else { direct });
                }
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn read(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.0.handle(handle) {
            Some(Handle::File(file)) => {
                let (size, thread) = (u64::from(size), request.pid());
                self.0.read(WaitingRead { file, offset, size, thread, reply });
            }
            _ => reply.error(Errno::EBADF),
        }
    }

    fn flush(&self, request: &Request, node: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        self.0.ask(RequestKind::Flush, node, request.pid(), move |_, asked| match asked {
            Ok(_) => reply.ok(),
            Err(errno) => reply.error(errno),
        });
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.0.close_handle(handle);
        reply.ok();
    }

    fn opendir(&self, request: &Request, node: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.0.ask(RequestKind::Opendir, node, request.pid(), move |served, asked| {
            match asked.and_then(|path| served.open_directory(&path)) {
                Ok(handle) => reply.opened(handle, FopenFlags::empty()),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn readdir(
        &self,
        request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let Some(Handle::Directory(entries)) = self.0.handle(handle) else {
            return reply.error(Errno::EBADF);
        };
        let fill = move |mut reply: ReplyDirectory| {
            let rest = entries.iter().enumerate().skip(offset as usize);
            for (number, (node, kind, name)) in rest {
                if reply.add(*node, number as u64 + 1, *kind, name) {
                    break;
                }
            }
            reply.ok();
        };
        // Lustre sends a megabyte of entries at a time, so the first part stands for all.
        if offset > 0 {
            return fill(reply);
        }
        self.0.ask(RequestKind::Readdir, node, request.pid(), move |_, asked| match asked {
            Ok(_) => fill(reply),
            Err(errno) => reply.error(errno),
        });
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.0.close_handle(handle);
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match rustix::fs::statvfs(&self.0.backing) {
            Ok(of) => {
                let (block, fragment) = (of.f_bsize as u32, of.f_frsize as u32);
                let name = of.f_namemax as u32;
                reply.statfs(of.f_blocks, of.f_bfree, 0, of.f_files, of.f_ffree, block, name, fragment);
            }
            Err(errno) => reply.error(Errno::from_i32(errno.raw_os_error())),
        }
    }

    fn getxattr(&self, request: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        match &self.0.options.ceph_layout {
            Some(layout) if name.as_bytes() == CEPH_LAYOUT && size as usize >= layout.len() => {
                return reply.data(layout.as_bytes());
            }
            None if name.as_bytes() == LAYOUT => {}
            _ => return reply.error(Errno::EOPNOTSUPP),
        }
        let answer = move |served: &Arc<Served>, asked: Result<Arc<str>, Errno>| {
            let value = asked.and_then(|path| {
                let attributes = served.stat(node)?;
                served.seen(node);
                let is_file = attributes.kind == FileType::RegularFile;
                let layout = is_file.then(|| served.layout(node, &path, attributes.size));
                layout.and_then(|layout| layout.encode()).ok_or(Errno::ENODATA)
            });
            match value {
                Err(errno) => reply.error(errno),
                Ok(value) if size == 0 => reply.size(value.len() as u32),
                Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
                Ok(value) => reply.data(&value),
            }
        };
        let known =
            self.0.nodes.lock().get(&node.0).filter(|node| node.is_seen).map(|node| Arc::clone(&node.path));
        match known {
            Some(path) => {
                self.0.count(RequestKind::Getxattr, &path, request.pid(), None);
                answer(&self.0, Ok(path));
            }
            None => self.0.ask(RequestKind::Getxattr, node, request.pid(), answer),
        }
    }
}
