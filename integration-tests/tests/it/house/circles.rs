//! No more than four source files of a package point to each other in a circle.
//!
//! A file points to another one if it names something that the other one defines: in a tree of
//! `use`, or by a path that begins with `crate`, `self` or `super`. Re-exports are followed to the
//! file that defines the name. Files and modules for tests do not count. A reader of one file of a
//! circle needs all of them.
//!
//! Decision: a small parser of tokens instead of a compiler, so the check takes a second. The
//! price: names that only a glob imports are no arrows, nor are calls of methods and paths in the
//! strings of attributes. A module within a file counts as the file itself.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::{SHIPPED, Source, metadata, root, sources};

/// The most files of a circle.
const MOST_FILES: usize = 4;

/// Adds the words and marks of code, without comments and literals.
fn flatten(code: TokenStream, tokens: &mut Vec<String>) {
    for tree in code {
        match tree {
            TokenTree::Literal(_) => {}
            TokenTree::Group(group) => {
                let is_block = group.delimiter() == Delimiter::Brace;
                tokens.push(if is_block { "{" } else { "(" }.to_owned());
                flatten(group.stream(), tokens);
                tokens.push(if is_block { "}" } else { ")" }.to_owned());
            }
            other => tokens.push(other.to_string()),
        }
    }
}

/// The number of tokens of an item with its attributes.
fn length_of_item(tokens: &[&str]) -> usize {
    let mut depth = 0;
    let end = tokens.iter().position(|token| {
        depth += i32::from(matches!(*token, "(" | "{")) - i32::from(matches!(*token, ")" | "}"));
        depth < 0 || depth == 0 && matches!(*token, "}" | ";" | ",")
    });
    end.map_or(tokens.len(), |end| end + 1)
}

/// The imports and names in the files of a package. A file is written as its module, `crate::a::b`.
#[derive(Default)]
struct Names {
    /// The imported names of each file, with their paths.
    imports: BTreeMap<String, BTreeMap<String, String>>,
    /// All paths, with their files.
    paths: BTreeSet<(String, String)>,
    /// The files for tests.
    tests: BTreeSet<String>,
}

/// The files that each file points to, with the paths that do it.
type Arrows = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

