//! The house rules: which package may depend on which, and the texts that no source file may
//! contain.
//!
//! Decision: the arrows are a table of all allowed dependencies of each package, instead of a few
//! forbidden edges. So a new dependency is refused by default. The price is one line here for each
//! new package.

mod circles;
mod clocks;
mod language;
mod names;
mod remedies;
mod semantics;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{CargoOpt, DependencyKind, Metadata, MetadataCommand, Package, PackageId};

/// Each package, and the packages of this workspace that it may have as normal dependencies.
/// Development dependencies are free. Everything may use `foreread-types`, and `foreread-types`
/// nothing.
const ARROWS: &[(&str, &[&str])] = &[
    ("foreread-types", &[]),
    ("foreread-oracle", &["foreread-types"]),
    ("foreread-planner", &["foreread-types", "foreread-oracle"]),
    ("foreread-plot", &[]),
    ("foreread-simulator", &["foreread-types", "foreread-oracle", "foreread-planner", "foreread-plot"]),
    ("foreread-tier", &["foreread-types"]),
    // Bytes to pixels. The library below the command and the package does not know it.
    ("foreread-decode", &[]),
    ("foreread-launcher", &["foreread-types"]),
    ("foreread-connection", &["foreread-types", "foreread-tier"]),
    ("foreread-formats", &["foreread-types"]),
    // The outermost layer decodes samples.
    ("foreread-layers", &["foreread-types", "foreread-tier", "foreread-formats"]),
    // The rule by which a node's store keeps samples is the planner's.
    ("foreread-store", &["foreread-types", "foreread-planner", "foreread-tier"]),
    ("foreread-agent-client", &["foreread-types", "foreread-store", "foreread-tier"]),
    ("foreread-tier-testing", &["foreread-types", "foreread-tier"]),
    ("foreread-dataset", &["foreread-types", "foreread-tier", "foreread-formats"]),
    // Readers of tables, apart from the catalogs that are made of them.
    ("foreread-tables", &["foreread-types", "foreread-dataset"]),
    (
        "foreread-loader",
        &[
            "foreread-types",
            "foreread-oracle",
            "foreread-planner",
            "foreread-tier",
            "foreread-layers",
            "foreread-dataset",
        ],
    ),
    // Tiers: types and tier alone (and the launcher's facts), so that none sees the loader or
    // another tier's crate.
    ("foreread-memory", &["foreread-types", "foreread-tier"]),
    ("foreread-local", &["foreread-types", "foreread-tier"]),
    // The one exception: a directory on Lustre is read as any other.
    ("foreread-lustre", &["foreread-local", "foreread-tier"]),
    ("foreread-s3", &["foreread-types", "foreread-tier"]),
    ("foreread-opendal", &["foreread-types", "foreread-tier"]),
    ("foreread-lustre-testing", &["foreread-types"]),
    ("foreread-peer", &["foreread-types", "foreread-connection", "foreread-launcher", "foreread-tier"]),
    ("foreread-peer-testing", &["foreread-types", "foreread-peer"]),
    // From a user's target to a catalog and an origin. Of the loader it knows the errors.
    (
        "foreread-open",
        &[
            "foreread-types",
            "foreread-oracle",
            "foreread-planner",
            "foreread-launcher",
            "foreread-tier",
            "foreread-layers",
            "foreread-dataset",
            "foreread-loader",
            "foreread-memory",
            "foreread-local",
            "foreread-lustre",
            "foreread-s3",
            "foreread-opendal",
            "foreread-tables",
        ],
    ),
    // The store of a node, for ranks and for agents.
    (
        "foreread-host",
        &[
            "foreread-types",
            "foreread-planner",
            "foreread-connection",
            "foreread-dataset",
            "foreread-file-cache",
            "foreread-launcher",
            "foreread-layers",
            "foreread-loader",
            "foreread-local",
            "foreread-open",
            "foreread-peer",
            "foreread-store",
            "foreread-tier",
        ],
    ),
    (
        "foreread",
        &[
            "foreread-types",
            "foreread-oracle",
            "foreread-planner",
            "foreread-launcher",
            "foreread-tier",
            "foreread-layers",
            "foreread-dataset",
            "foreread-loader",
            "foreread-memory",
            "foreread-local",
            "foreread-open",
            "foreread-s3",
            "foreread-peer",
            "foreread-plot",
            "foreread-store",
            "foreread-host",
            "foreread-agent-client",
            "foreread-tables",
        ],
    ),
    // The library never depends on the agent.
    (
        "foreread-agent",
        &[
            "foreread-types",
            "foreread-planner",
            "foreread-connection",
            "foreread-dataset",
            "foreread-host",
            "foreread-launcher",
            "foreread-open",
            "foreread-peer",
            "foreread-store",
            "foreread-tier",
            "foreread",
        ],
    ),
    ("foreread-settings", &["foreread-types", "foreread-dataset", "foreread"]),
    (
        "foreread-estimate",
        &["foreread-types", "foreread-planner", "foreread-tier", "foreread-local", "foreread"],
    ),
    // Shared with a library that is compiled apart, so it depends on nothing.
    ("foreread-preload", &[]),
    // It needs no loader and no engine.
    (
        "foreread-file-cache",
        &["foreread-types", "foreread-local", "foreread-oracle", "foreread-planner", "foreread-preload"],
    ),
    // The layers are for `demo`, whose store is as slow as a bucket.
    (
        "foreread-cli",
        &[
            "foreread-types",
            "foreread",
            "foreread-agent",
            "foreread-decode",
            "foreread-estimate",
            "foreread-file-cache",
            "foreread-layers",
            "foreread-plot",
            "foreread-settings",
            "foreread-simulator",
            "foreread-store",
        ],
    ),
    (
        "foreread-python",
        &[
            "foreread-types",
            "foreread",
            "foreread-agent",
            "foreread-cli",
            "foreread-decode",
            "foreread-estimate",
            "foreread-settings",
            "foreread-simulator",
        ],
    ),
    ("xtask", &[]),
];

