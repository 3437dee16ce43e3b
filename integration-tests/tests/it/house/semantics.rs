//! Each promise of SEMANTICS.md has an id, and each test that holds a promise carries that id in a
//! comment above its function: `// semantics: ORDER-3`. SEMANTICS-tests.md is generated from these
//! comments.
//!
//! Decision: the ids stand next to the tests, so a renamed or moved test keeps them. The price is a
//! generated file that must be written again: `FOREREAD_WRITE=1 cargo test -p
//! foreread-integration-tests house::semantics`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::root;

/// Ids of promises, in the order of SEMANTICS.md.
fn promises() -> Vec<String> {
    let text = fs::read_to_string(root().join("SEMANTICS.md")).unwrap();
    let ids: Vec<_> = text.lines().filter_map(promise).map(str::to_owned).collect();
    assert!(ids.len() > 100, "{} promises were found: has the table changed its form?", ids.len());
    let distinct: BTreeSet<_> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len(), "an id of SEMANTICS.md occurs twice");
    ids
}

/// The id of a table row `|ORDER-3|text|`.
fn promise(line: &str) -> Option<&str> {
    let id = line.strip_prefix('|')?.split('|').next()?.trim();
    let (area, number) = id.split_once('-')?;
    let is_id =
        area.chars().all(|c| c.is_ascii_uppercase()) && !area.is_empty() && number.parse::<u32>().is_ok();
    is_id.then_some(id)
}

/// The name of the function that a line of Rust or Python defines.
fn function(line: &str) -> Option<&str> {
    let words = line.trim_start().trim_start_matches("pub ").trim_start_matches("async ");
    words.strip_prefix("fn ").or_else(|| words.strip_prefix("def "))?.split('(').next()
}

/// Adds the tests below `directory` to those of each id, as `file#test`.
fn collect(directory: &Path, tests: &mut BTreeMap<String, BTreeSet<String>>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap_or_default();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                collect(&path, tests);
            }
        } else if name.ends_with(".rs") || name.ends_with(".py") {
            let text = fs::read_to_string(&path).unwrap();
            let file = path.strip_prefix(root()).unwrap().to_str().unwrap();
            let mut lines = text.lines();
            while let Some(line) = lines.next() {
                let comment = line.trim_start().trim_start_matches(['/', '#']).trim_start();
                let Some(ids) = comment.strip_prefix("semantics: ").filter(|_| comment.len() < line.len())
                else {
                    continue;
                };
                let test = lines.next().and_then(function);
                let test = test.unwrap_or_else(|| panic!("{file}: no function follows `{}`", line.trim()));
                for id in ids.split(", ") {
                    tests.entry(id.to_owned()).or_default().insert(format!("{file}#{test}"));
                }
            }
        }
    }
}

fn table(promises: &[String], tests: &BTreeMap<String, BTreeSet<String>>) -> String {
    let mut text =
        "# Tests of the promises\n\nGenerated from the comments `semantics: ID` above the tests of \
                    [SEMANTICS.md](SEMANTICS.md)'s promises, by\n`FOREREAD_WRITE=1 cargo test -p \
                    foreread-integration-tests house::semantics`.\n\n"
            .to_owned();
    for id in promises {
        writeln!(text, "**{id}**\n").unwrap();
        for test in &tests[id] {
            writeln!(text, "- `{test}`").unwrap();
        }
        text.push('\n');
    }
    text
}

#[test]
fn each_promise_has_tests_and_the_table_lists_them() {
    let promises = promises();
    let mut tests = BTreeMap::new();
    for directory in ["crates", "backends", "integration-tests", "xtask"] {
        collect(&root().join(directory), &mut tests);
    }
    let without: Vec<_> = promises.iter().filter(|id| !tests.contains_key(*id)).collect();
    assert!(without.is_empty(), "no test carries the id of these promises: {without:?}");
    let unknown: Vec<_> = tests.iter().filter(|(id, _)| !promises.contains(id)).collect();
    assert!(unknown.is_empty(), "SEMANTICS.md has no such promises: {unknown:?}");

    let (path, table) = (root().join("SEMANTICS-tests.md"), table(&promises, &tests));
    if std::env::var_os("FOREREAD_WRITE").is_some() {
        fs::write(&path, &table).unwrap();
    }
    assert!(
        fs::read_to_string(&path).is_ok_and(|text| text == table),
        "SEMANTICS-tests.md differs from the tests' comments; write it again: FOREREAD_WRITE=1 cargo test -p \
         foreread-integration-tests house::semantics"
    );
}

#[test]
fn promise_ids_are_distinguished_from_other_rows() {
    assert_eq!(promise("| ORDER-3 | The order. |"), Some("ORDER-3"));
    assert_eq!(promise("|ORDER-3|The order.|"), Some("ORDER-3"));
    for line in ["| id | promise |", "|---|---|", "ORDER-3", "| order-3 | x |", "| ORDER-x | y |"] {
        assert_eq!(promise(line), None, "{line}");
    }
}
