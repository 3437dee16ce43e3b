//! Whether a file's file system is on this machine or on a file server.
//!
//! Local file systems have a page cache that is as good as memory, and their `EIO` is a damaged
//! disk. A file server may be away and come back. Decision: a list of the magic numbers of local
//! file systems, from one system call. The price is a line for each new one.

use std::os::fd::BorrowedFd;

/// Whether an open file or directory is on this machine and not on a file server.
pub fn is_on_this_machine(file: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|stat| is_local(stat.f_type as u64))
}

/// Whether file systems with this magic number are local, so that the page cache is as good as
/// memory.
///
/// All others count as network file systems. Mistaking a network file system for a local one would
/// turn off the memory tier where it is needed most. The opposite mistake keeps a second copy. Not
/// listed, for example: NFS, Lustre (0x0BD00BD0), GPFS, CephFS, FUSE, SMB and CIFS, 9p, BeeGFS,
/// AFS, Coda.
fn is_local(magic: u64) -> bool {
    const LOCAL: [u64; 22] = [
        0xEF53,      // ext2, ext3, ext4
        0x5846_5342, // XFS
        0x9123_683E, // Btrfs
        0x2FC1_2FC1, // ZFS
        0xCA45_1A4E, // bcachefs
        0xF2F5_2010, // F2FS
        0x0102_1994, // tmpfs
        0x8584_58F6, // ramfs
        0x794C_7630, // overlayfs
        0x6175_6673, // aufs
        0x7371_7368, // squashfs
        0xE0F5_E1E2, // EROFS
        0x28CD_3D45, // cramfs
        0x9660,      // ISO 9660
        0x1501_3346, // UDF
        0x4D44,      // FAT
        0x2011_BAB0, // exFAT
        0x5346_544E, // NTFS
        0x7366_746E, // NTFS3
        0x3153_464A, // JFS
        0x5265_4973, // ReiserFS
        0x3434,      // NILFS
    ];
    LOCAL.contains(&(magic & 0xFFFF_FFFF))
}
