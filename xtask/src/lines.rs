//! `cargo xtask lines`: lines of code per package.
//!
//! Lines count as in tokei: without blank lines, comments and documentation. Counted are `.rs`
//! files below `src`, without items under `#[cfg(test)]`, files named `tests.rs` and directories
//! named `tests`.
//!
//! Decision: a custom scanner, because tokei includes tests in its counts and builds some hundred
//! crates. The price is that only Rust in rustfmt's format is counted.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::workspace::Workspace;

/// Attributes of test items.
const UNDER_TEST: [&str; 2] = ["#[cfg(test)]", "#[cfg(all(test,"];

/// Prints a line for each package, and the sum.
pub fn run() -> Result<bool> {
    let mut sum = 0;
    for (name, folder) in &Workspace::load()?.packages {
        let lines = below(&folder.join("src"))?;
        println!("{name:28}{lines:>8}");
        sum += lines;
    }
    println!("{:28}{sum:>8}", "total");
    Ok(true)
}

/// Lines of code of the Rust files below a directory. 0 where there is none.
fn below(directory: &Path) -> Result<usize> {
    let mut lines = 0;
    if !directory.is_dir() {
        return Ok(0);
    }
    for entry in fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() && name != OsStr::new("tests") {
            lines += below(&path)?;
        } else if path.extension() == Some(OsStr::new("rs")) && name != OsStr::new("tests.rs") {
            let text =
                fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            lines += count(&text);
        }
    }
    Ok(lines)
}

/// Lines of code of a file, without test items.
fn count(text: &str) -> usize {
    let code = code(text);
    let code = without_tests(&code);
    code.lines().filter(|line| !line.trim().is_empty()).count()
}

/// The text with comments blanked and strings replaced, so that every remaining bracket is code.
fn code(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let in_word = code.ends_with(|last: char| last.is_alphanumeric() || last == '_');
        let (length, filler) = if rest.starts_with("//") {
            (rest.find('\n').unwrap_or(rest.len()), ' ')
        } else if rest.starts_with("/*") {
            (comment(rest), ' ')
        } else if let Some(length) = raw_string(rest).filter(|_| !in_word) {
            (length, '"')
        } else if first == '"' {
            (1 + quoted(&rest[1..], '"'), '"')
        } else if first == '\'' && is_character(rest) {
            (1 + quoted(&rest[1..], '\''), '"')
        } else {
            code.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        };
        let (part, after) = rest.split_at(length);
        code.extend(part.chars().map(|char| if char.is_whitespace() { char } else { filler }));
        rest = after;
    }
    code
}

/// The length of a block comment with nested ones.
fn comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        match rest {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// The length up to and including the closing quote.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    let end = text.find(|char| {
        let closes = char == quote && !escaped;
        escaped = char == '\\' && !escaped;
        closes
    });
    end.map_or(text.len(), |end| end + 1)
}

/// The length of a raw string, if one begins here.
fn raw_string(text: &str) -> Option<usize> {
    let hashes = text.trim_start_matches(['b', 'c']).strip_prefix('r')?;
    let opened = hashes.trim_start_matches('#').strip_prefix('"')?;
    let closing = format!("\"{}", "#".repeat(hashes.len() - opened.len() - 1));
    let end = opened.find(&closing).map_or(opened.len(), |end| end + closing.len());
    Some(text.len() - opened.len() + end)
}

/// Whether a single quote begins a character, not a lifetime.
fn is_character(text: &str) -> bool {
    let mut chars = text.chars().skip(1);
    chars.next() == Some('\\') || chars.next() == Some('\'')
}

/// Code without test items. An item ends at its semicolon or closing brace.
fn without_tests(code: &str) -> String {
    let mut kept = String::new();
    let mut rest = code;
    while let Some(start) = UNDER_TEST.iter().filter_map(|attribute| rest.find(attribute)).min() {
        kept.push_str(&rest[..start]);
        rest = &rest[start..];
        let mut depth = 0usize;
        let end = rest.char_indices().find(|&(_, char)| {
            match char {
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth == 0 && matches!(char, ';' | '}')
        });
        rest = end.map_or("", |(at, _)| &rest[at + 1..]);
    }
    kept + rest
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn comments_and_blanks_do_not_count() {
        assert_eq!(count("//! Head.\n\n/// Documented.\nfn f() {} // trailing\n   \n"), 1);
        assert_eq!(count("/* one\n\n /* two */ three */ let a = 1;\n/*/ still */\nlet b = 2;\n"), 2);
        assert_eq!(count("let a = 1; /* begins\nends */\nlet url = \"http://x\";\n"), 2);
    }

    #[test]
    fn strings_count_whatever_they_hold() {
        assert_eq!(count("let a = \"/* no\n\n comment */ \\\" {\";\nlet b = 1; // }\n"), 3);
        assert_eq!(count("let a = r#\"\n\"quoted\" // text\n\"#;\n// end\n"), 3);
        assert_eq!(count("let a = br\"\\\";\n// a comment\nlet b = ('\"', '\\'', b'{', 'x');\n// end\n"), 2);
        assert_eq!(count("fn f<'a>(r: &'a str) -> &'a str {\n    // none\n    r\n}\n"), 3);
    }

    #[test]
    fn items_under_test_do_not_count() {
        let code = "fn f() {}\n#[cfg(test)]\nmod tests {\n    fn g() -> [u8; 2] { \"}\" }\n}\nfn h() {}\n";
        assert_eq!(count(code), 2);
        assert_eq!(count("#[cfg(test)]\nmod tests;\nfn f() {}\n"), 1);
        assert_eq!(
            count("#[cfg(all(test, feature = \"a\"))]\n#[allow(dead_code)]\nfn f(a: [u8; 2]) {\n}\n"),
            0
        );
        assert_eq!(count("// #[cfg(test)]\nlet a = \"#[cfg(test)]\";\nlet b = 1;\n"), 2);
    }
}
