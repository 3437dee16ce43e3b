//! Comments and documentation use the field's words and short sentences.
//!
//! Decision: a short list, so that a match is a fault and not a matter of taste. The price: most of
//! the style is left to reviewers.

use super::{EVERYTHING, sources};

const MAX_WORDS: usize = 25;

/// Words with a plainer form, such as detected, requested, no caller, next to, continues. And
/// pronouns in place of a noun: write "the leases of an agent" and "the copies that fit".
const BANNED: &str = "told|said|asked|nobody|somebody|whoever|beside|goes on|go on|puts up with|broken off|\
                      what|those that|those which|those who|one that|ones that";

/// The sentences of a file's comments, each with the line on which its paragraph begins. Examples,
/// tables and headings are left out, and each span of code counts as one word.
fn sentences(text: &str) -> Vec<(usize, String)> {
    let (mut paragraphs, mut is_open, mut is_example) = (Vec::<(usize, String)>::new(), false, false);
    for (number, line) in (1..).zip(text.lines().map(str::trim_start)) {
        let comment = ["//!", "///", "//"].iter().find_map(|mark| line.strip_prefix(mark)).map(str::trim);
        let is_fence = comment.is_some_and(|comment| comment.starts_with("```"));
        is_example = comment.is_some() && is_example != is_fence;
        let comment = comment.unwrap_or_default();
        if comment.is_empty() || is_example || is_fence || comment.starts_with(['|', '#']) {
            is_open = false;
            continue;
        }
        let is_item = comment.starts_with("* ") || comment.find(". ").is_some_and(|at| at < 3);
        match paragraphs.last_mut().filter(|_| is_open && !is_item) {
            Some((_, paragraph)) => *paragraph += &format!(" {comment}"),
            None => paragraphs.push((number, comment.to_owned())),
        }
        is_open = true;
    }
    let split = |(number, paragraph): (usize, String)| {
        let prose = paragraph.split('`').step_by(2).collect::<Vec<_>>().join("x");
        let ends = prose.replace(['!', '?', ':', ';', ')'], ".");
        ends.split(". ").map(|sentence| (number, sentence.to_owned())).collect::<Vec<_>>()
    };
    paragraphs.into_iter().flat_map(split).collect()
}

fn is_faulty(sentence: &str) -> bool {
    let words: Vec<_> = sentence.split_whitespace().filter(|it| it.contains(char::is_alphanumeric)).collect();
    let plain = format!(" {} ", words.join(" ").to_lowercase().replace([',', '.'], ""));
    words.len() > MAX_WORDS || BANNED.split('|').any(|word| plain.contains(&format!(" {word} ")))
}

#[test]
fn comments_use_plain_words_in_short_sentences() {
    let mut found = String::new();
    for source in sources(EVERYTHING).iter().filter(|source| !source.path.starts_with("crates/cli/")) {
        for (line, sentence) in sentences(&source.text).iter().filter(|(_, sentence)| is_faulty(sentence)) {
            found += &format!("\n{}:{line}: {sentence}", source.path);
        }
    }
    assert!(found.is_empty(), "at most {MAX_WORDS} words in a sentence, and none of {BANNED}:{found}");
}

#[test]
fn long_sentences_and_banned_words_are_found() {
    let text =
        "/// One `is told`. Whoever is:\n/// ```\n/// beside\n/// ```\nlet told = 1;\n/// * goes\n/// on\n";
    assert_eq!(sentences(text).iter().filter(|(_, sentence)| is_faulty(sentence)).count(), 2);
    assert!(is_faulty(&"word ".repeat(26)) && !is_faulty(&"word ".repeat(25)));
}
