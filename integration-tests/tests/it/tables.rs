//! Datasets that a table lists, and parts of datasets, by the command.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::ranks::RankJob;
use crate::support::{foreread, four_thousand, number, run};

/// Files in a directory, and a table of them that is not in the order of their names.
fn dataset() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let mut table = "file,kind,split,note\r\n".to_owned();
    for number in [7, 2, 9, 4, 1, 8] {
        let kind = ["cat", "dog", "eel"][number % 3];
        let path = directory.path().join("data").join(format!("{number}.bin"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{number}").repeat(number)).unwrap();
        let split = if number > 4 { "train" } else { "val" };
        table += &format!("{number}.bin,{kind},{split},\"a \"\"{number}\"\",\nb\"\r\n");
    }
    fs::write(directory.path().join("table.csv"), table).unwrap();
    directory
}

fn index(at: &Path, arguments: &[&str]) -> Value {
    let mut command = foreread(["index"]);
    run(command.args(arguments).args(["--report", "json"]).current_dir(at)).json()
}

/// The paths of a catalog's samples, as the loader delivers them.
fn ids(at: &Path, catalog: &str) -> Value {
    let arguments =
        ["load", catalog, "--epochs", "1", "--sampler", "sequential", "--ids", "--report", "json"];
    run(foreread(arguments).current_dir(at)).json()["epochs"][0]["ids"].clone()
}

#[test]
// semantics: SAMPLE-25
fn command_indexes_the_rows_of_a_table() {
    let dataset = dataset();
    let at = dataset.path();
    let columns = ["--path", "file", "--label", "kind"];
    let all = index(at, &[&["data", "--table", "table.csv", "-o", "all.foreread"], &columns[..]].concat());
    assert_eq!((&all["samples"], &all["labels"]), (&6.into(), &3.into()), "{all}");
    assert_eq!(all["values"], serde_json::json!(["note", "split"]));
    assert_eq!(ids(at, "all.foreread"), serde_json::json!([0, 1, 2, 3, 4, 5]));
    let few =
        ["data", "--table", "table.csv", "-o", "few.foreread", "--filter", "split==val", "--column", "note"];
    let few = index(at, &[&few[..], &columns].concat());
    // Classes are those of the whole table.
    assert_eq!((&few["samples"], &few["labels"]), (&3.into(), &3.into()), "{few}");
    let error = run(foreread(["index", "data/7.bin", "--table", "table.csv"]).current_dir(at));
    assert!(error.stderr.contains("is a file"), "{}", error.stderr);
    let error = run(foreread(["index", "table.csv"]).current_dir(at)).fails(1);
    assert!(error.contains("--table"), "{error}");
}

#[test]
// semantics: SAMPLE-28
fn command_takes_parts_of_a_catalog() {
    let dataset = dataset();
    let at = dataset.path();
    index(at, &["data", "--table", "table.csv", "--path", "file", "--label", "kind", "-o", "all.foreread"]);
    let train = index(at, &["all.foreread", "--filter", "split == train", "-o", "train.foreread"]);
    assert_eq!((&train["samples"], &train["bytes"]), (&3.into(), &24.into()), "{train}");
    let both =
        ["all.foreread", "--filter", "split==train", "--filter", "kind in dog,eel", "-o", "both.foreread"];
    assert_eq!(index(at, &both)["bytes"], 15);
    fs::write(at.join("ids"), "5\n0\n\n5\n").unwrap();
    let chosen = index(at, &["all.foreread", "--select", "ids", "-o", "chosen.foreread"]);
    assert_eq!((&chosen["samples"], &chosen["bytes"]), (&3.into(), &23.into()), "{chosen}");
    fs::write(at.join("ids"), "5\nx\n").unwrap();
    let error = run(foreread(["index", "all.foreread", "--select", "ids"]).current_dir(at)).fails(1);
    assert!(error.contains("line 2: \"x\" is no number"), "{error}");
    let error = run(foreread(["index", "all.foreread", "--filter", "size==3"]).current_dir(at)).fails(1);
    assert!(error.contains("no column \"size\", which --filter names"), "{error}");
}

#[test]
// semantics: SAMPLE-31
fn command_updates_a_catalog_in_place() {
    let dataset = dataset();
    let at = dataset.path();
    index(at, &["data", "--table", "table.csv", "--path", "file", "--label", "kind", "-o", "t.foreread"]);
    index(at, &["data", "-o", "d.foreread"]);
    index(at, &["d.foreread", "--filter", "path == 7.bin", "-o", "part.foreread"]);
    fs::remove_file(at.join("data/7.bin")).unwrap();
    fs::write(at.join("data/5.bin"), "five").unwrap();
    let grown = index(at, &["--update", "d.foreread"]);
    assert_eq!(grown["growth"], serde_json::json!({"added": 1, "gone": 1, "gone_paths": ["7.bin"]}));
    assert_eq!(ids(at, "d.foreread"), serde_json::json!([0, 1, 2, 4, 5, 6]));
    let text = run(foreread(["index", "--update", "d.foreread"]).current_dir(at)).ok();
    assert!(text.contains("6 samples") && text.contains("0 new samples; 0 are gone"), "{text}");
    let failed =
        |arguments: &[&str], code: i32| run(foreread(["index"]).args(arguments).current_dir(at)).fails(code);
    // A row whose file is gone is an error, as in an index.
    assert!(failed(&["--update", "t.foreread"], 1).contains("7.bin"));
    fs::write(at.join("few.csv"), "file,kind,split,note\n9.bin,cat,train,a\n8.bin,fox,train,b\n").unwrap();
    let other = index(at, &["--update", "t.foreread", "--table", "few.csv", "-o", "u.foreread"]);
    assert_eq!(
        (&other["growth"]["gone"], &other["samples"], &other["labels"]),
        (&4.into(), &2.into(), &4.into())
    );
    assert!(failed(&["--update", "part.foreread"], 2).contains("in no part"));
    assert!(failed(&["--update", "d.foreread", "--include", "*.jpg"], 2).contains("--include has no effect"));
    assert!(failed(&["--update", "d.foreread", "data"], 2).contains("cannot be used with"));
}

#[test]
// semantics: SAMPLE-30
fn ranks_share_the_samples_of_a_part() {
    let at = tempfile::tempdir().unwrap();
    let even: String = (0..4000).step_by(2).map(|number| format!("{number}\n")).collect();
    fs::write(at.path().join("even"), even).unwrap();
    let data = four_thousand().path().to_str().unwrap();
    index(at.path(), &[data, "-o", "all.foreread"]);
    index(at.path(), &["all.foreread", "--select", "even", "-o", "even.foreread"]);
    let arguments = ["--epochs", "2", "--memory", "1GB", "--ids", "--batch-size", "50"];
    let mut job = RankJob::new(2, four_thousand(), &arguments);
    job.arguments[1] = at.path().join("even.foreread").to_str().unwrap().to_owned();
    let reports = job.reports();
    for epoch in 0..2 {
        let ids = reports.iter().flat_map(|report| report["epochs"][epoch]["ids"].as_array().unwrap());
        let mut ids: Vec<u64> = ids.map(|id| id.as_u64().unwrap()).collect();
        ids.sort_unstable();
        assert_eq!(ids, (0..4000).step_by(2).collect::<Vec<_>>());
    }
    assert_eq!((number(&reports[0], "/samples"), number(&reports[1], "/samples")), (2000, 2000));
    let requests: u64 = reports.iter().map(|report| number(report, "/origin_requests")).sum();
    // Ranks read samples directly when their host is late.
    let direct: u64 = reports.iter().map(|report| number(report, "/agent/direct_samples")).sum();
    assert!((2000..=2000 + direct).contains(&requests), "{requests}, {direct} of them direct");
}

#[test]
// semantics: SAMPLE-29
fn command_groups_files_by_stem_and_directory() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    for (path, bytes) in [("d/a/1.jpg", "x"), ("d/a/1.json", "{}"), ("d/b/2.jpg", "yy"), ("d/b/2.json", "[]")]
    {
        fs::create_dir_all(at.join(path).parent().unwrap()).unwrap();
        fs::write(at.join(path), bytes).unwrap();
    }
    let stems = index(at, &["d", "--group", "stem", "-o", "stems.foreread"]);
    assert_eq!((&stems["samples"], &stems["bytes"], &stems["labels"]), (&2.into(), &7.into(), &2.into()));
    let parallel = ["d", "--path", "one=a", "--path", "two=b", "-o", "p.foreread"];
    let error = run(foreread(["index"]).args(parallel).current_dir(at)).fails(1);
    assert!(error.contains("are one field of one sample"), "{error}");
}
