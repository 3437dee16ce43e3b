//! Other tools open a catalog, tested with the tools.

use std::process::Command;

use foreread_dataset::Catalog;
use foreread_tier::{Object, Version};

use crate::support::{foreread, needed, output, run};

const SCRIPT: &str = r#"
import sys
import duckdb, pandas, polars, pyarrow.feather

path, labelled, versioned = sys.argv[1], sys.argv[2] == "labelled", sys.argv[3] == "versioned"
columns = ["path", "offset", "length", "label"] + (["modified", "etag"] if versioned else [])
total = sum(range(1000))

frame = pandas.read_feather(path)
assert list(frame.columns) == columns, frame.columns
assert len(frame) == 1000 and frame["length"].sum() == total, frame
assert frame["label"].isna().sum() == (1 if labelled else 1000), frame["label"]
if versioned:
    assert frame["modified"].dropna().iloc[0].value == 1_600_000_000_123_456_789, frame["modified"]

frame = polars.read_ipc(path)
assert frame.columns == columns and frame.height == 1000, frame
assert frame["length"].sum() == total
assert frame["label"].null_count() == (1 if labelled else 1000), frame["label"]
assert polars.scan_ipc(path).select(polars.col("length").sum()).collect().item() == total

catalog = pyarrow.feather.read_table(path, memory_map=True)
catalog.validate(full=True)
assert catalog.schema.metadata[b"foreread.catalog"] == b"1", catalog.schema.metadata
[(rows, length, labels)] = duckdb.sql("select count(*), sum(length), count(label) from catalog").fetchall()
assert (rows, length, labels) == (1000, total, 999 if labelled else 0), (rows, length, labels)
if labelled:
    found = duckdb.sql("select length from catalog where label = 'class3' and path = 'class3/13'").fetchall()
    assert found == [(13,)], found
"#;

#[test]
#[ignore = "needs pandas, polars and DuckDB"]
// semantics: SAMPLE-22
fn pandas_polars_and_duckdb_open_a_catalog() {
    let python = needed("FOREREAD_TEST_PYTHON_ARROW");
    let directory = tempfile::tempdir().unwrap();
    for (labelled, versioned) in [(true, true), (true, false), (false, false)] {
        let path = directory.path().join("catalog.foreread");
        let objects = (0..1000u64).map(|number| Object {
            path: match number {
                1.. if labelled => format!("class{}/{number}", number % 10).into(),
                _ => format!("{number}").into(),
            },
            size: number,
            version: match number % 3 {
                0 if versioned => Some(Version::Modified(1_600_000_000_123_456_789)),
                1 if versioned => Some(Version::ETag(format!("\"{number}\"").into())),
                _ => None,
            },
        });
        Catalog::from_objects("/data", objects).unwrap().save(&path).unwrap();
        let mut command = Command::new(&python);
        command.args(["-c", SCRIPT]).arg(&path);
        command.arg(if labelled { "labelled" } else { "flat" });
        command.arg(if versioned { "versioned" } else { "plain" });
        let output = command.output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "labelled {labelled}, versioned {versioned}: {printed}");
    }
}

const PACKED: &str = r#"
import sys
import duckdb, pandas, polars, pyarrow.feather

path = sys.argv[1]
frame = pandas.read_feather(path)
columns = [name for name in frame.columns if name != "changed"]  # not on every file system
assert columns == ["object", "key", "offset", "length", "object_size", "modified", "fields"], frame.columns
assert list(frame["key"]) == ["train/000000", "train/000001", "train/000002"], frame
assert [field["name"] for field in frame["fields"][0]] == ["caption.txt", "cls", "jpg"], frame["fields"]
assert set(frame["object"]) == {"webdataset.tar"}
frame = polars.read_ipc(path)
assert frame["fields"].list.len().to_list() == [3, 3, 3], frame
catalog = pyarrow.feather.read_table(path, memory_map=True)
catalog.validate(full=True)
[(rows,)] = duckdb.sql("select count(*) from (select unnest(fields) as field from catalog) where field.name \
    = 'jpg'").fetchall()
assert rows == 3, rows
"#;

#[test]
#[ignore = "needs pandas, polars and DuckDB"]
fn pandas_polars_and_duckdb_open_a_catalog_of_shards() {
    let python = needed("FOREREAD_TEST_PYTHON_ARROW");
    let directory = tempfile::tempdir().unwrap();
    let shard = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/dataset/tests/files/webdataset.tar");
    let path = directory.path().join("c.foreread");
    run(&mut foreread(["index", shard, "-o", path.to_str().unwrap()])).ok();
    let done = output(Command::new(python).args(["-c", PACKED]).arg(&path));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}
