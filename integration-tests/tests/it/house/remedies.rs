//! Messages of the library name settings as their reader writes them.
//!
//! A Rust user, a user of the command and a user of Python see the same errors. So no text of the
//! library has an option of the command or a method of the builder: `foreread_types::setting` names
//! it. The price is a list of the texts of programs and of packages that only the command has.

use super::{lines_before_tests, sources};

/// Texts that only users of the command see, and the reason.
const COMMAND_ONLY: &[(&str, &str)] = &[
    ("crates/cli/", "the command itself"),
    ("crates/agent/", "an agent is started by the command, and its operator reads its messages"),
    ("crates/file-cache/", "only `foreread run` has it"),
    ("crates/preload/", "only `foreread run` has it"),
    ("crates/launcher/", "finds launchers and programs"),
    ("crates/simulator/", "its scenarios are read by the command"),
    ("crates/settings/src/knobs.rs", "names a setting on the command line, where another name is not passed"),
    ("crates/types/src/interface.rs", "writes the options"),
];

/// Texts with an option that is none of foreread's own settings, or that stands in a command to
/// enter. The package for Python has the command, too.
const OTHER_OPTIONS: &[&str] = &[
    "foreread cache clean {} --all",
    "`foreread index --help`",
    "`aws sso login --profile",
    "storage blob set-tier --tier Hot",
    "without --sparse",
    "that `--version` shows",
    "\"--exact\", &format!",
];

/// Whether a line of code has an option of a command, as `--memory`.
fn has_option(line: &str) -> bool {
    let code = line.trim_start();
    !code.starts_with("//")
        && code.match_indices("--").any(|(at, _)| {
            let (before, after) = (code[..at].chars().next_back(), code[at + 2..].chars().next());
            after.is_some_and(|c| c.is_ascii_lowercase())
                && before.is_none_or(|c| c.is_whitespace() || "\"'`({".contains(c))
        })
}

/// Whether a text names a method of the builder as a remedy.
fn has_method(line: &str) -> bool {
    let code = line.trim_start();
    !code.starts_with("//") && code.contains("`Builder::")
}

#[test]
fn remedies_are_in_the_words_of_the_interface() {
    let mut found = String::new();
    for source in sources(&["crates", "backends"]) {
        let is_source = source.path.contains("/src/") && !source.path.contains("test");
        if !is_source || COMMAND_ONLY.iter().any(|(path, _)| source.path.starts_with(path)) {
            continue;
        }
        let before = source.text.lines().take(lines_before_tests(&source.text));
        for (number, line) in (1..).zip(before) {
            let is_other = OTHER_OPTIONS.iter().any(|text| line.contains(text));
            if has_option(line) && !is_other || has_method(line) {
                found += &format!("\n{}:{number}: {}", source.path, line.trim());
            }
        }
    }
    assert!(found.is_empty(), "name settings by foreread_types::setting:{found}");
}

#[test]
fn options_and_methods_in_texts_are_found() {
    for line in ["\"set --memory or --disk\"", "choose one by `--field NAME`", "x; --label keeps it"] {
        assert!(has_option(line), "{line}");
    }
    for line in ["// set --memory", "a --> b", "let x = y--z;", "-- SQL"] {
        assert!(!has_option(line), "{line}");
    }
    assert!(has_method("\"call `Builder::peers`\"") && !has_method("/// [`Builder::peers`]"));
}
