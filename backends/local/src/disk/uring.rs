//! A ring of reads that the kernel executes. This is the tier's only file with `unsafe`.
//!
//! It is sound by ownership. A pushed read *moves* into the ring with its memory, file and context,
//! and comes out only with its completion. Until then no code can free, move or read the memory. A
//! ring that is dropped with reads in flight leaks them, because the kernel may still write to
//! their memory. The owning thread waits for all reads before the drop, so that happens only if it
//! panics.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use foreread_tier::Buffer;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::file::DirectFile;

/// The maximum length of one read in bytes: the kernel's limit rounded down to a power of two. Less
/// in tests, so that reads complete in parts.
const MAX_READ: usize = if cfg!(test) { 8192 } else { 1 << 30 };

/// The completion of a wake-up. Reads are numbered from 0.
const WAKE_EVENT: u64 = u64::MAX;

/// A read that fills `buffer` from `offset` in `file`.
#[derive(Debug)]
pub(super) struct RingRead<T> {
    pub(super) file: Arc<DirectFile>,
    pub(super) buffer: Buffer,
    pub(super) offset: u64,
    /// The caller's data.
    pub(super) context: T,
}

/// Wakes the thread that waits at a ring, from any other thread.
#[derive(Clone, Debug)]
pub(super) struct RingWaker(Arc<OwnedFd>);

impl RingWaker {
    pub(super) fn wake(&self) {
        // This fails only after four billion wake-ups without a read, and the thread is awake then.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    fn reset(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0; 8]); // failure means that it is reset already
    }
}

/// A ring with a fixed number of slots for reads.
pub(super) struct ReadRing<T> {
    ring: IoUring,
    /// By the kernel's number of the read.
    slots: Vec<Option<RingRead<T>>>,
    free: Vec<usize>,
    waker: RingWaker,
    /// The kernel polls the waker.
    polling_waker: bool,
}

impl<T> fmt::Debug for ReadRing<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadRing")
            .field("depth", &self.slots.len())
            .field("free", &self.free.len())
            .finish_non_exhaustive()
    }
}

