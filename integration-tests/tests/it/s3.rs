//! `foreread` on buckets of a store in this process: requests, samples, and errors.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use foreread_dataset::Catalog;
use foreread_tier_testing::store::{Fault, HttpStore, Kind, ListingOrder, NumberedObjects, When};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{DEADLINE, Samples, assert_digests, clean, foreread, number, run, times, watch};

/// A secret that must never be printed, like its key.
pub const SECRET: &str = "hush-hush-secret";
pub const KEY: &str = "AKIDTESTTESTTEST";

/// `foreread` with keys for this store, without other settings of Amazon's tools.
pub fn at(store: &HttpStore, arguments: &[&str]) -> Command {
    let mut command = foreread(arguments);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("AWS_") {
            command.env_remove(name);
        }
    }
    command.env("HOME", "/nonexistent").env("AWS_EC2_METADATA_DISABLED", "true");
    command.env("AWS_ENDPOINT_URL", store.endpoint()).env("AWS_ALLOW_HTTP", "true");
    command.env("AWS_ACCESS_KEY_ID", KEY).env("AWS_SECRET_ACCESS_KEY", SECRET);
    clean(&mut command);
    command
}

/// A bucket `train` with samples and other files below `images`, and an object outside of the
/// prefix.
fn upload(samples: &Samples) -> HttpStore {
    let store = HttpStore::start();
    store.bucket("train");
    for path in samples.in_order() {
        let name = path.strip_prefix(samples.path()).unwrap().to_str().unwrap().to_owned();
        store.put("train", &format!("images/{name}"), fs::read(path).unwrap());
    }
    for (key, content) in [("images/", ""), ("images/a/", ""), ("images/.hidden", "x"), ("images2", "beside")]
    {
        store.put("train", key, content);
    }
    store
}

/// The catalog of `url` in a new directory.
pub fn index(store: &HttpStore, url: &str) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("catalog.foreread");
    run(&mut at(store, &["index", url, "-o", file.to_str().unwrap()])).ok();
    (directory, file)
}

fn load(store: &HttpStore, target: &str, arguments: &[&str]) -> Value {
    let arguments: Vec<_> = ["load", target, "--report", "json"].iter().chain(arguments).copied().collect();
    run(&mut at(store, &arguments)).json()
}

#[test]
// semantics: BUCKET-1
fn bucket_is_read_once_and_equals_the_files_on_disk() {
    let samples = Samples::awkward(600, 20_000);
    let store = upload(&samples);
    store.allow(KEY);
    let (_kept, catalog) = index(&store, "s3://train/images");
    assert_eq!((store.requests().get, store.requests().head), (0, 0));
    store.reset();
    let report = load(&store, catalog.to_str().unwrap(), &["--epochs", "3", "--memory", "1GiB", "--digest"]);
    let requests = store.requests();
    let hedged = number(&report, "/hedged");
    assert_eq!(number(&report, "/samples"), 600);
    assert_eq!(number(&report, "/dataset_bytes"), samples.bytes());
    assert_eq!(number(&report, "/floor_origin_bytes"), samples.bytes());
    assert_eq!(number(&report, "/epochs/2/reads/memory/samples"), 600);
    assert_digests(&samples, &report);
    // One GET per sample, nothing before it, and no request once all samples are cached.
    // A second read that was cancelled before it was sent does not count.
    assert!((600..=600 + hedged).contains(&requests.get), "{requests:?}, {hedged} hedged");
    assert_eq!((requests.head, requests.list, requests.put, requests.other), (0, 0, 0, 0));
    // The same without a catalog, except that the bucket is listed.
    store.reset();
    let again = load(&store, "s3://train/images/", &["--memory", "1GiB", "--epochs", "1", "--digest"]);
    assert_eq!(again["epochs"][0]["digest"], report["epochs"][0]["digest"]);
    let requests = store.requests();
    assert!((1..600).contains(&requests.list), "{requests:?}");
    assert_eq!((requests.head, requests.put, requests.other), (0, 0, 0));
}