/// Packages that are tests themselves and may depend on any other.
const FREE: &[&str] = &["foreread-integration-tests", "foreread-benches"];

/// Packages that compute and never wait: no runtime, directly or through others.
const PURE: &[&str] =
    &["foreread-types", "foreread-oracle", "foreread-planner", "foreread-plot", "foreread-simulator"];

/// The package that is for tests only.
const FOR_TESTS: &str = "foreread-tier-testing";

/// Lines that a file may have before its tests.
const MOST_LINES: usize = 600;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace holds this package").to_owned()
}

/// All packages, with every feature on, as they are on this machine: other platforms' packages need
/// not be there.
fn metadata() -> Metadata {
    MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .features(CargoOpt::AllFeatures)
        .other_options(["--filter-platform".to_owned(), "host-tuple".to_owned()])
        .exec()
        .expect("cargo metadata describes the workspace")
}

fn allowed(package: &str) -> Option<&'static [&'static str]> {
    ARROWS.iter().find(|(name, _)| *name == package).map(|(_, allowed)| *allowed)
}

/// The packages that `cargo test` at the root leaves out: they are minutes of compiling.
const LEFT_OUT: [&str; 3] = ["foreread-benches", "foreread-python", "xtask"];

#[test]
fn root_commands_mean_nearly_all_packages() {
    let metadata = metadata();
    let default = metadata.workspace_default_packages();
    let default: BTreeSet<_> = default.iter().map(|package| package.name.as_str()).collect();
    let all = metadata.workspace_packages();
    let left_out = all.iter().map(|package| package.name.as_str()).filter(|name| !default.contains(name));
    let left_out: BTreeSet<_> = left_out.collect();
    assert_eq!(left_out, BTreeSet::from(LEFT_OUT), "`cargo test` at the root would leave packages out");
    let run: Vec<_> =
        metadata.workspace_packages().into_iter().filter_map(|it| it.default_run.as_deref()).collect();
    assert_eq!(run, ["foreread"], "`cargo run -- demo` at the root needs one default-run");
}

/// The names of all dependencies of a package that end up in its output: normal ones, and those of
/// build scripts.
fn built_with(package: &Package) -> impl Iterator<Item = &str> {
    let built =
        package.dependencies.iter().filter(|dependency| dependency.kind != DependencyKind::Development);
    built.map(|dependency| dependency.name.as_str())
}

/// The dependencies that the table does not allow, one line each.
fn broken_arrows(packages: &[&Package]) -> Vec<String> {
    let names: BTreeSet<_> = packages.iter().map(|package| package.name.as_str()).collect();
    let mut broken = Vec::new();
    for package in packages.iter().filter(|package| !FREE.contains(&package.name.as_str())) {
        let name = &package.name;
        let Some(allowed) = allowed(name) else {
            broken.push(format!(
                "{name} is in no table: give it a line in ARROWS (integration-tests/tests/it/house.rs) that \
                 lists the workspace packages it may use, and a place in ARCHITECTURE.md"
            ));
            continue;
        };
        for used in built_with(package).filter(|used| names.contains(used) && !allowed.contains(used)) {
            broken.push(match used {
                FOR_TESTS => format!("{name} uses {FOR_TESTS}, which may only be a development dependency"),
                _ => format!("{name} may not use {used}: it may use {allowed:?}"),
            });
        }
    }
    broken
}

