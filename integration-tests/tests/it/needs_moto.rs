//! The command against an S3 server without common code with Ceph's: moto.
//!
//! `FOREREAD_TEST_MOTO` is its address. It takes any key and does not check signatures.

use std::process::Command;

use serde_json::json;

use crate::needs_ceph::gateway::{Bucket, Gateway};
use crate::support::{Samples, assert_digests, needed, number, run};

fn server() -> Gateway {
    let endpoint = needed("FOREREAD_TEST_MOTO");
    let user = json!({"access_key": "AKIDMOTO", "secret_key": "hush-hush"});
    let description =
        json!({"endpoint": endpoint, "region": "us-east-1", "log": "", "full": user, "reader": user});
    Gateway::new(&description.to_string())
}

fn foreread(server: &Gateway, arguments: &[&str]) -> Command {
    server.foreread(&server.full, arguments)
}

/// A catalog of `url` in a new directory.
fn indexed(server: &Gateway, url: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let catalog = directory.path().join("catalog.foreread").to_str().unwrap().to_owned();
    run(&mut foreread(server, &["index", url, "-o", &catalog])).ok();
    (directory, catalog)
}

fn fails(server: &Gateway, bucket: &Bucket<'_>, catalog: &str) -> String {
    let line = run(&mut foreread(server, &["load", catalog, "--epochs=1"])).fails(1);
    assert!(line.contains(&bucket.name) && !line.contains("hush-hush"), "{line}");
    line
}

#[test]
#[ignore = "needs moto"]
// semantics: BUCKET-6
fn bucket_of_moto_equals_the_disk() {
    let server = server();
    // More than one page of the listing.
    let samples = Samples::awkward(1_100, 500);
    let bucket = server.bucket("load");
    bucket.upload(&samples, "set one/ü+/");
    bucket.put("set one/ü+2/other", b"no sample");
    bucket.put("set one/ü+/a/", b"");
    let (_directory, catalog) = indexed(&server, &bucket.url("set one/ü+/"));
    let load = ["load", &catalog, "--report=json", "--digest", "--epochs=2", "--memory=64MB"];
    let report = run(&mut foreread(&server, &load)).json();
    assert_digests(&samples, &report);
    assert_eq!(number(&report, "/samples"), 1_100);
}

#[test]
#[ignore = "needs moto"]
// semantics: BUCKET-6
fn replaced_object_of_moto_is_named() {
    let server = server();
    let bucket = server.bucket("replaced");
    for name in ["a", "b", "c"] {
        bucket.put(name, b"old");
    }
    let (_directory, catalog) = indexed(&server, &bucket.url(""));
    bucket.put("b", b"new");
    let line = fails(&server, &bucket, &catalog);
    assert!(line.contains("b: changed since it was indexed"), "{line}");
    bucket.delete("b");
    let line = fails(&server, &bucket, &catalog);
    assert!(line.contains("b: not found"), "{line}");
}

#[test]
#[ignore = "needs moto"]
// semantics: BUCKET-4
fn archived_object_names_the_remedy() {
    let server = server();
    let bucket = server.bucket("archived");
    bucket.put("a", b"at hand");
    bucket.put_archived("b", b"archived");
    let (_directory, catalog) = indexed(&server, &bucket.url(""));
    let line = fails(&server, &bucket, &catalog);
    assert!(line.contains("InvalidObjectState") && line.contains("restore-object"), "{line}");
    assert!(!line.contains("s3:GetObject"), "{line}");
}
