//! A quota on the disk tier's directory: btrfs limits a subvolume, for all users.
//!
//! `FOREREAD_TEST_BTRFS` holds the words that make a mount namespace with loop devices, to be put
//! before a command.

use crate::needs_mounts::MountedDataset;
use crate::support::{needed, number};

/// Mounts a file system at `mounted` whose subvolume `v` may take 8 MiB.
const MOUNT: &str = "truncate -s 128M image
     mkfs.btrfs -q image >/dev/null 2>&1
     mount -o loop image mounted
     btrfs quota enable mounted
     btrfs subvolume create mounted/v >/dev/null
     btrfs qgroup limit 8M mounted/v
     DISK=mounted/v=1GB
";

fn place() -> MountedDataset {
    MountedDataset::within(needed("FOREREAD_TEST_BTRFS"))
}

#[test]
#[ignore = "needs a btrfs image"]
// semantics: DISK-10
fn quota_reached_during_a_run_costs_one_warning() {
    let place = place();
    let (reports, warnings) = place.reports_and_warnings(&format!("{MOUNT} load --epochs=3 --compute-ms=3"));
    let kept = number(&reports[0], "/epochs/2/reads/disk/bytes");
    assert!(kept > 1 << 20, "only {kept} bytes of 8 MiB were used");
    assert!(number(&reports[0], "/epochs/2/reads/origin/samples") > 0, "the quota was not reached");
    assert!(warnings.len() == 1 && warnings[0].contains("quota is used up"), "{warnings:?}");
}

#[test]
#[ignore = "needs a btrfs image"]
// semantics: DISK-10
fn quota_reached_before_a_run_costs_one_warning() {
    let place = place();
    let script = format!(
        "{MOUNT} dd if=/dev/zero of=mounted/v/others bs=64k oflag=direct 2>/dev/null || true
         dd if=/dev/zero of=mounted/v/others bs=4k oflag=direct,append conv=notrunc 2>/dev/null || true
         sync
         if mkdir mounted/v/probe 2>/dev/null; then echo 'the quota is not reached' >&2; exit 3; fi
         load --epochs=2"
    );
    let (reports, warnings) = place.reports_and_warnings(&script);
    assert_eq!(number(&reports[0], "/epochs/1/reads/origin/samples"), 400);
    assert!(warnings.len() == 1 && warnings[0].contains("quota is used up"), "{warnings:?}");
}
