//! A file system that the kernel makes read-only under a run, because it found an error in it.
//!
//! `FOREREAD_TEST_EXT4` holds the words that make a mount namespace with loop devices, to be put before a command. An
//! administrator cannot remount a file system read-only while a run writes to it: the kernel says that it is busy.

use crate::needs_mounts::Place;
use crate::support::number;

#[test]
fn a_file_system_that_turns_read_only_under_a_run_costs_reads_only() {
    let Ok(words) = std::env::var("FOREREAD_TEST_EXT4") else {
        println!("skipped: FOREREAD_TEST_EXT4 names no way to mount an image");
        return;
    };
    let place = Place::within(words);
    let reports = place.reports(
        "truncate -s 64M image
         mkfs.ext4 -q -F -m 0 image
         mount -o loop,errors=remount-ro image mounted
         device=$(basename \"$(findmnt -n -o SOURCE mounted)\")
         load --epochs=6 --compute-ms=20 &
         until [ \"$(du -sk mounted | cut -f1)\" -gt 4000 ]; do sleep 0.01; done
         echo 1 >/sys/fs/ext4/$device/trigger_fs_error
         if touch mounted/probe 2>/dev/null; then echo 'it is not read-only' >&2; exit 3; fi
         wait $!",
    );
    let [report] = &reports[..] else { panic!("{reports:?}") };
    assert!(number(report, "/epochs/5/reads/origin/samples") > 0, "it turned read-only too late");
    assert!(number(report, "/epochs/5/reads/disk/samples") > 0, "what was kept before is read");
}