impl<T> ReadRing<T> {
    /// A ring for `depth` concurrent reads. Only the calling thread may use it.
    ///
    /// # Errors
    /// If the kernel or a sandbox refuses: `ENOSYS`, `EPERM`, `ENOMEM`, or `Unsupported` if it is
    /// too old.
    pub(super) fn new(depth: usize) -> io::Result<Self> {
        let entries = (depth as u32 + 1).next_power_of_two();
        // Completions are processed only when this thread requests them (Linux 6.1).
        let ring = match IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(entries) {
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => IoUring::new(entries)?,
            other => other?,
        };
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "it needs Linux 5.11 or newer"));
        }
        let waker = RingWaker(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?));
        let slots = std::iter::repeat_with(|| None).take(depth).collect();
        Ok(Self { ring, slots, free: (0..depth).rev().collect(), waker, polling_waker: false })
    }

    pub(super) fn waker(&self) -> RingWaker {
        self.waker.clone()
    }

    /// The number of free slots.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// The number of reads in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Takes a read. The next [`submit`](Self::submit) or wait passes it to the kernel. Returns the
    /// read if no slot is free.
    pub(super) fn push(&mut self, mut read: RingRead<T>) -> Result<(), RingRead<T>> {
        let Some(at) = self.free.pop() else { return Err(read) };
        let mut target: (*mut u8, usize) = (std::ptr::null_mut(), 0);
        // Fills nothing: only takes the address of the empty part.
        let Ok(_) = read.buffer.fill(|empty: &mut [MaybeUninit<u8>]| {
            target = (empty.as_mut_ptr().cast(), empty.len().min(MAX_READ));
            Ok::<&mut [u8], Infallible>(&mut [])
        });
        let from = read.offset + read.buffer.filled() as u64;
        let descriptor = Fd(read.file.descriptor().as_raw_fd());
        let entry = opcode::Read::new(descriptor, target.0, target.1 as u32).offset(from).build();
        self.slots[at] = Some(read);
        // SAFETY: the kernel writes at most `target.1` bytes from `target.0` on, which are the
        // empty part of `buffer`. They are valid for writes, belong to `buffer` alone, and are not
        // read as initialised memory. `buffer` and the open file are in `slots[at]` before the
        // kernel sees the read. They are taken out only in `reap`, with the read's only completion,
        // and never dropped before: `drop` leaks the rest. The allocation does not move with its
        // `Buffer`.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(at as u64)) };
        if pushed.is_ok() {
            return Ok(());
        }
        self.free.push(at);
        self.slots[at].take().map_or(Ok(()), Err)
    }

    /// Passes the pushed reads to the kernel.
    ///
    /// # Errors
    /// If the kernel does not take them now. They stay pushed.
    pub(super) fn submit(&mut self) -> io::Result<()> {
        self.enter(0, None)
    }

    /// Passes the pushed reads to the kernel and waits for a completion or a wake-up.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub(super) fn wait(&mut self) -> io::Result<()> {
        self.enter(1, None)
    }

    /// Passes the pushed reads to the kernel and waits for `count` completions, at most for
    /// `limit`. A wake-up counts as one completion. With a `count` above 1 it may be noticed only
    /// after `limit`.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub(super) fn wait_for(&mut self, count: usize, limit: Duration) -> io::Result<()> {
        self.enter(count, Some(limit))
    }

    /// Waits for `count` completions. Without a limit `count` must be at most 1, or a wake-up would
    /// be missed.
    fn enter(&mut self, count: usize, limit: Option<Duration>) -> io::Result<()> {
        if count > 0 && !self.polling_waker {
            let entry = opcode::PollAdd::new(Fd(self.waker.0.as_raw_fd()), libc::POLLIN as u32).build();
            // SAFETY: this operation touches no memory of this process, and the kernel holds the
            // descriptor's file itself.
            self.polling_waker = unsafe { self.ring.submission().push(&entry.user_data(WAKE_EVENT)) }.is_ok();
        }
        let limit = limit.map(Timespec::from);
        let mut args = SubmitArgs::new();
        if let Some(limit) = &limit {
            args = args.timespec(limit);
        }
        match self.ring.submitter().submit_with_args(count, &args) {
            Ok(_) => Ok(()),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::TIME | Errno::INTR) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Moves the completed reads into `into`, with filled buffers and the number of bytes read.
    pub(super) fn reap(&mut self, into: &mut Vec<(RingRead<T>, Result<usize, Errno>)>) {
        for completion in self.ring.completion() {
            if completion.user_data() == WAKE_EVENT {
                self.waker.reset();
                self.polling_waker = false;
                continue;
            }
            let at = completion.user_data() as usize;
            let Some(mut read) = self.slots.get_mut(at).and_then(Option::take) else { continue };
            self.free.push(at);
            let answer = usize::try_from(completion.result())
                .map_err(|_| Errno::from_raw_os_error(-completion.result()));
            let answer = answer.and_then(|count| {
                read.buffer.fill(|empty| {
                    // SAFETY: the kernel reports that it has written the first `count` bytes of the
                    // empty part at the time of the push. The buffer has been in its slot since, so
                    // that part is the same. The kernel no longer uses the memory.
                    Ok(unsafe { empty[..count].assume_init_mut() })
                })
            });
            into.push((read, answer));
        }
    }
}

