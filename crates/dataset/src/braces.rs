//! Brace expansion, as shells do it: `shard-{000000..000146}.tar`, `{train,val}/{0..9}.tar`.

use crate::{DatasetError, DatasetErrorKind};

/// The maximum number of names that one pattern expands to.
const MOST: usize = 1_000_000;

/// The names that a pattern expands to, in its order. `{a,b}` is `a` and `b`. `{08..11}` is each
/// number from the first to the last, in descending order if the first is larger. Numbers are
/// padded with zeros to the length of the longer bound. Braces may be nested. Braces that contain
/// neither a comma nor a range are unchanged, as in a shell.
///
/// ```
/// let names = foreread_dataset::expand("s3://bucket/{train-{08..10},val}.tar")?;
/// assert_eq!(names[0], "s3://bucket/train-08.tar");
/// assert_eq!(names[3], "s3://bucket/val.tar");
/// # Ok::<(), foreread_dataset::DatasetError>(())
/// ```
///
/// # Errors
/// [`DatasetErrorKind::Invalid`] if it expands to more than a million names.
pub fn expand(pattern: &str) -> Result<Vec<String>, DatasetError> {
    let count = count(pattern).filter(|&count| count <= MOST);
    count.ok_or_else(|| {
        let message =
            format!("{pattern}: these braces stand for more than {MOST} names; name fewer at a time");
        DatasetError::new(DatasetErrorKind::Invalid, message)
    })?;
    Ok(names(pattern))
}

/// Splits a pattern into the text up to the first braces with a choice, their content, and the
/// rest.
fn split(pattern: &str) -> Option<(&str, BraceChoice<'_>, &str)> {
    for (open, _) in pattern.match_indices('{') {
        let Some(close) = closing(&pattern[open..]) else { continue };
        let inside = &pattern[open + 1..open + close];
        if let Some(choice) = BraceChoice::of(inside) {
            return Some((&pattern[..open], choice, &pattern[open + close + 1..]));
        }
    }
    None
}

/// The position of the brace that closes the one at the beginning of `text`.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, letter) in text.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 1 => return Some(at),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

enum BraceChoice<'a> {
    Each(Vec<&'a str>),
    Range { first: u64, last: u64, width: usize },
}

impl<'a> BraceChoice<'a> {
    fn of(inside: &'a str) -> Option<Self> {
        let number = |text: &str| {
            let fits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            fits.then(|| text.parse().ok()).flatten()
        };
        if let Some((first, last)) = inside.split_once("..")
            && let (Some(from), Some(until)) = (number(first), number(last))
        {
            let padded = |text: &str| text.len() > 1 && text.starts_with('0');
            let width = if padded(first) || padded(last) { first.len().max(last.len()) } else { 0 };
            return Some(Self::Range { first: from, last: until, width });
        }
        let mut parts = Vec::new();
        let (mut depth, mut start) = (0usize, 0);
        for (at, letter) in inside.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                ',' if depth == 0 => {
                    parts.push(&inside[start..at]);
                    start = at + 1;
                }
                _ => {}
            }
        }
        parts.push(&inside[start..]);
        (parts.len() > 1).then_some(Self::Each(parts))
    }
}

/// The number of names that a pattern expands to, without creating them. `None` if it is too large.
fn count(pattern: &str) -> Option<usize> {
    let Some((_, choice, rest)) = split(pattern) else { return Some(1) };
    let here = match choice {
        BraceChoice::Range { first, last, .. } => {
            usize::try_from(first.abs_diff(last)).ok()?.checked_add(1)?
        }
        BraceChoice::Each(parts) => {
            parts.into_iter().try_fold(0usize, |sum, part| sum.checked_add(count(part)?))?
        }
    };
    // Counting stops at the limit. Otherwise nested braces would take a long time.
    here.checked_mul(count(rest)?).filter(|&count| count <= MOST)
}

fn names(pattern: &str) -> Vec<String> {
    let Some((before, choice, rest)) = split(pattern) else { return vec![pattern.to_owned()] };
    let middles: Vec<String> = match choice {
        BraceChoice::Each(parts) => parts.into_iter().flat_map(names).collect(),
        BraceChoice::Range { first, last, width } => {
            let name = |number: u64| format!("{number:0width$}");
            match first <= last {
                true => (first..=last).map(name).collect(),
                false => (last..=first).rev().map(name).collect(),
            }
        }
    };
    let ends = names(rest);
    let whole = |middle: &String| ends.iter().map(|end| format!("{before}{middle}{end}")).collect::<Vec<_>>();
    middles.iter().flat_map(whole).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: SHARD-5
    fn braces_expand_as_in_a_shell() {
        for (pattern, expected) in [
            ("a", &["a"][..]),
            ("a{1,2}b", &["a1b", "a2b"]),
            ("{a,b}{1,2}", &["a1", "a2", "b1", "b2"]),
            ("s-{08..11}.tar", &["s-08.tar", "s-09.tar", "s-10.tar", "s-11.tar"]),
            ("{9..11}", &["9", "10", "11"]),
            ("{2..0}", &["2", "1", "0"]),
            ("{0..002}", &["000", "001", "002"]),
            ("{a,{b,c}{1..2},}x", &["ax", "b1x", "b2x", "c1x", "c2x", "x"]),
            // Nothing to choose from.
            ("{a}", &["{a}"]),
            ("{}", &["{}"]),
            ("{a,b", &["{a,b"]),
            ("a}b{", &["a}b{"]),
            ("{x}{1,2}", &["{x}1", "{x}2"]),
            ("{{1,2}}", &["{1}", "{2}"]),
            ("{1..x}", &["{1..x}"]),
            ("${HOME}", &["${HOME}"]),
            ("{\u{e9},b}", &["\u{e9}", "b"]),
        ] {
            assert_eq!(expand(pattern).unwrap(), expected, "{pattern}");
        }
    }

    #[test]
    // semantics: SHARD-5
    fn oversized_brace_expression_is_refused() {
        for pattern in [
            "{0..99999999999}".to_owned(),
            "{0..18446744073709551615}".to_owned(),
            "{0..99999}".repeat(3),
            "{a,b}".repeat(100),
        ] {
            let error = expand(&pattern).unwrap_err();
            assert!(error.to_string().contains("more than 1000000 names"), "{error}");
        }
        assert_eq!(expand("{1..1000000}").unwrap().len(), 1_000_000);
        // Longer than a number: no range, so a name.
        assert_eq!(expand("{0..99999999999999999999999}").unwrap().len(), 1);
    }
}