#[test]
fn packages_use_only_what_the_arrows_allow() {
    let metadata = metadata();
    let broken = broken_arrows(&metadata.workspace_packages());
    assert!(broken.is_empty(), "\n{}", broken.join("\n"));
}

#[test]
fn tables_name_only_existing_packages() {
    let metadata = metadata();
    let packages: BTreeSet<_> = metadata.workspace_packages().iter().map(|p| p.name.to_string()).collect();
    let named = ARROWS.iter().flat_map(|(name, allowed)| std::iter::once(name).chain(*allowed)).chain(FREE);
    let gone: Vec<_> = named.filter(|name| !packages.contains(**name)).collect();
    assert!(gone.is_empty(), "the tables in house.rs name packages that do not exist: {gone:?}");
}

#[test]
fn arrow_outside_the_table_is_found() {
    let metadata = metadata();
    let mut packages: Vec<Package> = metadata.workspace_packages().into_iter().cloned().collect();
    let loader = packages.iter().find(|package| package.name == "foreread-loader").unwrap();
    // As if the tiers in `local` had the loader's dependencies, and an unlisted package had come.
    let dependencies = loader.dependencies.clone();
    let local = packages.iter_mut().find(|package| package.name == "foreread-local").unwrap();
    local.dependencies = dependencies;
    let tier = packages.iter_mut().find(|package| package.name == "foreread-tier").unwrap();
    tier.name = cargo_metadata::PackageName::new("foreread-unheard-of".to_owned());
    let broken = broken_arrows(&packages.iter().collect::<Vec<_>>());
    for line in ["foreread-local may not use foreread-oracle", "foreread-unheard-of is in no table"] {
        assert!(broken.iter().any(|found| found.starts_with(line)), "{line}: {broken:?}");
    }
}

/// Eighteen packages had one description.
#[test]
fn each_package_has_a_description_of_its_own() {
    let metadata = metadata();
    let mut seen = BTreeMap::new();
    for package in metadata.workspace_packages() {
        let description = package.description.clone().unwrap_or_default();
        assert!((20..=110).contains(&description.len()), "{}: {description:?}", package.name);
        if let Some(other) = seen.insert(description, &package.name) {
            panic!("{other} and {} have one description", package.name);
        }
    }
}

#[test]
fn types_depends_on_bytes_alone() {
    let metadata = metadata();
    let packages = metadata.workspace_packages();
    let types = packages.iter().find(|package| package.name == "foreread-types").unwrap();
    // Tables of lengths may be in memory that processes share.
    assert_eq!(built_with(types).collect::<Vec<_>>(), ["bytes"]);
}

/// All packages that a package builds with, directly or through others, each with the package that
/// brings it in.
fn reach(metadata: &Metadata, from: &Package) -> BTreeMap<String, String> {
    let resolve = metadata.resolve.as_ref().expect("cargo metadata resolves dependencies");
    let edges: BTreeMap<&PackageId, _> = resolve.nodes.iter().map(|node| (&node.id, &node.deps)).collect();
    let mut found = BTreeMap::new();
    let mut next = vec![&from.id];
    while let Some(user) = next.pop() {
        let built = edges[user].iter().filter(|dependency| {
            dependency.dep_kinds.iter().any(|kind| kind.kind != DependencyKind::Development)
        });
        for dependency in built {
            let name = metadata[&dependency.pkg].name.to_string();
            found.entry(name).or_insert_with(|| {
                next.push(&dependency.pkg);
                metadata[user].name.to_string()
            });
        }
    }
    found
}

#[test]
fn pure_packages_never_see_a_runtime() {
    let metadata = metadata();
    for package in metadata.workspace_packages() {
        let reach = reach(&metadata, package);
        let runtime = reach.get("tokio");
        if PURE.contains(&package.name.as_str()) {
            assert_eq!(runtime, None, "{} is pure, and this package brings tokio into it", package.name);
        } else if package.name == "foreread-loader" {
            assert!(runtime.is_some(), "the walk over dependencies no longer finds the loader's tokio");
        }
    }
}

/// A source file: its path below the workspace's root, and its text.
struct Source {
    path: String,
    text: String,
}

