//! A file system that the kernel makes read-only during a run, because of an error in it.
//!
//! `FOREREAD_TEST_EXT4` holds the words that make a mount namespace with loop devices, to be put
//! before a command. An administrator cannot remount a file system read-only while a run writes to
//! it: the kernel reports that it is busy.

use crate::needs_mounts::MountedDataset;
use crate::support::{needed, number};

fn place() -> MountedDataset {
    MountedDataset::within(needed("FOREREAD_TEST_EXT4"))
}

/// The reports of a script's runs. The script's function `images` makes two identical-looking
/// images, `image1` and `image2`. Its argument computes the modification time of each of their
/// eight files from `$number`.
fn reports(place: &MountedDataset, script: &str) -> Vec<serde_json::Value> {
    let images = r#"images() {
             for kind in 1 2; do
                 for number in 1 2 3 4 5 6 7 8; do
                     yes "$kind $number" 2>/dev/null | head -c 40000 >data/$number
                     touch -d "$(eval "echo $1")" data/$number
                 done
                 mkfs.ext4 -q -F -m 0 -O ^has_journal -d data image$kind 16M >/dev/null
             done
         }"#;
    let printed = place.run(&format!("{images}\n{script}")).ok();
    printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
#[ignore = "needs an ext4 image"]
// semantics: DISK-10
fn file_system_turning_read_only_costs_reads_only() {
    let place = place();
    let reports = place.reports(
        "truncate -s 64M image
         mkfs.ext4 -q -F -m 0 image
         mount -o loop,errors=remount-ro image mounted
         device=$(basename \"$(findmnt -n -o SOURCE mounted)\")
         load --epochs=6 --batch-size=8 --compute-ms=30 &
         until [ \"$(du -sk mounted | cut -f1)\" -gt 4000 ]; do sleep 0.01; done
         echo 1 >/sys/fs/ext4/$device/trigger_fs_error
         if touch mounted/probe 2>/dev/null; then echo 'it is not read-only' >&2; exit 3; fi
         wait $!",
    );
    let [report] = &reports[..] else { panic!("{reports:?}") };
    assert!(number(report, "/epochs/5/reads/origin/samples") > 0, "it turned read-only too late");
    assert!(number(report, "/epochs/5/reads/disk/samples") > 0, "what was kept before is read");
}

/// Two identical-looking images, mounted at one path in turn, then the first one again by another
/// loop device.
#[test]
#[ignore = "needs an ext4 image"]
// semantics: DISK-4
fn images_mounted_at_one_path_share_no_cache() {
    let place = place();
    let reports = reports(
        &place,
        r#"mkdir disk data
         images @0
         look() { "$0" load mounted --digest --report=json --epochs=2 --disk=disk=100MB; }
         truth() { "$0" load mounted --digest --report=json --epochs=2; }
         for kind in 1 2 1 2; do
             mount -o loop,ro image$kind mounted
             look
             truth
             umount mounted
         done"#,
    );
    assert_eq!(reports.len(), 8);
    for (round, pair) in reports.chunks(2).enumerate() {
        let [cached, truth] = pair else { unreachable!() };
        for epoch in 0..2 {
            assert_eq!(cached["epochs"][epoch]["digest"], truth["epochs"][epoch]["digest"], "round {round}");
        }
        let kept = if round < 2 { 0 } else { 8 };
        let found = cached["epochs"][0]["reads"]["disk"]["samples"].as_u64().unwrap_or(0);
        assert_eq!(found, kept, "round {round}");
    }
    assert_ne!(reports[0]["epochs"][0]["digest"], reports[2]["epochs"][0]["digest"], "the images differ");
}

/// An image mounted below the listed directory, over an identical-looking one, and an image whose
/// file was removed.
#[test]
#[ignore = "needs an ext4 image"]
// semantics: DISK-5
fn mounts_below_the_data_are_not_trusted() {
    let place = place();
    let reports = reports(
        &place,
        r#"mkdir disk all all/a all/b data
         images '2020-01-01 00:00:0$number.5'
         cp -p data/* all/a
         look() {
             "$0" load "$1" --digest --report=json --epochs=2 --disk=disk=100MB
             "$0" load "$1" --digest --report=json --epochs=2
         }
         for kind in 1 2; do
             mount -o loop,ro image$kind all/b
             look all
             umount all/b
         done
         for kind in 1 2; do
             mount -o loop,ro image$kind mounted
             rm image$kind
             look mounted
             umount mounted
         done"#,
    );
    assert_eq!(reports.len(), 8);
    let digests = |report: &serde_json::Value| -> Vec<String> {
        report["epochs"].as_array().unwrap().iter().map(|epoch| epoch["digest"].to_string()).collect()
    };
    for (round, pair) in reports.chunks(2).enumerate() {
        assert_eq!(digests(&pair[0]), digests(&pair[1]), "round {round}");
    }
    assert_ne!(reports[0]["epochs"][0]["digest"], reports[2]["epochs"][0]["digest"], "the images differ");
}
