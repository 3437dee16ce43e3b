//! docs/settings.md is the table of settings as text. `FOREREAD_WRITE=1` writes it; otherwise these
//! tests fail if it is stale, or if a variable that the code reads is missing.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails by panicking")]

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use foreread_settings::{
    ARGUMENT_KNOBS, COMMAND_KNOBS, KNOBS, Knob, KnobGroup, KnobKind, LAUNCHERS, OTHER_VARIABLES, VARIABLES,
    Variable, unknown_variables,
};

const HEAD: &str = "\
# Settings

<!-- Generated from crates/settings/src/table.rs by
`FOREREAD_WRITE=1 cargo test -p foreread-settings --test document`. -->

A setting has one name, in four forms:

| where | `look-ahead` is |
|---|---|
| command | `--look-ahead 1GiB` |
| Python | `look_ahead=\"1GiB\"` |
| environment | `FOREREAD_LOOK_AHEAD=1GiB` |
| `foreread.toml` in the working directory | `look-ahead = \"1GiB\"` |

An argument wins over the environment. The environment wins over the file, and the file over the default.
`--explain` prints each setting of a command with its source.

* The file is also read by `foreread.Loader` and `foreread.torch` in Python. With `-v`, or the logger
  `foreread` at INFO, a line names it.
* An impossible value is an error, which names the source. An unknown name in the file is an error, too.
* An unknown `FOREREAD_*` variable is a warning.
* Sizes are bytes, plain or with `B`, `KB`, `MB`, `GB`, `TB`, `KiB`, `MiB`, `GiB` or `TiB`. Rates have `/s`
  at the end.
* A list has one value per line in the environment, and is a list of strings in the file.
* In Python, `epochs` is unlimited by default, and `progress` is `True` or `False`. `report` and
  `report-file` are for the command. `recall` is an argument of `Loader`, too.
* A state goes into Python and Rust as `resume`. The command's `--state` names a file that is read and
  written, so it has another name.
";

const TAIL: &str = "
## Launchers

Rank and number of ranks come from the first of these pairs that is set. The settings `rank` and
`world-size` win.
";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A `|` would end a table's cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn values(knob: &Knob) -> String {
    match knob.kind {
        KnobKind::Words(words) => words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", "),
        KnobKind::Flag => "`true`, `false`".to_owned(),
        KnobKind::Value(form) => form
            .split('|')
            .map(|form| if form.starts_with(char::is_lowercase) { format!("`{form}`") } else { unit(form) })
            .collect::<Vec<_>>()
            .join(" or "),
        KnobKind::List(form) => format!("list of {}", unit(form)),
    }
}

/// A value's form with its unit.
fn unit(form: &str) -> String {
    match form {
        "N" => "number".to_owned(),
        "SIZE" => "size".to_owned(),
        "SIZE/s" => "size per second".to_owned(),
        "MS" => "milliseconds".to_owned(),
        "S" => "seconds".to_owned(),
        "FILE" | "FILE.svg" => "file".to_owned(),
        "URL" => "URL".to_owned(),
        "CATALOG" => "catalog".to_owned(),
        other => format!("`{other}`"),
    }
}

fn table(text: &mut String, knobs: &[&Knob]) {
    writeln!(text, "| setting | default | values | effect |\n|---|---|---|---|").unwrap();
    for knob in knobs {
        let default = knob.default.map_or_else(|| "unset".to_owned(), |default| format!("`{default}`"));
        let (values, help) = (cell(&values(knob)), cell(knob.help));
        writeln!(text, "| `{}` | {default} | {values} | {help}. |", knob.name).unwrap();
    }
}

fn variables(text: &mut String, variables: &[Variable]) {
    writeln!(text, "| variable | effect |\n|---|---|").unwrap();
    for (name, effect) in variables {
        writeln!(text, "| `{name}` | {}. |", cell(effect)).unwrap();
    }
}

fn document() -> String {
    let mut text = HEAD.to_owned();
    for group in KnobGroup::ALL {
        writeln!(text, "\n## {}\n", group.name()).unwrap();
        let knobs: Vec<_> =
            [KNOBS, COMMAND_KNOBS].into_iter().flatten().filter(|knob| knob.group == group).collect();
        table(&mut text, &knobs);
    }
    writeln!(
        text,
        "\n## Arguments only\n\nThese describe one call. In the environment or a file they are an error.\n"
    )
    .unwrap();
    table(&mut text, &ARGUMENT_KNOBS.iter().collect::<Vec<_>>());
    writeln!(text, "\n## Environment variables that are not settings\n").unwrap();
    variables(&mut text, VARIABLES);
    writeln!(text, "\n## Variables of other programs\n").unwrap();
    variables(&mut text, OTHER_VARIABLES);
    text.push_str(TAIL);
    writeln!(text, "\n| rank | number of ranks |\n|---|---|").unwrap();
    for (rank, world_size) in LAUNCHERS {
        writeln!(text, "| `{rank}` | `{world_size}` |").unwrap();
    }
    text
}

#[test]
fn settings_document_is_that_of_the_table() {
    let (path, text) = (root().join("docs/settings.md"), document());
    if std::env::var_os("FOREREAD_WRITE").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == text,
        "docs/settings.md is stale: FOREREAD_WRITE=1 cargo test -p foreread-settings --test document"
    );
}

/// Calls `each` with every Rust file below a directory, tests excluded.
fn each_source(directory: &Path, each: &mut impl FnMut(&str)) {
    for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        let name = entry.file_name().unwrap().to_str().unwrap().to_owned();
        if entry.is_dir() && !["tests", "benches", "target", "fuzz", "settings"].contains(&name.as_str()) {
            each_source(&entry, each);
        } else if name.ends_with(".rs") && !name.starts_with("test") {
            let text = fs::read_to_string(&entry).unwrap();
            each(text.split("#[cfg(test)]\nmod tests").next().unwrap());
        }
    }
}

/// The string literals that begin with `prefix`, and are names of variables.
fn literals(directories: &[&str], prefix: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for directory in directories {
        each_source(&root().join(directory), &mut |text| {
            for rest in text.split(&format!("\"{prefix}")).skip(1) {
                let name: String = rest
                    .chars()
                    .take_while(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || *c == '_')
                    .collect();
                if !name.is_empty() && rest[name.len()..].starts_with('"') {
                    found.insert(format!("{prefix}{name}"));
                }
            }
        });
    }
    found
}

#[test]
fn every_variable_that_the_code_reads_is_in_the_table() {
    let own = literals(&["crates", "backends"], "FOREREAD_");
    assert!(own.contains("FOREREAD_TOKEN") && own.contains("FOREREAD_PEER_WIRE"), "{own:?}");
    assert_eq!(unknown_variables(own), Vec::<String>::new());
    let amazon = literals(&["backends/s3"], "AWS_");
    assert!(amazon.len() > 15, "{amazon:?}");
    let missing: Vec<_> =
        amazon.iter().filter(|name| OTHER_VARIABLES.iter().all(|(known, _)| known != name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
