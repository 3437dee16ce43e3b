//! A process that answers for the opens of programs without libc (`--catch all`).
//!
//! It is the parent of the program, and starts it when it knows where the table is. It has no
//! engine and no threads. So it outlives the process that makes copies, and has the kernel carry
//! out the opens then. It ends with the last process of the program.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Component, Path, PathBuf};
use std::process::{Child, Command, ExitStatus};

use foreread_preload::layout::{OpenKind, OpenPurpose, PathHash, open_flags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use crate::copying::copy_path;
use crate::original::identity_of;
use crate::seccomp::{Listener, OpenFlags, StoppedOpen, stop_at_opens};
use crate::table::Table;
use crate::trace::Trace;

/// The longest path of an open.
const PATH_BYTES: usize = 4096;

/// The process, before it starts the program.
#[derive(Debug)]
pub struct Catcher {
    to: UnixStream,
    process: u32,
}

/// The program that it has started.
#[derive(Debug)]
pub struct Caught {
    from: UnixStream,
    process: u32,
}

impl Catcher {
    /// Makes the process. This process must have no other threads yet.
    ///
    /// # Errors
    /// If the system has no process or socket left.
    pub fn fork() -> io::Result<Self> {
        let (to, from) = UnixStream::pair()?;
        // SAFETY: there are no other threads, whose locks the new process would have for ever.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(to);
                supervise(from);
                // SAFETY: it ends this process without what the other one has registered.
                unsafe { libc::_exit(0) }
            }
            process => Ok(Self { to, process: process as u32 }),
        }
    }

    /// Starts a program with these environment variables in addition.
    ///
    /// # Errors
    /// If the program cannot be started, or the kernel refuses the filter.
    pub fn start(mut self, words: &[OsString], variables: &[(&str, OsString)]) -> io::Result<Caught> {
        let mut message = Vec::new();
        for part in [words.len().to_string().as_bytes()]
            .into_iter()
            .chain(words.iter().map(|word| word.as_bytes()))
            .chain(variables.iter().flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]))
        {
            message.extend(part);
            message.push(0);
        }
        self.to.write_all(&(message.len() as u64).to_le_bytes())?;
        self.to.write_all(&message)?;
        let mut answer = [0_u8; 8];
        self.to.read_exact(&mut answer)?;
        match i64::from_le_bytes(answer) {
            0 => Ok(Caught { from: self.to, process: self.process }),
            number => Err(io::Error::from_raw_os_error(number as i32)),
        }
    }
}

impl Caught {
    /// The process that passes signals on to the program.
    pub fn id(&self) -> u32 {
        self.process
    }

    /// Waits for the program.
    ///
    /// # Errors
    /// If the process that has started it was killed.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        let mut answer = [0_u8; 8];
        self.from.read_exact(&mut answer)?;
        Ok(ExitStatus::from_raw(i64::from_le_bytes(answer) as i32))
    }
}

/// The program, for the handler of signals.
static PROGRAM: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(0);

extern "C" fn pass_on(signal: libc::c_int) {
    let program = PROGRAM.load(std::sync::atomic::Ordering::Relaxed);
    if program > 0 {
        // SAFETY: a system call, which a handler may make.
        unsafe { libc::kill(program, signal) };
    }
}

extern "C" fn nothing(_: libc::c_int) {}

/// Signals that end this process are for the program. Those of the terminal reach it by themselves.
fn pass_signals() {
    let (pass_on, nothing) = (pass_on as extern "C" fn(libc::c_int), nothing as extern "C" fn(libc::c_int));
    for signal in [libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler makes one system call.
        unsafe { libc::signal(signal, pass_on as libc::sighandler_t) };
    }
    for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGPIPE] {
        // SAFETY: the handler does nothing. Unlike an ignored signal, it is not inherited.
        unsafe { libc::signal(signal, nothing as libc::sighandler_t) };
    }
}

