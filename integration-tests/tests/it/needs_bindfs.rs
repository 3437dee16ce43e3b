//! File systems without owners or modes, such as CIFS mounts and NFS exports that map users,
//! simulated by bindfs.
//!
//! `FOREREAD_TEST_BINDFS` holds the words that make a mount namespace, to be put before a command.

use crate::needs_mounts::MountedDataset;
use crate::support::{needed, number};

fn place() -> MountedDataset {
    MountedDataset::within(needed("FOREREAD_TEST_BINDFS"))
}

#[test]
#[ignore = "needs bindfs"]
// semantics: DISK-14
fn directory_without_owners_or_modes_costs_one_warning() {
    let place = place();
    for (options, why) in [
        ("--force-user=12345", "belong to user 12345"),
        ("--chmod-ignore --perms=a+rX", "has mode 0755"),
        ("--chmod-ignore --perms=a+rwX", "has mode 0777"),
    ] {
        let script = format!(
            "mkdir -p source; rm -rf source/*; bindfs {options} source mounted
             load --epochs=2 --compute-ms=3
             if [ -n \"$(ls -A source)\" ]; then
                 echo \"something was left there: $(ls source)\" >&2; exit 3; fi
             DISK=mounted=1GB,shared
             load --epochs=2 --compute-ms=3
             load --epochs=1
             umount mounted"
        );
        let (reports, warnings) = place.reports_and_warnings(&script);
        let [without, shared, warm] = &reports[..] else { panic!("{reports:?}") };
        assert_eq!(number(without, "/epochs/1/reads/origin/samples"), 400, "{options}");
        // An epoch may be over before its samples are on the disk.
        assert!(number(shared, "/disk/written") > 0, "{options}");
        assert!(number(warm, "/epochs/0/reads/disk/samples") > 300, "{options}");
        let [warning] = &warnings[..] else { panic!("{options}: {warnings:?}") };
        assert!(warning.contains(why) && warning.contains("DIR=SIZE,shared"), "{options}: {warning}");
    }
}
