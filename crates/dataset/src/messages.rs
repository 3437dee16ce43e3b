//! Names in messages.
//!
//! There may be millions of them, and each may be long. So a message has the first ones, and their
//! number.

/// The names that a message has.
const NAMED: usize = 5;

/// The first of `count` names, for a message.
pub(crate) fn listed<'a>(names: impl Iterator<Item = &'a str>, count: usize) -> String {
    let some: Vec<&str> = names.take(NAMED).collect();
    match count - some.len() {
        0 => some.join(", "),
        more => format!("{} and {more} more", some.join(", ")),
    }
}

/// The beginning of a path that may be very long.
pub(crate) fn shortened(path: &str) -> String {
    match path.char_indices().nth(200) {
        Some((end, _)) => format!("{}...", &path[..end]),
        None => path.to_owned(),
    }
}