/// What the process does. Every failure ends it, and with it the service.
fn supervise(mut with: UnixStream) {
    pass_signals();
    let Some((words, variables)) = read_command(&mut with) else { return };
    let trace = variables.iter().find(|(name, _)| name == foreread_preload::VARIABLE);
    let trace = trace.and_then(|(_, path)| Trace::open(Path::new(path)));
    let answer = |with: &mut UnixStream, number: i64| with.write_all(&number.to_le_bytes());
    let (mut child, listener) = match start(&words, &variables) {
        Ok(started) => started,
        Err(error) => {
            let _ = answer(&mut with, error.raw_os_error().unwrap_or(libc::EINVAL).into());
            return;
        }
    };
    PROGRAM.store(child.id() as i32, std::sync::atomic::Ordering::Relaxed);
    let _ = answer(&mut with, 0);
    let mut supervisor = Supervisor { trace, table: None };
    let mut reported = false;
    loop {
        let mut wanted = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, which the kernel fills.
        unsafe { libc::poll(&raw mut wanted, 1, 20) };
        if wanted.revents & libc::POLLIN != 0
            && let Some(open) = listener.receive()
        {
            supervisor.answer(&listener, &open);
        }
        if !reported && let Ok(Some(status)) = child.try_wait() {
            reported = true;
            // The other process may be gone.
            let _ = answer(&mut with, status.into_raw().into());
        }
        // No process has the filter any more.
        if wanted.revents & (libc::POLLHUP | libc::POLLERR) != 0 && reported {
            return;
        }
    }
}

type Words = (Vec<OsString>, Vec<(OsString, OsString)>);

fn read_command(from: &mut UnixStream) -> Option<Words> {
    let mut length = [0_u8; 8];
    from.read_exact(&mut length).ok()?;
    let mut message = vec![0_u8; u64::from_le_bytes(length) as usize];
    from.read_exact(&mut message).ok()?;
    let mut parts = message.strip_suffix(b"\0")?.split(|byte| *byte == 0);
    let count: usize = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
    let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let words: Vec<OsString> = parts.by_ref().take(count).map(text).collect();
    let rest: Vec<OsString> = parts.map(text).collect();
    let (pairs, _) = rest.as_chunks::<2>();
    Some((words, pairs.iter().map(|[name, value]| (name.clone(), value.clone())).collect()))
}

/// Starts the program with the filter, and returns the listener.
fn start(words: &[OsString], variables: &[(OsString, OsString)]) -> io::Result<(Child, Listener)> {
    let [program, arguments @ ..] = words else { return Err(io::ErrorKind::InvalidInput.into()) };
    let (own, its) = UnixStream::pair()?;
    let mut command = Command::new(program);
    command.args(arguments).envs(variables.iter().map(|(name, value)| (name, value)));
    // SAFETY: between fork and exec, it makes system calls only.
    unsafe { command.pre_exec(move || send(&its, stop_at_opens()?.as_fd())) };
    let child = command.spawn()?;
    Ok((child, Listener::new(receive(&own)?)))
}

fn send(to: &UnixStream, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    rustix::net::sendmsg(to, &[IoSlice::new(b"l")], &mut ancillary, SendFlags::empty())?;
    Ok(())
}

