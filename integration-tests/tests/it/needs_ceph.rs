//! The command against a real S3 service: Ceph's gateway.
//!
//! `FOREREAD_TEST_CEPH` is a JSON object with the gateway's `endpoint`, `region` and `log`, and the
//! keys of two users: `full` may do everything, `reader` only the actions that a bucket's policy
//! allows. `cargo xtask ceph` starts such a gateway and prints it. Requests are counted in the
//! gateway's log.

pub mod gateway;

use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use self::gateway::{Bucket, Gateway, of_objects};
use crate::state::{ids, joined};
use crate::support::{Finished, Samples, TestRandom, assert_digests, needed, number, run};

fn gateway() -> Gateway {
    let description = needed("FOREREAD_TEST_CEPH");
    Gateway::new(&description)
}

/// Runs a command and asserts that its output has no secret.
#[track_caller]
fn quiet(gateway: &Gateway, command: &mut Command) -> Finished {
    let finished = run(command);
    for secret in [&gateway.full.secret, &gateway.reader.secret] {
        assert!(
            !finished.stdout.contains(secret) && !finished.stderr.contains(secret),
            "the output has a secret"
        );
    }
    finished
}

/// A bucket with some samples, and a catalog of them.
struct Dataset<'a> {
    samples: Samples,
    bucket: Bucket<'a>,
    directory: TempDir,
    catalog: String,
}

impl<'a> Dataset<'a> {
    /// `count` files of about `bytes` bytes, under a prefix that must be escaped.
    fn new(gateway: &'a Gateway, what: &str, count: u64, bytes: u64) -> Self {
        let samples = Samples::awkward(count, bytes);
        let bucket = gateway.bucket(what);
        bucket.upload(&samples, "set one/ü+/");
        // Must not be listed: another prefix with the same beginning, and a directory placeholder.
        bucket.put("set one/ü+2/other", b"no sample");
        bucket.put("set one/ü+/a/", b"");
        let directory = tempfile::tempdir().unwrap();
        let catalog = directory.path().join("catalog.foreread").to_str().unwrap().to_owned();
        let of = Self { samples, bucket, directory, catalog };
        quiet(gateway, &mut gateway.foreread(&gateway.full, &["index", &of.url(), "-o", &of.catalog])).ok();
        of
    }

    fn url(&self) -> String {
        self.bucket.url("set one/ü+/")
    }

    /// The gateway's requests during `action`.
    fn requests_of<T>(&self, action: impl FnOnce() -> T) -> (T, Vec<gateway::LoggedRequest>) {
        let before = self.bucket.requested().len();
        let done = action();
        (done, self.bucket.requested().split_off(before))
    }
}

fn json(finished: Finished) -> Value {
    finished.json()
}

#[test]
#[ignore = "needs Ceph's gateway"]
// semantics: BUCKET-6
fn bucket_equals_the_disk_with_one_get_per_sample() {
    let gateway = gateway();
    let of = Dataset::new(&gateway, "load", 240, 20_000);
    let load = ["load", &of.catalog, "--report=json", "--digest", "--epochs=3", "--memory=64MB"];
    let (report, requested) =
        of.requests_of(|| json(quiet(&gateway, &mut gateway.foreread(&gateway.full, &load))));
    assert_digests(&of.samples, &report);
    assert_eq!((number(&report, "/samples"), number(&report, "/dataset_bytes")), (240, of.samples.bytes()));
    let all = number(&report, "/samples") + number(&report, "/retried") + number(&report, "/hedged");
    let gets = of_objects(&requested);
    assert_eq!(gets.keys().copied().collect::<Vec<_>>(), ["GET"], "no HEAD, nothing else: {gets:?}");
    // One GET in all three epochs, because memory holds the samples.
    assert_eq!(gets["GET"] as u64, all, "{report}");
    assert_eq!(requested.len(), gets["GET"], "nothing was listed: {requested:?}");
    assert_eq!(number(&report, "/origin_bytes"), of.samples.bytes());
    for epoch in ["/epochs/1", "/epochs/2"] {
        assert_eq!(number(&report, &format!("{epoch}/reads/origin/samples")), 0, "{report}");
    }
}