#[test]
// semantics: BUCKET-7
fn unreachable_store_is_one_line_with_bucket_and_remedy() {
    let store = upload(&Samples::awkward(20, 1_000));
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (down, tls) = (format!("http://{port}"), store.endpoint().replace("http:", "https:"));
    let proxy = format!("http://me:{SECRET}@{port}");
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str]);
    let cases: [Case<'_>; 3] = [
        (&[("AWS_ENDPOINT_URL", &down)], &["nothing answers at", &down, "AWS_ENDPOINT_URL"]),
        (&[("AWS_ENDPOINT_URL", &tls)], &[&tls, "does not speak TLS", "http://", "AWS_ALLOW_HTTP=true"]),
        (&[("HTTP_PROXY", &proxy)], &["through the proxy", &down, "NO_PROXY"]),
    ];
    // In parallel, because temporary failures are retried for some seconds.
    std::thread::scope(|scope| {
        for (variables, parts) in cases {
            let store = &store;
            scope.spawn(move || {
                let out = tempfile::tempdir().unwrap();
                let out = out.path().join("x.foreread");
                let mut command = at(store, &["index", "s3://train/images", "-o", out.to_str().unwrap()]);
                command.env_remove("NO_PROXY").env_remove("no_proxy").envs(variables.iter().copied());
                let line = run(&mut command).fails(1);
                assert!(line.contains("s3://train") && !line.contains(SECRET), "{line}");
                assert!(parts.iter().all(|part| line.contains(part)), "{line}");
            });
        }
    });
}

#[test]
// semantics: BUCKET-7
fn object_as_prefix_and_compressed_shards_are_reported() {
    let store = upload(&Samples::awkward(20, 1_000));
    store.put("train", "one.jpg", "x");
    for number in 0..2 {
        store.put("train", &format!("packed/{number}.tar.xz"), "x");
        store.put("train", &format!("records/{number}.tfrecord.gz"), "x");
    }
    for (target, parts) in [
        ("s3://train/one.jpg", &["one.jpg is an object and no prefix"][..]),
        ("s3://train/packed", &["compressed shard", "decompress it"]),
        ("s3://train/packed/1.tar.xz", &["s3://train/packed", "1.tar.xz", "decompress it"]),
        ("s3://train/records/{0..1}.tfrecord.gz", &["s3://train/records", "0.tfrecord.gz", "gzip"]),
        ("s3://train/nothing", &["no samples"]),
    ] {
        let line = run(&mut at(&store, &["load", target])).fails(1);
        assert!(line.contains("s3://train") && parts.iter().all(|part| line.contains(part)), "{line}");
    }
}

#[test]
// semantics: BUCKET-13
fn keys_in_the_environment_need_no_profile() {
    let store = upload(&Samples::awkward(20, 1_000));
    store.allow(KEY);
    let broken = tempfile::NamedTempFile::new().unwrap();
    fs::write(broken.path(), format!("[default\nsecret = {SECRET}\n")).unwrap();
    let finished = run(at(&store, &["load", "s3://train/images"]).env("AWS_CONFIG_FILE", broken.path()));
    assert!(finished.stderr.contains("profiles are left out") && !finished.stderr.contains(SECRET));
    let printed = finished.ok();
    assert!(printed.contains(" 20 samples"), "{printed}");
    let mut without = at(&store, &["load", "s3://train/images"]);
    let line = run(without.env("AWS_CONFIG_FILE", broken.path()).env_remove("AWS_ACCESS_KEY_ID")).fails(1);
    assert!(line.contains(broken.path().to_str().unwrap()) && !line.contains(SECRET), "{line}");
}

#[test]
// semantics: STATE-1
fn run_from_a_bucket_resumes() {
    let samples = Samples::awkward(300, 5_000);
    let store = upload(&samples);
    let (kept, catalog) = index(&store, "s3://train/images");
    let (catalog, state) = (catalog.to_str().unwrap(), kept.path().join("state"));
    let state = ["--state", state.to_str().unwrap(), "--digest"];
    let whole = load(&store, catalog, &["--epochs", "3", "--digest"]);
    load(&store, catalog, &[&state[..], &["--epochs", "1"]].concat());
    let rest = load(&store, catalog, &[&state[..], &["--epochs", "3"]].concat());
    assert_eq!(rest["epochs"].as_array().unwrap().len(), 2);
    for epoch in [1, 2] {
        assert_eq!(rest["epochs"][epoch - 1]["digest"], whole["epochs"][epoch]["digest"]);
    }
}