impl Names {
    /// Adds the names of a file.
    fn read(&mut self, file: &str, text: &str) {
        let mut owned = Vec::new();
        flatten(text.parse().expect("a source file has whole tokens"), &mut owned);
        let tokens: Vec<&str> = owned.iter().map(String::as_str).collect();
        self.imports.insert(file.to_owned(), BTreeMap::new());
        let mut at = 0;
        while at < tokens.len() {
            match tokens[at..] {
                ["#", "(", "cfg", "(", "test", ..] | ["#", "(", "cfg", "(", "all", "(", "test", ..] => {
                    let length = length_of_item(&tokens[at..]);
                    if let [.., "mod", name, ";"] = tokens[at..at + length] {
                        self.tests.insert(format!("{file}::{name}::"));
                    }
                    at += length - 1;
                }
                ["use", next, ..] if next != "<" => at += self.tree(file, "", &tokens[at + 1..]),
                ["crate" | "self" | "super", ":", ":", ..] if !tokens[..at].ends_with(&["(", "in"]) => {
                    let mut path = tokens[at].to_owned();
                    while let [":", ":", name, ..] = tokens[at + 1..]
                        && name.starts_with(char::is_alphabetic)
                    {
                        path = format!("{path}::{name}");
                        at += 3;
                    }
                    self.paths.insert((file.to_owned(), path));
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// Adds a tree of `use` below a path, and returns the number of its tokens.
    fn tree(&mut self, file: &str, above: &str, tokens: &[&str]) -> usize {
        let (mut path, mut at) = (above.to_owned(), 0);
        while let [name, ":", ":", ..] = tokens[at..] {
            path = format!("{path}{name}::");
            at += 3;
        }
        if let ["{", ..] = tokens[at..] {
            at += 1;
            while tokens.get(at).is_some_and(|token| *token != "}") {
                at += self.tree(file, &path, &tokens[at..]);
            }
        } else {
            path += tokens.get(at).copied().unwrap_or_default();
            let path = path.trim_end_matches("::self");
            let mut name = path.rsplit("::").next().unwrap_or_default();
            if let [_, "as", alias, ..] = tokens[at..] {
                (name, at) = (alias, at + 2);
            }
            self.imports.entry(file.to_owned()).or_default().insert(name.to_owned(), path.to_owned());
            self.paths.insert((file.to_owned(), path.to_owned()));
        }
        at + 1 + usize::from(tokens.get(at + 1) == Some(&","))
    }

    /// The file that defines the item of a path in `file` names, or that re-exports it from another
    /// package. `None` if that is outside of this package.
    fn target(&self, file: &str, path: &str, steps: u32) -> Option<String> {
        let (mut at, names): (_, Vec<&str>) = (file.to_owned(), path.split("::").collect());
        for (number, name) in names.iter().enumerate() {
            let child = format!("{at}::{name}");
            match *name {
                "crate" => "crate".clone_into(&mut at),
                "self" | "*" => {}
                "super" => at.truncate(at.rfind("::").unwrap_or(at.len())),
                _ if self.imports.contains_key(&child) => at = child,
                _ => {
                    let import = self.imports.get(&at).and_then(|imports| imports.get(*name));
                    let path =
                        import.map(|path| [&[path.as_str()], &names[number + 1..]].concat().join("::"));
                    let found = path.and_then(|path| self.target(&at, &path, steps.checked_sub(1)?));
                    return found.or((number > 0).then_some(at));
                }
            }
        }
        Some(at)
    }

    fn arrows(&self) -> Arrows {
        let is_test = |file: &str| self.tests.iter().any(|test| format!("{file}::").starts_with(test));
        let mut arrows = Arrows::new();
        for (file, path) in self.paths.iter().filter(|(file, _)| !is_test(file)) {
            if let Some(target) = self.target(file, path, 8).filter(|target| target != file) {
                arrows.entry(file.clone()).or_default().entry(target).or_default().insert(path.clone());
            }
        }
        arrows
    }
}

/// All files that a file leads to.
fn reached<'a>(arrows: &'a Arrows, from: &'a str) -> BTreeSet<&'a str> {
    let (mut found, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(file) = next.pop() {
        let targets = arrows.get(file).into_iter().flat_map(BTreeMap::keys);
        next.extend(targets.map(String::as_str).filter(|target| found.insert(*target)));
    }
    found
}

/// The largest circle of the files in a folder: how many, and a line for each with its imports from
/// the others.
fn largest_circle(sources: &[Source], folder: &str) -> (usize, String) {
    let mut names = Names::default();
    for source in sources {
        let Some(file) = source.path.strip_prefix(folder) else { continue };
        let module = format!("crate::{}", file.trim_end_matches(".rs").replace('/', "::"));
        let ends = ["::mod", "::lib", "::main"];
        let module = ends.iter().find_map(|end| module.strip_suffix(end)).unwrap_or(&module);
        // `lib.rs` comes before `main.rs`, which is another root, as is each file of `bin`.
        if !file.starts_with("bin/") && !names.imports.contains_key(module) {
            names.read(module, &source.text);
        }
    }
    let arrows = names.arrows();
    let reached: BTreeMap<_, _> = arrows.keys().map(|file| (file.as_str(), reached(&arrows, file))).collect();
    let circle = |file: &&str| -> Vec<&str> {
        let leads_back = |to: &&str| reached.get(to).is_some_and(|reached| reached.contains(file));
        reached[file].iter().copied().filter(leads_back).collect()
    };
    let largest = reached.keys().map(circle).max_by_key(Vec::len).unwrap_or_default();
    let line = |file: &&str| {
        let paths = arrows[*file].iter().filter(|(target, _)| largest.contains(&target.as_str()));
        let paths: Vec<&str> = paths.flat_map(|(_, paths)| paths).map(String::as_str).collect();
        format!("\n    {file}: {}", paths.join(", "))
    };
    (largest.len(), largest.iter().map(line).collect())
}

#[test]
fn files_form_no_circle_of_more_than_four() {
    let (root, sources, mut wrong) = (root(), sources(SHIPPED), String::new());
    for package in metadata().workspace_packages() {
        let folder = package.manifest_path.parent().unwrap().strip_prefix(&root).unwrap();
        let (found, lines) = largest_circle(&sources, &format!("{folder}/src/"));
        if found > MOST_FILES {
            wrong += &format!("\n{}: {found} files name items of each other:{lines}", package.name);
        }
    }
    assert!(wrong.is_empty(), "move what such files share into a lower file:{wrong}");
}

/// Each file of the circle names the next one in another way.
#[test]
fn circle_is_found_with_its_imports() {
    let made_up = [
        ("lib.rs", "mod a; pub use b::Two as Second; #[cfg(test)]\nmod tests;"),
        ("a.rs", "use {std::fmt, crate::Second};"),
        ("b/mod.rs", "use super::c::{self, Three};"),
        ("c.rs", "// crate::a\nfn four() { \"crate::a\"; crate::d::four() }"),
        ("d/mod.rs", "mod lower; pub use self::lower::Fourth;"),
        ("d/lower.rs", "use super::super::e::Five as Fifth; #[cfg(test)] fn f() { crate::a::test(); }"),
        ("e.rs", "pub(in crate::b) fn g(_: crate::a::One) {} #[cfg(test)] mod tests { use crate::b::Two; }"),
        ("f.rs", "use crate::a::One; use crate::d::Fourth;"),
        ("tests.rs", "use crate::e::Five;"),
    ];
    let mut files = made_up.map(|(path, text)| Source { path: format!("src/{path}"), text: text.to_owned() });
    let expected = "
    crate::a: crate::Second
    crate::b: super::c, super::c::Three
    crate::c: crate::d::four
    crate::d: self::lower::Fourth
    crate::d::lower: super::super::e::Five
    crate::e: crate::a::One";
    assert_eq!(largest_circle(&files, "src/"), (6, expected.to_owned()));
    files[3].text.clear();
    assert_eq!(largest_circle(&files, "src/").0, 0);
}
