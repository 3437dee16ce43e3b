//! Splitting a command into words, as Amazon's tools split `credential_process` (Python's `shlex`).
//!
//! Blanks separate words. Text between single quotes is literal. Between double quotes a backslash
//! escapes a `"` or another backslash. Elsewhere it escapes any character. Variables and comments
//! are not supported.

/// The words of `text`.
///
/// # Errors
/// If a quote is not closed, or a backslash is last.
pub(crate) fn split(text: &str) -> Result<Vec<String>, &'static str> {
    let mut words: Vec<String> = Vec::new();
    let mut word: Option<String> = None;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            letter if letter.is_ascii_whitespace() => words.extend(word.take()),
            quote @ ('\'' | '"') => quoted(quote, &mut letters, word.get_or_insert_default())?,
            '\\' => word.get_or_insert_default().push(letters.next().ok_or("it ends with a backslash")?),
            letter => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    Ok(words)
}

/// Adds the text between two quotes.
fn quoted(quote: char, letters: &mut std::str::Chars<'_>, word: &mut String) -> Result<(), &'static str> {
    const OPEN: &str = "a quote is not closed";
    loop {
        match letters.next().ok_or(OPEN)? {
            letter if letter == quote => return Ok(()),
            '\\' if quote == '"' => match letters.next().ok_or(OPEN)? {
                letter @ ('"' | '\\') => word.push(letter),
                letter => word.extend(['\\', letter]),
            },
            letter => word.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: BUCKET-13
    fn words_are_those_of_pythons_shlex() {
        for (text, words) in [
            ("", &[][..]),
            ("  a\t b ", &["a", "b"]),
            ("'/opt/my tool' --arg \"x y\"", &["/opt/my tool", "--arg", "x y"]),
            (r#"a\ b "c\"d\e\\" 'f\g'"#, &["a b", r#"c"d\e\"#, r"f\g"]),
            ("a''b \"\" c'd'\"e\"", &["ab", "", "cde"]),
            ("$HOME `x` #y ~", &["$HOME", "`x`", "#y", "~"]),
        ] {
            assert_eq!(split(text).unwrap(), words, "{text}");
        }
        for text in ["'a", "\"a\\\"", "a\\", "\"a\\"] {
            assert!(split(text).is_err(), "{text}");
        }
    }
}