#[test]
// semantics: BUCKET-3
fn each_refusal_is_one_line_with_bucket_and_remedy() {
    let samples = Samples::awkward(20, 1_000);
    let store = upload(&samples);
    store.allow(KEY);
    let (_kept, catalog) = index(&store, "s3://train/images");
    let catalog = catalog.to_str().unwrap();
    let reports = |command: &mut Command, bucket: &str, parts: &[&str]| {
        let line = run(command).fails(1);
        assert!(line.contains(bucket), "{line}");
        for part in parts {
            assert!(line.contains(part), "{part}: {line}");
        }
        assert!(!line.contains(SECRET) && !line.contains(KEY), "{line}");
    };
    let url = "s3://train/images";
    let mut wrong = at(&store, &["load", url]);
    reports(wrong.env("AWS_ACCESS_KEY_ID", "AKIDWRONG"), "s3://train", &["AWS_ACCESS_KEY_ID"]);
    let mut wrong = at(&store, &["load", catalog]);
    reports(wrong.env("AWS_ACCESS_KEY_ID", "AKIDWRONG"), "s3://train", &["AWS_ACCESS_KEY_ID"]);
    reports(
        &mut at(&store, &["load", "s3://trian/images"]),
        "s3://trian",
        &["no such bucket", "AWS_ENDPOINT_URL"],
    );
    reports(&mut at(&store, &["load", "s3://train/imagse"]), "s3://train/imagse", &[]);
    let mut anonymous = at(&store, &["load", url]);
    anonymous.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
    reports(&mut anonymous, "s3://train", &["AWS_PROFILE", "AWS_SKIP_SIGNATURE=true"]);
    let mut public = at(&store, &["load", url]);
    reports(public.env("AWS_SKIP_SIGNATURE", "true"), "s3://train", &["AWS_SKIP_SIGNATURE"]);
    let mut plain = at(&store, &["load", url]);
    reports(plain.env("AWS_ALLOW_HTTP", "false"), "http://127.0.0.1", &["AWS_ALLOW_HTTP=true"]);
    store.deny("train", true, false);
    reports(&mut at(&store, &["load", url]), "s3://train", &["s3:ListBucket"]);
    store.deny("train", false, true);
    reports(&mut at(&store, &["load", catalog]), "s3://train", &["s3:GetObject"]);
    store.deny("train", false, false);
    let changed = samples.in_order()[7].strip_prefix(samples.path()).unwrap().to_str().unwrap().to_owned();
    store.put("train", &format!("images/{changed}"), "another");
    reports(
        &mut at(&store, &["load", catalog]),
        "s3://train",
        &[changed.as_str(), "changed", "index it again"],
    );
    store.expire(KEY);
    reports(&mut at(&store, &["load", url]), "s3://train", &["expired", "new credentials"]);
}

/// Rights to read objects, and none to list them.
#[test]
// semantics: SAMPLE-4
fn files_of_a_store_that_lists_nothing_have_named_classes() {
    let store = HttpStore::start();
    store.bucket("train");
    store.put("train", "cat/1", "one");
    store.put("train", "dog/2", "two");
    store.deny("train", true, false);
    let files = ["s3://train/dog/2", "s3://train/cat/1"];
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("catalog.foreread").display().to_string();
    let index = |more: &[&str]| {
        let arguments = [&["index", "-o", &file], more, &files[..]].concat();
        run(&mut at(&store, &arguments))
    };
    let line = index(&[]).fails(1);
    for part in ["`foreread index` with --classes", "--classes '' for samples without labels"] {
        assert!(line.contains(part), "{line}");
    }
    for (classes, labels) in [("cat,dog", vec![Some(1), Some(0)]), ("", vec![None, None])] {
        index(&["--classes", classes]).ok();
        let catalog = Catalog::open(&file).unwrap();
        let found: Vec<_> = (0..2).map(|id| catalog.label_index(foreread::SampleId(id))).collect();
        assert_eq!(found, labels);
        assert_eq!(number(&load(&store, &file, &["--epochs", "1"]), "/epochs/0/samples"), 2);
    }
}

#[test]
// semantics: BUCKET-18
fn many_keys_are_indexed_in_bounded_memory() {
    let (store, keys) = (HttpStore::start(), times(250_000, 1_000_000));
    store.numbered("train", NumberedObjects::new(keys, 110_000));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("catalog.foreread");
    let began = std::time::Instant::now();
    let indexed = run(&mut at(&store, &["index", "s3://train", "-o", file.to_str().unwrap()]));
    let (took, requests, peak) = (began.elapsed(), store.requests(), indexed.peak);
    assert!(indexed.ok().contains(&format!("{keys} samples")));
    println!("{took:?}, {} pages, {} MiB", requests.list, peak >> 20);
    assert!(requests.list < keys / 500, "{requests:?}");
    assert!(peak < (80 << 20) + keys * 220, "{} MiB", peak >> 20);
}