impl<T> Drop for ReadRing<T> {
    fn drop(&mut self) {
        if self.in_flight() > 0 {
            // The kernel may still write to their memory.
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}

#[cfg(test)]
mod tests {
    use foreread_tier::{Buffers, HeapBuffers};

    use super::super::folder::Folder;
    use super::*;

    const BLOCKS: usize = 5;

    fn file() -> (tempfile::TempDir, Arc<DirectFile>, Vec<u8>) {
        let directory = tempfile::tempdir().unwrap();
        let content: Vec<u8> = (0..BLOCKS * 4096).map(|at| (at / 7 % 251) as u8).collect();
        std::fs::write(directory.path().join("file"), &content).unwrap();
        let folder = Folder::for_test(directory.path());
        let file = DirectFile::open(&folder, "file", false, false).unwrap();
        (directory, Arc::new(file), content)
    }

    fn ring<T>(depth: usize) -> Option<ReadRing<T>> {
        match ReadRing::new(depth) {
            Ok(ring) => Some(ring),
            Err(error) => {
                println!("skipped: no io_uring here: {error}");
                None
            }
        }
    }

    fn read<T>(file: &Arc<DirectFile>, blocks: usize, offset: u64, context: T) -> RingRead<T> {
        let buffer = HeapBuffers.allocate(blocks * 4096, 4096).unwrap();
        RingRead { file: Arc::clone(file), buffer, offset, context }
    }

    /// Completes all reads and returns them with the number of completions.
    fn finish(ring: &mut ReadRing<usize>, wanted: usize) -> (Vec<RingRead<usize>>, usize) {
        let (mut done, mut answered, mut answers) = (Vec::new(), Vec::new(), 0);
        while done.len() < wanted {
            ring.wait().unwrap();
            ring.reap(&mut answered);
            for (read, answer) in answered.drain(..) {
                answers += 1;
                match read.file.needs_more(&read.buffer, answer).unwrap() {
                    true => ring.push(read).unwrap(),
                    false => done.push(read),
                }
            }
        }
        (done, answers)
    }

    #[test]
    fn short_reads_continue_to_the_end_of_buffer_or_file() {
        let (_directory, file, content) = file();
        let Some(mut ring) = ring(4) else { return };
        ring.push(read(&file, 5, 0, 0)).unwrap();
        ring.push(read(&file, 2, 3 * 4096, 1)).unwrap();
        ring.push(read(&file, 4, 3 * 4096, 2)).unwrap();
        let (mut done, answers) = finish(&mut ring, 3);
        done.sort_by_key(|read| read.context);
        assert_eq!(done[0].buffer.as_ref(), &content[..]);
        assert_eq!(done[1].buffer.as_ref(), &content[3 * 4096..]);
        assert_eq!(done[2].buffer.as_ref(), &content[3 * 4096..], "the file ends before the buffer");
        assert!(answers >= 6, "{answers} answers");
        assert_eq!((ring.free(), ring.in_flight()), (4, 0));
    }

    #[test]
    fn full_ring_returns_the_read() {
        let (_directory, file, _) = file();
        let Some(mut ring) = ring(2) else { return };
        ring.push(read(&file, 1, 0, 7)).unwrap();
        ring.push(read(&file, 1, 0, 8)).unwrap();
        assert_eq!(ring.push(read(&file, 1, 0, 9)).unwrap_err().context, 9);
        assert_eq!(finish(&mut ring, 2).0.len(), 2);
    }

    #[test]
    fn waker_ends_each_wait() {
        let Some(mut ring) = ring::<()>(2) else { return };
        let waker = ring.waker();
        for _ in 0..3 {
            std::thread::scope(|scope| {
                scope.spawn(|| waker.wake());
                ring.wait().unwrap();
            });
            ring.reap(&mut Vec::new());
        }
        ring.wait_for(1, Duration::from_millis(1)).unwrap();
        let mut answered = Vec::new();
        ring.reap(&mut answered);
        assert!(answered.is_empty());
    }

    #[test]
    fn memory_of_reads_in_flight_is_never_freed() {
        let (_directory, file, _) = file();
        let Some(mut ring) = ring(2) else { return };
        let context = Arc::new(());
        ring.push(read(&file, 5, 0, Arc::clone(&context))).unwrap();
        ring.submit().unwrap();
        drop(ring);
        assert_eq!(Arc::strong_count(&context), 2, "the read and its memory are leaked");
    }
}