fn receive(from: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0_u8];
    rustix::net::recvmsg(from, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut received = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    received.next().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

struct Supervisor {
    trace: Option<Trace>,
    table: Option<(PathBuf, Table)>,
}

impl Supervisor {
    fn answer(&mut self, listener: &Listener, open: &StoppedOpen) {
        let copy = self.copy(listener, open);
        let is_closed = matches!(open.flags, OpenFlags::Known(flags) if flags & libc::O_CLOEXEC != 0);
        match copy {
            Some((file, hash, bytes)) if listener.give(open, &file, is_closed) => {
                if let Some(trace) = &self.trace {
                    trace.note(hash, OpenKind::Served, bytes);
                }
            }
            _ => listener.let_through(open),
        }
    }

    /// The copy for an open, if there is one.
    fn copy(&mut self, listener: &Listener, open: &StoppedOpen) -> Option<(File, u64, u64)> {
        self.open_table()?;
        let memory = File::open(format!("/proc/{}/mem", open.process)).ok()?;
        let path = read_path(&memory, open.path)?;
        let flags = match open.flags {
            OpenFlags::Known(flags) => flags,
            OpenFlags::At(at) => {
                let mut how = [0_u8; 24];
                memory.read_exact_at(&mut how, at).ok()?;
                // The kernel resolves such a path in its own way.
                let resolve = u64::from_le_bytes(how[16..24].try_into().ok()?);
                let flags = u64::from_le_bytes(how[..8].try_into().ok()?) as i32;
                if resolve != 0 { flags | open_flags::PATH } else { flags }
            }
        };
        let path = absolute(open, &path)?;
        // What was read is that of the process that waits.
        if !listener.is_waiting(open) {
            return None;
        }
        let (_, table) = self.table.as_ref()?;
        let purpose = OpenPurpose::of(flags);
        if purpose == OpenPurpose::Write {
            let hashes = [hash(table, &path), real(&path).and_then(|path| hash(table, &path))];
            for hash in hashes.into_iter().flatten() {
                if let Some(place) = table.find(hash) {
                    table.mark(place);
                    self.note(open.process, hash, OpenKind::Writing);
                }
            }
            return None;
        }
        if purpose == OpenPurpose::Other {
            return None;
        }
        let hash = hash(table, &path)?;
        let found = table.find(hash).map(|place| table.copy_at(place));
        let Some(Some(copy)) = found else {
            let kind = if found.is_some() { OpenKind::Absent } else { OpenKind::Unknown };
            self.note(open.process, hash, kind);
            return None;
        };
        let is_link = copy.is_link && flags & open_flags::NO_FOLLOW != 0;
        if is_link || table.checks() && !identity_of(&path)?.has_content_of(&copy.original) {
            return None;
        }
        let file = File::open(copy_path(&table.directory(), hash, copy.generation)).ok()?;
        Some((file, hash, copy.original.size))
    }

    /// Records an open, unless the preloaded library does.
    fn note(&self, process: u32, hash: u64, kind: OpenKind) {
        if let Some(trace) = self.trace.as_ref().filter(|_| !is_preloaded(process)) {
            trace.note(hash, kind, 0);
        }
    }

    /// The table of the run.
    fn open_table(&mut self) -> Option<()> {
        if self.table.is_none() {
            let path = self.trace.as_ref()?.table();
            self.table = Some((path.clone(), Table::open(path.parent()?)?));
        }
        Some(())
    }
}

/// Whether a process has the preloaded library now. It may have started another program since its
/// last open.
fn is_preloaded(process: u32) -> bool {
    let maps = std::fs::read(format!("/proc/{process}/maps")).unwrap_or_default();
    maps.windows(8).any(|part| part == b"preload-")
}

/// The hash of the file of a dataset that a path means by its words.
fn hash(table: &Table, path: &Path) -> Option<u64> {
    table.names().into_iter().find_map(|(root, number)| {
        let below = path.strip_prefix(&root).ok()?;
        let bytes = below.as_os_str().as_bytes().iter().copied();
        PathHash::new(table.key(), number).add(bytes, true)?.finish()
    })
}

/// A path without links and `..`. Its last name may be absent.
fn real(path: &Path) -> Option<PathBuf> {
    if let Ok(path) = path.canonicalize() {
        return Some(path);
    }
    Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?))
}

/// A path in a program's memory.
fn read_path(memory: &File, at: u64) -> Option<OsString> {
    let mut path = Vec::new();
    while path.len() < PATH_BYTES {
        // Not beyond the end of a page, after which there may be nothing.
        let here = at + path.len() as u64;
        let mut piece = vec![0_u8; (4096 - here % 4096) as usize];
        let length = memory.read_at(&mut piece, here).ok().filter(|length| *length > 0)?;
        match piece[..length].iter().position(|byte| *byte == 0) {
            Some(end) => {
                path.extend(&piece[..end]);
                return Some(OsString::from_vec(path));
            }
            None => path.extend(&piece[..length]),
        }
    }
    None
}

/// The absolute path that a program means. `None` if its root is not this process's.
fn absolute(open: &StoppedOpen, path: &OsStr) -> Option<PathBuf> {
    let of = PathBuf::from(format!("/proc/{}", open.process));
    if path.is_empty() || std::fs::read_link(of.join("root")).ok()? != Path::new("/") {
        return None;
    }
    let path = Path::new(path);
    let whole = match open.directory {
        _ if path.is_absolute() => path.to_owned(),
        libc::AT_FDCWD => std::fs::read_link(of.join("cwd")).ok()?.join(path),
        directory => std::fs::read_link(of.join(format!("fd/{directory}"))).ok()?.join(path),
    };
    // Without `//` and `/./`.
    Some(whole.components().filter(|part| *part != Component::CurDir).collect())
}