#[test]
// semantics: SAMPLE-14
fn killed_listing_resumes() {
    let store = HttpStore::start();
    store.numbered("train", NumberedObjects::new(150_000, 1_000));
    let directory = tempfile::tempdir().unwrap();
    let name = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let index = |file: &str| at(&store, &["index", "s3://train", "-o", file]);
    run(&mut index(&name("whole"))).ok();
    let (all, pages) = (store.requests().listed, store.requests().list);
    println!("{pages} pages");
    // The last pages never come.
    store.on(Kind::List, When::From(pages * 9 / 10), Fault::StallHeaders(Duration::from_secs(600)));
    let partial = directory.path().join("broken.partial");
    let killed = watch(&mut index(&name("broken")), DEADLINE, |process| {
        if fs::metadata(&partial).is_ok_and(|file| file.len() > 4 << 20) {
            kill(process);
        }
    });
    assert_eq!(killed.code, None, "{}", killed.stderr);
    store.mend();
    store.reset();
    let rest = run(&mut index(&name("broken"))).ok();
    let line = rest.lines().find(|line| line.contains("objects were already listed"));
    let before: u64 = line.and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect(&rest);
    // Divided ranges are listed again in part, depending on the machine. Two thirds leave room for
    // that.
    let listed = store.requests().listed;
    assert!(before > 50_000 && listed < all * 9 / 10, "{listed} of {all} after {before}");
    assert_eq!(fingerprint(&name("broken")), fingerprint(&name("whole")));
    assert!(!partial.exists() && !directory.path().join("whole.partial").exists());
}

#[test]
// semantics: SAMPLE-15
fn second_index_of_one_output_names_the_first() {
    let store = HttpStore::start();
    store.numbered("train", NumberedObjects::new(30_000, 1_000));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("c.foreread");
    let index = || at(&store, &["index", "s3://train", "-o", file.to_str().unwrap()]);
    store.on(Kind::List, When::From(9), Fault::StallHeaders(Duration::from_secs(600)));
    let mut second = None;
    let killed = watch(&mut index(), DEADLINE, |process| {
        if second.is_none() && store.requests().list > 9 {
            second = Some((process, run(&mut index())));
            kill(process);
        }
    });
    assert_eq!(killed.code, None, "{}", killed.stderr);
    let (process, second) = second.unwrap();
    let line = second.fails(1);
    assert!(
        line.contains(&format!("process {process} on ")) && line.contains("c.foreread.partial"),
        "{line}"
    );
    // The lock ended with the process.
    store.mend();
    assert!(run(&mut index()).ok().contains("30000 samples"));
}

/// The fingerprint of a catalog file.
fn fingerprint(catalog: &str) -> String {
    Catalog::open(catalog).unwrap().fingerprint().to_string()
}

/// A bucket whose keys have different positions in each order.
fn unordered(count: u64) -> HttpStore {
    let store = HttpStore::start();
    store.bucket("train");
    for id in 0..count {
        let directory = ["cat", "cat-big", "cat.old", "Dog", "eel"][(id % 5) as usize];
        store.put("train", &format!("{directory}/{id:05}.jpg"), "x");
    }
    store
}

#[test]
// semantics: SAMPLE-8
fn bucket_in_any_order_is_listed_whole_in_40_requests() {
    let orders = [
        ListingOrder::Bytes,
        ListingOrder::CaseInsensitive,
        ListingOrder::Directories,
        ListingOrder::Ascending(1_000),
    ];
    for (count, orders) in [(20_000, &orders[..]), (20_001, &orders[2..3])] {
        let store = unordered(count);
        let directory = tempfile::tempdir().unwrap();
        let mut prints = std::collections::BTreeSet::new();
        for &order in orders {
            store.set_order("train", order);
            let file = directory.path().join(format!("{order:?}"));
            let mut index = at(&store, &["index", "s3://train", "-o", file.to_str().unwrap()]);
            // Killed between its pages, and restarted.
            store.on(Kind::List, When::From(9), Fault::StallHeaders(Duration::from_secs(600)));
            store.reset();
            let killed = watch(&mut index, DEADLINE, |process| {
                if store.requests().list > 9 {
                    kill(process);
                }
            });
            assert_eq!(killed.code, None, "{}", killed.stderr);
            store.mend();
            store.reset();
            let finished = run(&mut index);
            let requests = store.requests().list;
            let warnings = finished.stderr.matches("does not list keys in the order of their bytes").count();
            assert_eq!(warnings, usize::from(order != ListingOrder::Bytes), "{order:?}: {}", finished.stderr);
            let printed = finished.ok();
            assert!(printed.contains(&format!("{count} samples")), "{order:?}: {printed}");
            assert!(!printed.contains("already listed"), "{order:?}: {printed}");
            assert!(requests <= 40, "{order:?}: {requests} requests");
            prints.insert(fingerprint(file.to_str().unwrap()));
        }
        assert_eq!(prints.len(), 1, "{prints:?}");
    }
}

