//! One name has one meaning, test names have at most 60 characters, and no line is too wide to
//! read.
//!
//! Decision: a type name that packages show to more than one of their modules occurs in two
//! packages at most. A search for it then leads to one thing. The price is a list of the few names
//! that the field itself uses for several things.

use std::collections::{BTreeMap, BTreeSet};

use super::{EVERYTHING, lines_before_tests, root, sources};

/// Names that more than two packages may use. At most ten.
const COMMON: &[&str] = &[];

const MAX_TEST_NAME: usize = 60;
const MAX_COMMENT: usize = 100;
const MAX_LINE: usize = 110;

/// The name of the type that a line declares, where other modules can see it.
fn declared(line: &str) -> Option<&str> {
    let line = line.trim_start().strip_prefix("pub")?;
    let line = match line.strip_prefix('(') {
        Some(scope) => scope.split_once(") ")?.1,
        None => line.strip_prefix(' ')?,
    };
    let line = line.strip_prefix("unsafe ").unwrap_or(line);
    let keywords = ["struct ", "enum ", "trait ", "type ", "union "];
    let name = keywords.iter().find_map(|keyword| line.strip_prefix(keyword))?;
    name.split(|c: char| !c.is_alphanumeric()).next()
}

#[test]
fn type_names_occur_in_two_packages_at_most() {
    assert!(COMMON.len() <= 10);
    let mut packages = BTreeMap::<String, BTreeSet<String>>::new();
    for source in sources(&["crates", "backends", "xtask"]) {
        let Some((package, file)) = source.path.split_once("/src/").or(source.path.split_once("src/")) else {
            continue;
        };
        if file.contains("tests/") || file.ends_with("tests.rs") {
            continue;
        }
        for name in source.text.lines().take(lines_before_tests(&source.text)).filter_map(declared) {
            packages.entry(name.to_owned()).or_default().insert(package.to_owned());
        }
    }
    let common: Vec<_> = packages
        .iter()
        .filter(|(name, packages)| packages.len() > 2 && !COMMON.contains(&name.as_str()))
        .map(|(name, packages)| format!("{name}: {packages:?}"))
        .collect();
    assert!(common.is_empty(), "give these types longer names:\n{}", common.join("\n"));
    let unused: Vec<_> = COMMON
        .iter()
        .filter(|name| packages.get(**name).is_none_or(|packages| packages.len() <= 2))
        .collect();
    assert!(unused.is_empty(), "COMMON needs these no longer: {unused:?}");
}

#[test]
fn declared_types_are_found() {
    for line in
        ["pub struct Name<T> {", "    pub(crate) enum Name {", "pub(in crate::a) unsafe trait Name: Send {"]
    {
        assert_eq!(declared(line), Some("Name"), "{line}");
    }
    for line in ["struct Name;", "pub fn name() {", "// pub struct Name", "published struct Name"] {
        assert_eq!(declared(line), None, "{line}");
    }
}

/// The names of the test functions in Rust source.
fn tests(text: &str) -> Vec<&str> {
    let (mut names, mut is_test) = (Vec::new(), false);
    for line in text.lines().map(str::trim_start) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some(name) = line.trim_start_matches("async ").strip_prefix("fn ")
            && std::mem::take(&mut is_test)
        {
            names.extend(name.split('(').next());
        }
    }
    names
}

#[test]
fn test_names_have_at_most_60_characters() {
    let mut long = Vec::new();
    for source in sources(EVERYTHING) {
        let names = tests(&source.text).into_iter().filter(|name| name.len() > MAX_TEST_NAME);
        long.extend(names.map(|name| format!("{}: {name}", source.path)));
    }
    let python = std::fs::read_dir(root().join("crates/python/tests")).unwrap();
    for path in
        python.map(|entry| entry.unwrap().path()).filter(|path| path.extension() == Some("py".as_ref()))
    {
        let text = std::fs::read_to_string(&path).unwrap();
        let names =
            text.lines().filter_map(|line| line.trim_start().strip_prefix("def test_")?.split('(').next());
        let names = names.filter(|name| "test_".len() + name.len() > MAX_TEST_NAME);
        long.extend(names.map(|name| format!("{}: test_{name}", path.display())));
    }
    assert!(long.is_empty(), "shorten these names, the subject first:\n{}", long.join("\n"));
}

/// The texts for people that a new sampler or format must reach.
const TEXTS: [&str; 3] = [
    "crates/python/src/loader.rs",
    "crates/python/python/foreread/_settings.py",
    "crates/python/python/foreread/_native.pyi",
];

/// The texts that name only samplers.
const SAMPLER_TEXTS: [&str; 1] = ["docs/planning.md"];

/// The texts that name only formats.
const FORMAT_TEXTS: [&str; 1] = ["crates/python/src/catalog.rs"];

#[test]
fn texts_name_every_sampler_and_format() {
    let samplers = foreread::SamplerKind::ALL.map(|(name, _)| name);
    let formats = foreread::Format::ALL.map(foreread::Format::name);
    let of_samplers = TEXTS.into_iter().chain(SAMPLER_TEXTS).map(|path| (path, &samplers[..]));
    let of_formats = TEXTS.into_iter().chain(FORMAT_TEXTS).map(|path| (path, &formats[..]));
    let mut missing = Vec::new();
    for (path, names) in of_samplers.chain(of_formats) {
        let text = std::fs::read_to_string(root().join(path)).unwrap();
        let words: BTreeSet<_> = text.split(|c: char| !c.is_alphanumeric()).collect();
        let absent = names.iter().filter(|name| !words.contains(*name));
        missing.extend(absent.map(|name| format!("{path}: {name}")));
    }
    assert!(missing.is_empty(), "add these names:\n{}", missing.join("\n"));
}

/// The widest that a line may be. Tables and addresses cannot be wrapped, and examples are code.
fn widest(line: &str, is_example: bool) -> usize {
    let comment = ["//!", "///", "//"].iter().find_map(|mark| line.trim_start().strip_prefix(mark));
    match comment.map(str::trim_start) {
        Some(text) if text.starts_with('|') || text.contains("https://") => usize::MAX,
        Some(_) if !is_example => MAX_COMMENT,
        _ => MAX_LINE,
    }
}

#[test]
fn lines_fit_side_by_side_views() {
    let mut wide = Vec::new();
    for source in sources(EVERYTHING) {
        let (mut is_example, mut is_raw) = (false, false);
        for (number, line) in source.text.lines().enumerate() {
            let is_comment = line.trim_start().starts_with("//");
            is_example = is_comment && (is_example != line.contains("```"));
            // Programs and documents of tests in raw strings are exempt.
            is_raw = (is_raw || line.contains("r#\"")) && !line.contains("\"#");
            if !is_raw && !line.contains("\"#") && line.chars().count() > widest(line, is_example) {
                wide.push(format!("{}:{}", source.path, number + 1));
            }
        }
    }
    assert!(
        wide.is_empty(),
        "wrap comments at {MAX_COMMENT} columns and all else at {MAX_LINE}:\n{}",
        wide.join("\n")
    );
}
