//! Archives written by this machine's `tar`.

use std::fs;
use std::process::Command;

use foreread_dataset::Catalog;
use sha2::{Digest, Sha256};

use crate::support::{Samples, content, foreread, needed, number, order, output, run};

#[test]
#[ignore = "needs GNU tar"]
// semantics: SHARD-3
fn tar_archives_of_all_formats_are_delivered_exactly() {
    let tar = needed("FOREREAD_TEST_TAR");
    for format in ["v7", "oldgnu", "gnu", "ustar", "pax"] {
        let samples = Samples::new();
        let mut names = Vec::new();
        for id in 0..200u64 {
            // Longer than a header's name field, in formats that support such names.
            let folder =
                if format == "v7" { "f".to_owned() } else { "folder/".repeat(1 + (id % 12) as usize) };
            let name = format!("{}/\u{e9}chantillon {id:04}.bin", folder.trim_end_matches('/'));
            samples.add(&name, &content(id, (id * 977 % 9000) as usize));
            names.push(name);
        }
        let shards = tempfile::tempdir().unwrap();
        for (shard, names) in names.chunks(50).enumerate() {
            let mut command = Command::new(&tar);
            command
                .arg(format!("--format={format}"))
                .arg("-cf")
                .arg(shards.path().join(format!("{shard}.tar")));
            let done = output(command.arg("-C").arg(samples.path()).args(names));
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        }
        let catalog = shards.path().join("c.foreread");
        let catalog = catalog.to_str().unwrap();
        run(&mut foreread(["index", shards.path().to_str().unwrap(), "-o", catalog])).ok();
        let keys = Catalog::open(catalog).unwrap();
        for (id, name) in names.iter().enumerate() {
            assert_eq!(
                keys.key((id as u64).into()).unwrap().as_deref(),
                name.strip_suffix(".bin"),
                "{format}"
            );
        }
        let report = run(&mut foreread(["load", catalog, "--report", "json", "--digest"])).json();
        assert_eq!(number(&report, "/samples"), 200);
        let mut digest = Sha256::new();
        for id in order(&["--samples", "200"]) {
            digest.update(id.to_le_bytes());
            digest.update(fs::read(samples.path().join(&names[id as usize])).unwrap());
        }
        let digest: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(report["epochs"][0]["digest"], digest, "{format}");
    }
}