#[test]
#[ignore = "needs Ceph's gateway"]
fn terminated_run_from_a_bucket_resumes() {
    let gateway = gateway();
    let of = Dataset::new(&gateway, "resume", 61, 2000);
    let state = of.directory.path().join("state.json");
    let load = ["load", &of.catalog, "--report=json", "--ids", "--epochs=3", "--batch-size=4", "--seed=9"];
    let whole = ids(&json(quiet(&gateway, &mut gateway.foreread(&gateway.full, &load))));
    let (mut draw, mut seen, mut ended) = (TestRandom::new(), Vec::new(), 0);
    loop {
        let out = tempfile::NamedTempFile::new().unwrap();
        let mut command = gateway.foreread(&gateway.full, &load);
        command.arg("--state").arg(&state).arg("--compute-ms=10");
        command.stdout(out.reopen().unwrap()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        // It is terminated twice, then it may finish.
        if ended < 2 {
            std::thread::sleep(std::time::Duration::from_millis(150 + draw.below(250)));
            let id = child.id().to_string();
            Command::new("kill").args(["-TERM", &id]).stderr(Stdio::null()).status().unwrap();
            ended += 1;
        }
        let status = child.wait().unwrap();
        let printed = std::fs::read_to_string(out.path()).unwrap();
        if printed.is_empty() {
            assert!(!status.success(), "it was ended before it watched for signals");
            continue;
        }
        seen = joined(seen, ids(&serde_json::from_str(&printed).unwrap()));
        if status.success() {
            break;
        }
    }
    assert_eq!(seen, whole, "FOREREAD_TEST_SEED={}", draw.seed);
}

#[test]
#[ignore = "needs Ceph's gateway"]
fn object_replaced_after_indexing_is_named() {
    let gateway = gateway();
    let of = Dataset::new(&gateway, "replaced", 40, 2000);
    let path = "set one/ü+/cats and dogs/img 8.jpg";
    let length = std::fs::metadata(of.samples.path().join("cats and dogs/img 8.jpg")).unwrap().len();
    of.bucket.put(path, &vec![7; length as usize]);
    let load = ["load", &of.catalog, "--epochs=1"];
    let (line, requested) =
        of.requests_of(|| quiet(&gateway, &mut gateway.foreread(&gateway.full, &load)).fails(1));
    assert!(
        line.contains("cats and dogs/img 8.jpg") && line.contains("changed since it was indexed"),
        "{line}"
    );
    assert!(line.contains(&of.bucket.name), "{line}");
    // The gateway compared by `If-Match`, once, because a retry cannot help.
    assert_eq!(requested.iter().filter(|requested| requested.status == 412).count(), 1, "{requested:?}");
    // A deleted object is named as well.
    let gone = Dataset::new(&gateway, "gone", 10, 200);
    gone.bucket.delete("set one/ü+/a/2");
    let load = ["load", &gone.catalog, "--epochs=1"];
    let line = quiet(&gateway, &mut gateway.foreread(&gateway.full, &load)).fails(1);
    assert!(line.contains("not found") && line.contains(&gone.bucket.name), "{line}");
}

#[test]
#[ignore = "needs Ceph's gateway"]
fn denied_access_names_the_bucket_and_the_remedy() {
    let gateway = gateway();
    let of = Dataset::new(&gateway, "denied", 20, 200);
    let bucket = &*of.bucket.name;
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("catalog").to_str().unwrap().to_owned();
    let (index, load) = (["index", &of.url(), "-o", &out], ["load", &of.catalog, "--epochs=1"]);
    let fails = |mut command: Command, expected: &[&str]| {
        let line = quiet(&gateway, &mut command).fails(1);
        assert!(line.contains(bucket), "{line}");
        assert!(expected.iter().all(|words| line.contains(words)), "{expected:?}: {line}");
        assert!(line.len() < 600, "{line}");
    };
    // A bucket that needs signatures.
    fails(gateway.unsigned(&index), &["AWS_SKIP_SIGNATURE", "credentials"]);
    fails(gateway.unsigned(&load), &["AWS_SKIP_SIGNATURE", "credentials"]);
    // A wrong secret, and a key that the store does not know.
    let mut wrong = gateway.foreread(&gateway.full, &index);
    wrong.env("AWS_SECRET_ACCESS_KEY", "wrong");
    fails(wrong, &["AWS_SECRET_ACCESS_KEY"]);
    let mut unknown = gateway.foreread(&gateway.full, &load);
    unknown.env("AWS_ACCESS_KEY_ID", "nobody");
    fails(unknown, &["AWS_ACCESS_KEY_ID"]);
    // The reader has no access until the bucket's policy allows it.
    fails(gateway.foreread(&gateway.reader, &index), &["s3:ListBucket"]);
    fails(gateway.foreread(&gateway.reader, &load), &["s3:GetObject"]);
    // A user who may read but not list gets the missing permission, and can load by a catalog.
    of.bucket.let_read(&gateway.reader);
    fails(gateway.foreread(&gateway.reader, &index), &["s3:ListBucket"]);
    let digest = ["load", &of.catalog, "--epochs=1", "--report=json", "--digest"];
    assert_digests(&of.samples, &json(quiet(&gateway, &mut gateway.foreread(&gateway.reader, &digest))));
}

#[test]
#[ignore = "needs Ceph's gateway"]
fn missing_bucket_is_named() {
    let gateway = gateway();
    let directory = tempfile::tempdir().unwrap();
    let catalog = directory.path().join("catalog.foreread");
    let index = ["index", "s3://no-such-bucket-here/images/", "-o", catalog.to_str().unwrap()];
    let line = quiet(&gateway, &mut gateway.foreread(&gateway.full, &index)).fails(1);
    assert!(line.contains("no-such-bucket-here") && line.contains("AWS_ENDPOINT_URL"), "{line}");
}
