//! The texts that are written from the table of settings: docs/settings.md, and the arguments of
//! the Python package with their types and help. `FOREREAD_WRITE=1` writes them; otherwise these
//! tests fail if they are stale, or if a variable that the code reads is missing.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails by panicking")]

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use foreread_settings::{
    KNOBS, Knob, KnobGroup, KnobKind, KnobType, LAUNCHERS, OTHER_VARIABLES, VARIABLES, Variable, find_knob,
    knobs_of, reader, unknown_variables,
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

fn table(text: &mut String, is_in: impl Fn(&Knob) -> bool) {
    writeln!(text, "| setting | default | values | effect |\n|---|---|---|---|").unwrap();
    for knob in KNOBS.iter().filter(|knob| is_in(knob)) {
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
        table(&mut text, |knob| knob.group == group && !knob.is_argument_only);
    }
    writeln!(
        text,
        "\n## Arguments only\n\nThese describe one call. In the environment or a file they are an error.\n"
    )
    .unwrap();
    table(&mut text, |knob| knob.is_argument_only);
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

/// Compares a file with the table's text, or writes it.
fn check(path: &str, change: impl Fn(String) -> String) {
    let path = root().join(path);
    let written = fs::read_to_string(&path).unwrap_or_default();
    let text = change(written.clone());
    if std::env::var_os("FOREREAD_WRITE").is_some() {
        fs::write(&path, &text).unwrap();
    } else {
        let path = path.display();
        let remedy = "FOREREAD_WRITE=1 cargo test -p foreread-settings --test document";
        assert!(written == text, "{path} is stale: {remedy}");
    }
}

#[test]
fn settings_document_is_that_of_the_table() {
    check("docs/settings.md", |_| document());
}

/// The text with another middle between a beginning and the next end.
fn replaced(text: &str, beginning: &str, end: &str, middle: &str) -> String {
    let (before, after) = text.split_once(beginning).unwrap_or_else(|| panic!("no {beginning}"));
    let (_, after) = after.split_once(end).unwrap_or_else(|| panic!("no {end} after {beginning}"));
    format!("{before}{beginning}{middle}{end}{after}")
}

/// Words in lines of at most this width, each after its prefix.
fn wrapped<'a>(words: impl Iterator<Item = &'a str>, first: &str, next: &str, width: usize) -> Vec<String> {
    let mut lines = vec![first.to_owned()];
    for word in words {
        let line = lines.last_mut().unwrap();
        if line.len() + " ".len() + word.len() > width {
            lines.push(format!("{next}{word}"));
        } else {
            let separator = if line.ends_with(' ') { "" } else { " " };
            *line += &format!("{separator}{word}");
        }
    }
    lines
}

/// The words of a literal type.
fn literal(words: &[&str]) -> String {
    words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ")
}

/// The type of an argument in Python.
fn python_type(knob: &Knob) -> String {
    let known = match (knob.value_type(), knob.kind) {
        (_, KnobKind::Words(_)) if knob.name == "format" => "Format",
        (_, KnobKind::Words(words)) => return format!("Literal[{}] | None", literal(words)),
        (KnobType::Number, _) if knob.has_auto() => "int | Literal[\"auto\"]",
        (KnobType::Number, _) => "int",
        (KnobType::Flag, _) => "bool",
        (KnobType::Text, _) => "str",
        (KnobType::Size, _) => "Size",
        (KnobType::Path, _) => "Path",
        (KnobType::List, _) => "str | Sequence[str] | Mapping[Path, Size]",
    };
    format!("{known} | None")
}

/// The help text of an argument in Python.
fn python_help(knob: &Knob) -> String {
    // There the caller's loop decides when to stop.
    let default = if knob.name == "epochs" { Some("unlimited") } else { knob.default };
    let more = match knob.kind {
        KnobKind::Words([words @ .., last]) => {
            let named = |word: &&str| if knob.default == Some(*word) { " (default)" } else { "" };
            let words: Vec<_> = words.iter().map(|word| format!("'{word}'{}", named(word))).collect();
            format!(" {} or '{last}'.", words.join(", "))
        }
        KnobKind::List(_) => " Also a list of these, or a dict of directories and sizes.".to_owned(),
        KnobKind::Value(form) => {
            let unit = if form.ends_with("SECONDS") { " In seconds." } else { "" };
            unit.to_owned() + &default.map_or(String::new(), |default| format!(" Default: {default}."))
        }
        _ => String::new(),
    };
    format!("{}.{more}", knob.help)
}

#[test]
fn arguments_of_python_are_those_of_the_table() {
    let knobs = || knobs_of(reader::PYTHON);
    let arguments = |line: &dyn Fn(&Knob) -> String| knobs().map(line).collect::<String>();
    check("crates/python/python/foreread/_native.pyi", |text| {
        let typed = |knob: &Knob| format!("        {}: {} = None,\n", knob.argument(), python_type(knob));
        replaced(
            &text,
            "        target: Target,\n        *,\n",
            "        resume: str | None",
            &arguments(&typed),
        )
    });
    check("crates/python/python/foreread/_settings.py", |text| {
        let Some(KnobKind::Words(formats)) = find_knob("format").map(|knob| knob.kind) else { panic!() };
        let text =
            replaced(&text, "Format: TypeAlias = Literal[", "]\n", &format!("\n    {}\n", literal(formats)));
        let field = |knob: &Knob| {
            let help = python_help(knob);
            let comment = wrapped(help.split(' '), "    #: ", "    #: ", 120).join("\n");
            format!("{comment}\n    {}: {}\n", knob.argument(), python_type(knob))
        };
        replaced(&text, "table of settings.\n\n", "    #: A state from", &arguments(&field))
    });
    check("crates/python/src/loader.rs", |text| {
        let line = |knob: &Knob| {
            let (name, help) = (knob.argument(), python_help(knob));
            let lines = wrapped(help.split(' '), &format!("///     {name}: "), "///         ", 100);
            lines.join("\n") + "\n"
        };
        let text = replaced(&text, "or a list of shards.\n", "///     resume:", &arguments(&line));
        let names = knobs().map(|knob| format!("{}=None,", knob.argument())).collect::<Vec<_>>();
        let names = names.iter().map(String::as_str).chain(["resume=None,", "progress=False)\""]);
        let beginning = "        text_signature = \"";
        let first = format!("{beginning}(target, *,");
        let lines = wrapped(names, &first, &" ".repeat(26), 100 - " \\".len());
        let signature = lines.join(" \\\n");
        replaced(&text, beginning, "\"\n", signature.strip_prefix(beginning).unwrap().trim_end_matches('"'))
    });
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