#[test]
// semantics: SAMPLE-14
fn unfinished_listing_of_an_unordered_store_starts_again() {
    let store = HttpStore::start();
    store.numbered("train", NumberedObjects::new(30_000, 1_000));
    store.set_order("train", ListingOrder::Ascending(26_000));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("c.foreread");
    let mut index = at(&store, &["index", "s3://train", "-o", file.to_str().unwrap()]);
    // The keys listed so far appear to be in order, and are kept.
    store.on(Kind::List, When::From(24), Fault::Expired);
    run(&mut index).fails(1);
    let partial = directory.path().join("c.foreread.partial");
    assert!(fs::metadata(&partial).unwrap().len() > 1 << 20);
    store.mend();
    store.reset();
    let finished = run(&mut index);
    assert_eq!(finished.stderr.matches("the listing starts again").count(), 1, "{}", finished.stderr);
    let printed = finished.ok();
    assert!(printed.contains("30000 samples") && !printed.contains("already listed"), "{printed}");
    // Two pages until the detection, and one object that was checked.
    assert!(store.requests().list <= 30 + 6, "{:?}", store.requests());
    assert!(!partial.exists());
}

#[test]
// semantics: SAMPLE-12
fn unfinished_listing_is_valid_for_its_store_only() {
    let store = HttpStore::start();
    store.bucket("train");
    ["a", "b", "c"].iter().for_each(|key| store.put("train", key, "x"));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("c.foreread");
    let index = || run(&mut at(&store, &["index", "s3://train", "-o", file.to_str().unwrap()]));
    // A listing of another store with the same name.
    let foreign = "{\"unfinished_listing\":1,\"base_url\":\"s3://train\",\"include\":[],\"exclude\":[]}\n\
        {\"o\":[\"b\",1,null,\"\\\"other\\\"\"]}\n{\"upto\":\"b\"}\n";
    let partial = directory.path().join("c.foreread.partial");
    fs::write(&partial, foreign).unwrap();
    assert!(index().ok().contains("3 samples"));
    // A key that could not be listed fails again and is not omitted.
    store.put("train", "b//c", "x");
    for _ in 0..2 {
        assert!(index().fails(1).contains("b//c"));
    }
    // Other files are left alone, and pipes are not waited for.
    store.remove("train", "b//c");
    fs::remove_file(&partial).unwrap();
    fs::write(&partial, "precious").unwrap();
    assert!(index().ok().contains("3 samples"));
    assert_eq!(fs::read(&partial).unwrap(), b"precious");
    fs::remove_file(&partial).unwrap();
    assert!(Command::new("mkfifo").arg(&partial).status().unwrap().success());
    assert!(index().ok().contains("3 samples"));
}

#[test]
fn catalog_in_the_bucket_is_found_without_list_permission() {
    let samples = Samples::awkward(40, 500);
    let store = upload(&samples);
    let (_kept, catalog) = index(&store, "s3://train/images");
    store.put("train", "images/catalog.foreread", fs::read(catalog).unwrap());
    store.deny("train", true, false);
    let report = load(&store, "s3://train/images", &["--digest", "--epochs", "1"]);
    assert_digests(&samples, &report);
}

pub fn kill(process: u32) {
    let killed = Command::new("kill").args(["-9", &process.to_string()]).status();
    assert!(killed.is_ok_and(|status| status.success()));
}

#[test]
// semantics: BUCKET-15
fn secrets_are_in_no_log_report_or_catalog() {
    let store = upload(&Samples::awkward(100, 2_000));
    let token = "token-of-a-session";
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("catalog.foreread");
    let file = file.to_str().unwrap();
    store.on(Kind::Get, When::First(10), Fault::Internal);
    store.on(Kind::Get, When::First(20), Fault::Close);
    store.on(Kind::Get, When::First(30), Fault::Expired);
    let state = directory.path().join("state");
    let calls: [&[&str]; 3] = [
        &["index", "s3://train/images", "-o", file],
        &["load", file, "--report", "json", "--state", state.to_str().unwrap()],
        &["load", file, "--explain"],
    ];
    for arguments in calls {
        let mut command = at(&store, arguments);
        let finished = run(command.env("RUST_LOG", "trace").env("AWS_SESSION_TOKEN", token));
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        for text in [&finished.stdout, &finished.stderr] {
            for secret in [SECRET, KEY, token] {
                let line = text.lines().find(|line| line.contains(secret));
                assert!(line.is_none(), "{line:?}");
            }
        }
    }
    for kept in fs::read_dir(directory.path()).unwrap() {
        let bytes = fs::read(kept.unwrap().path()).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!([SECRET, KEY, token].iter().all(|secret| !text.contains(secret)));
    }
}
