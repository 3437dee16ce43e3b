//! Programs that do not load the library, so that the report can name them.

use core::sync::atomic::{AtomicU64, Ordering};

use super::{PathHash, TraceHeader};

/// The names of programs that a trace keeps, and the longest one in words of 8 bytes.
pub const NAMES: usize = 8;
const NAME_WORDS: usize = 6;

/// The name of a program, in a trace.
#[repr(C)]
#[derive(Debug, Default)]
pub struct ProgramName {
    /// A hash of it. 0: there is none.
    hash: AtomicU64,
    words: [AtomicU64; NAME_WORDS],
}

impl ProgramName {
    /// Its bytes, with zeros at the end. `None` if there is none.
    pub fn bytes(&self) -> Option<[u8; 8 * NAME_WORDS]> {
        if self.hash.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut bytes = [0; 8 * NAME_WORDS];
        for (to, word) in bytes.chunks_exact_mut(8).zip(&self.words) {
            to.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        Some(bytes)
    }

    fn set(&self, name: &[u8]) {
        for (word, piece) in self.words.iter().zip(name.chunks(8)) {
            let mut bytes = [0; 8];
            for (to, byte) in bytes.iter_mut().zip(piece) {
                *to = *byte;
            }
            word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
    }
}

impl TraceHeader {
    /// Notes the start of a program at this path, which does not load the library.
    pub fn starts_unserved(&self, path: &[u8]) {
        self.unserved.fetch_add(1, Ordering::Relaxed);
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let Some(hash) = PathHash::new(0, 0).add(name.iter().copied(), true).and_then(PathHash::finish)
        else {
            return;
        };
        for place in &self.names {
            match place.hash.compare_exchange(0, hash, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return place.set(name),
                Err(other) if other == hash => return,
                Err(_) => {}
            }
        }
    }
}

/// The bytes at the beginning of an executable file that say how it is loaded.
pub const PROGRAM_HEAD: usize = 512;

/// How a program is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramKind<'a> {
    /// By the dynamic linker, which loads the preloaded library, too.
    Dynamic,
    /// Without it.
    Static,
    /// By the dynamic linker of another class of processors, which cannot load the library.
    Foreign,
    /// By the program at this path: a script.
    Script(&'a [u8]),
    /// No program that is known.
    Unknown,
}

impl<'a> ProgramKind<'a> {
    /// The kind of a program, by the first bytes of its file.
    pub fn of(head: &'a [u8]) -> Self {
        const LOADED: u32 = 1;
        const INTERPRETER: u32 = 3;
        if let Some(line) = head.strip_prefix(b"#!") {
            let is_space = |byte: &u8| matches!(byte, b' ' | b'\t');
            let mut words = line.split(|byte| *byte == b'\n').next().unwrap_or_default().split(is_space);
            let interpreter = words.find(|word| !word.is_empty());
            return interpreter.map_or(Self::Unknown, Self::Script);
        }
        if !head.starts_with(b"\x7fELF") {
            return Self::Unknown;
        }
        let is_own_class = head.get(4) == Some(&2);
        let number = |at: usize, bytes: usize| {
            let bytes = head.get(at..at + bytes)?.iter().rev();
            Some(bytes.fold(0_u64, |number, byte| number << 8 | u64::from(*byte)))
        };
        let (Some(first), Some(length), Some(count)) = (number(32, 8), number(54, 2), number(56, 2)) else {
            return Self::Unknown;
        };
        if !is_own_class {
            return Self::Foreign;
        }
        // The interpreter comes before all segments that are loaded.
        for at in 0..count {
            match number((first.saturating_add(at * length)).min(1 << 20) as usize, 4) {
                Some(kind) if kind as u32 == INTERPRETER => return Self::Dynamic,
                Some(kind) if kind as u32 == LOADED => return Self::Static,
                Some(_) => {}
                None => return Self::Unknown,
            }
        }
        Self::Static
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_without_a_dynamic_linker_are_unserved() {
        let mut head = [0_u8; PROGRAM_HEAD];
        head[..5].copy_from_slice(b"\x7fELF\x02");
        (head[32], head[54], head[56]) = (64, 56, 3);
        let kinds = |head: &mut [u8], kinds: [u8; 3]| {
            (0..3).for_each(|at| head[64 + at * 56] = kinds[at]);
        };
        kinds(&mut head, [6, 3, 1]);
        assert_eq!(ProgramKind::of(&head), ProgramKind::Dynamic);
        kinds(&mut head, [6, 1, 3]);
        assert_eq!(ProgramKind::of(&head), ProgramKind::Static);
        kinds(&mut head, [6, 4, 4]);
        assert_eq!(ProgramKind::of(&head), ProgramKind::Static);
        (head[32], head[33]) = (0xff, 0xff);
        assert_eq!(ProgramKind::of(&head), ProgramKind::Unknown);
        head[4] = 1;
        assert_eq!(ProgramKind::of(&head), ProgramKind::Foreign);
        assert_eq!(ProgramKind::of(b"#! /bin/sh -e\nx"), ProgramKind::Script(b"/bin/sh"));
        assert_eq!(ProgramKind::of(b"text"), ProgramKind::Unknown);
    }
}