/// All Rust files below some folders of the workspace.
fn sources(folders: &[&str]) -> Vec<Source> {
    let root = root();
    let mut files = Vec::new();
    let mut next: Vec<_> = folders.iter().map(|folder| root.join(folder)).collect();
    while let Some(folder) = next.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
                next.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                files.push(Source { path: path.strip_prefix(&root).unwrap().display().to_string(), text });
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

const SHIPPED: &[&str] = &["crates", "backends", "xtask"];
const EVERYTHING: &[&str] = &["crates", "backends", "xtask", "integration-tests", "benches"];

fn lines_before_tests(text: &str) -> usize {
    let tests = |line: &&str| line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test");
    text.lines().take_while(|line| !tests(line)).count()
}

#[test]
fn files_have_at_most_600_lines() {
    let long: Vec<_> = sources(SHIPPED)
        .iter()
        .map(|source| (lines_before_tests(&source.text), &source.path))
        .filter(|(lines, _)| *lines > MOST_LINES)
        .map(|(lines, path)| format!("{path}: {lines} lines before its tests; split it by concept"))
        .collect();
    assert!(long.is_empty(), "\n{}", long.join("\n"));
}

#[test]
fn lines_after_the_tests_do_not_count() {
    let file =
        format!("{}#[cfg(test)]\nmod tests {{\n{}}}\n", "let a = 1;\n".repeat(3), "// test\n".repeat(9));
    assert_eq!(lines_before_tests(&file), 3);
}

#[test]
fn unfinished_code_is_found() {
    // Put together here, so that this file does not contain them.
    let words = [concat!("to", "do!("), concat!("unimple", "mented!(")];
    let left: Vec<_> = sources(EVERYTHING)
        .iter()
        .flat_map(|source| {
            words.iter().filter(|word| source.text.contains(**word)).map(|w| format!("{}: {w}", source.path))
        })
        .collect();
    assert!(left.is_empty(), "\n{}", left.join("\n"));
}

/// Attributes that silence a lint without a reason, as (line number, line).
fn silenced_without_reason(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let code = line.trim_start();
        let attribute = ["#[", "#!["].iter().find_map(|open| code.strip_prefix(open));
        let silences = attribute.is_some_and(|attribute| {
            ["allow(", "expect("].iter().any(|word| attribute.starts_with(word))
                || (attribute.starts_with("cfg_attr(")
                    && ["allow(", "expect("].iter().any(|word| attribute.contains(word)))
        });
        if silences && !bracketed(&text[start..]).contains("reason =") {
            found.push((text[..start].lines().count() + 1, line.trim()));
        }
        start += line.len();
    }
    found
}

/// From the start to the bracket that closes the first one. Strings are passed over.
fn bracketed(text: &str) -> &str {
    let mut depth = 0_u32;
    let mut in_string = false;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            '[' if !in_string => depth += 1,
            ']' if !in_string && depth == 1 => return &text[..at],
            ']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    text
}

#[test]
fn every_silenced_lint_has_its_reason() {
    let mut silent = Vec::new();
    for source in sources(EVERYTHING) {
        for (number, line) in silenced_without_reason(&source.text) {
            silent.push(format!("{}:{number}: {line}", source.path));
        }
    }
    assert!(silent.is_empty(), "say why with `reason = \"...\"`:\n{}", silent.join("\n"));
}

#[test]
fn reasons_outside_the_attribute_do_not_count() {
    let file = concat!(
        "#",
        "[allow(dead_code)]\n",
        "#",
        "[doc = \"reason = none\"]\n",
        "    #",
        "[expect(\n        clippy::x,\n        reason = \"a ] in a string\"\n    )]\n",
        "// #",
        "[allow(comment)]\n",
        "#!",
        "[expect(unused, reason = \"said\")]\n",
        "  #",
        "[expect(clippy::y)] // reason = elsewhere\n",
    );
    let found: Vec<_> = silenced_without_reason(file).into_iter().map(|(number, _)| number).collect();
    assert_eq!(found, [1, 9]);
}

#[test]
fn tests_that_need_tools_follow_the_convention() {
    // Servers have theirs from xtask.
    let set = [".ci/tools", "xtask/src/servers.rs", "xtask/src/ceph.rs"];
    let set = set.map(|path| fs::read_to_string(root().join(path)).unwrap()).concat();
    let of_python = ["FOREREAD_TEST_WHEEL"];
    let words = set.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let variables: BTreeSet<_> = words
        .filter(|word| word.len() > 14 && word.starts_with("FOREREAD_TEST_") && !of_python.contains(word))
        .collect();
    assert!(variables.len() > 10, "this test looks in the wrong place: {variables:?}");
    // Benches are not tests: they measure with whatever tools exist.
    for source in sources(&["crates", "backends", "integration-tests"]) {
        let is_there = source.path.starts_with("integration-tests/tests/it/needs_");
        for variable in variables.iter().filter(|variable| source.text.contains(**variable)) {
            assert!(
                is_there,
                "{} reads {variable}: tests that need a tool live in \
                 integration-tests/tests/it/needs_NAME.rs",
                source.path
            );
        }
        let needed = source.text.split("needed(\"").skip(1).filter_map(|rest| rest.split('"').next());
        for variable in needed.filter(|_| is_there) {
            assert!(variables.contains(variable), "{}: .ci/tools does not set {variable}", source.path);
        }
    }
}
