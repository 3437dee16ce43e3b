//! The choice of the columns of a table with the samples and with the labels.

use std::collections::HashSet;
use std::sync::Arc;

use foreread_types::setting;

use crate::ColumnValues;

/// Names of a column of labels. The first name that a table has is used.
const LABELS: [&str; 5] = ["label", "labels", "target", "class", "cls"];

/// The most candidates that an error lists.
const LISTED: usize = 20;

/// A column whose values can be samples.
#[derive(Debug)]
pub(crate) struct Candidate<'a> {
    /// The names from the root to the column, joined by dots.
    pub(crate) path: &'a str,
    /// Whether it may be chosen without an option: bytes, not text.
    pub(crate) is_bytes: bool,
}

/// The position of a name among [`LABELS`]. A lower one is preferred. If a name was `chosen`, no
/// other one has labels.
pub(crate) fn label_rank(name: &str, chosen: Option<&str>) -> Option<usize> {
    match chosen {
        Some(chosen) => (name == chosen).then_some(0),
        None => LABELS.iter().position(|label| name.eq_ignore_ascii_case(label)),
    }
}

/// The column with the samples, for the comparison of files.
pub(crate) fn described(path: &str, is_bytes: bool) -> String {
    format!("column {path} of {}", if is_bytes { "bytes" } else { "text" })
}

/// The error text for a chosen column without labels.
pub(crate) fn no_label<'a>(chosen: &str, mut paths: impl Iterator<Item = &'a str>) -> String {
    let is_there =
        |path: &str| path.strip_prefix(chosen).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    if paths.any(is_there) {
        return format!(
            "the column {chosen:?} has neither numbers nor texts: read bytes as a field with {}, name \
             a part of a struct ({:?}), and have lists in a table of files; batches of lists of several \
             lengths need `collate_fn`",
            setting("field"),
            format!("{chosen}.part")
        );
    }
    format!("there is no column {chosen:?} of numbers or texts next to the samples")
}

/// The note about a column that has the name of labels, but no numbers or text.
pub(crate) fn no_label_type(path: &str) -> String {
    format!("no labels: the type of column {path} is not supported")
}

/// The index of the column with the samples: the one with the path `field`, or the only one below
/// it. Among several the only one of bytes is preferred, then the only one named `bytes`.
///
/// # Errors
/// A line with the candidates and the option.
pub(crate) fn choose(candidates: &[Candidate<'_>], field: Option<&str>) -> Result<usize, String> {
    let is_below = |path: &str, field: &str| {
        path.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let mut matching: Vec<usize> = match field {
        Some(field) => (0..candidates.len()).filter(|&at| is_below(candidates[at].path, field)).collect(),
        None if candidates.len() == 1 => vec![0],
        None => (0..candidates.len()).filter(|&at| candidates[at].is_bytes).collect(),
    };
    type Preference = fn(&Candidate<'_>) -> bool;
    let preferences: [Preference; 2] =
        [|it| it.is_bytes, |it| it.is_bytes && it.path.rsplit('.').next() == Some("bytes")];
    for is_preferred in preferences {
        if matching.len() > 1 && matching.iter().any(|&at| is_preferred(&candidates[at])) {
            matching.retain(|&at| is_preferred(&candidates[at]));
        }
    }
    if let [only] = matching[..] {
        return Ok(only);
    }
    let problem = match (field, matching.is_empty()) {
        (Some(field), true) => format!("no column of bytes or text has the path '{field}'"),
        (Some(field), false) => format!("several columns are below '{field}'"),
        (None, true) => "no column has bytes".to_owned(),
        (None, false) => "several columns have bytes".to_owned(),
    };
    if candidates.is_empty() {
        return Err(format!("{problem}, and no other column has bytes or text outside of lists"));
    }
    let mut names = Vec::from_iter(candidates.iter().take(LISTED).map(|candidate| candidate.path));
    if candidates.len() > LISTED {
        names.push("...");
    }
    Err(format!("{problem}: choose one with {}: {}", setting("field"), names.join(", ")))
}

/// The kind of the values of a column of labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LabelKind {
    Integer,
    Float,
    Text,
}

/// One label.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Label {
    Integer(i64),
    Float(f64),
    Text(Arc<str>),
}

/// No labels of this kind yet.
pub(crate) fn no_labels(kind: LabelKind) -> ColumnValues {
    match kind {
        LabelKind::Integer => ColumnValues::Integers(Vec::new()),
        LabelKind::Float => ColumnValues::Floats(Vec::new()),
        LabelKind::Text => ColumnValues::Texts(Vec::new()),
    }
}

/// Appends a label. One of another kind counts as missing.
pub(crate) fn push_label(values: &mut ColumnValues, label: Option<Label>) {
    match values {
        ColumnValues::Integers(values) => values.push(match label {
            Some(Label::Integer(value)) => Some(value),
            _ => None,
        }),
        ColumnValues::Floats(values) => values.push(match label {
            Some(Label::Float(value)) => Some(value),
            _ => None,
        }),
        ColumnValues::Texts(values) => values.push(match label {
            Some(Label::Text(value)) => Some(value),
            _ => None,
        }),
        ColumnValues::Arrays { .. } => {}
    }
}

/// Texts of which equal ones share their memory.
#[derive(Debug, Default)]
pub(crate) struct SharedTexts(HashSet<Arc<str>>);

impl SharedTexts {
    /// The shared text.
    pub(crate) fn share(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.0.get(text) {
            return Arc::clone(known);
        }
        let shared: Arc<str> = Arc::from(text);
        self.0.insert(Arc::clone(&shared));
        shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(columns: &[(&str, bool)], field: Option<&str>) -> Result<usize, String> {
        let candidates = columns.iter().map(|&(path, is_bytes)| Candidate { path, is_bytes });
        choose(&candidates.collect::<Vec<_>>(), field)
    }

    #[test]
    fn column_of_bytes_is_chosen_without_an_option() {
        assert_eq!(chosen(&[("text", false), ("image.bytes", true)], None), Ok(1));
        assert_eq!(chosen(&[("text", false)], None), Ok(0));
        assert_eq!(chosen(&[("mask", true), ("image.bytes", true)], None), Ok(1));
        assert_eq!(chosen(&[("a", true), ("b", true)], Some("b")), Ok(1));
        assert_eq!(chosen(&[("image.bytes", true), ("image.path", false)], Some("image")), Ok(0));
        assert_eq!(chosen(&[("image.bytes", true), ("image.path", false)], Some("image.path")), Ok(1));
    }

    #[test]
    fn error_lists_the_candidates() {
        for (field, problem) in
            [(None, "several columns have bytes"), (Some("x"), "no column of bytes or text has the path 'x'")]
        {
            let error = chosen(&[("a", true), ("b", true), ("text", false)], field).unwrap_err();
            assert_eq!(error, format!("{problem}: choose one with {}: a, b, text", setting("field")));
        }
        let error = chosen(&[("imaged", true)], Some("image")).unwrap_err();
        assert!(error.starts_with("no column of bytes or text"), "{error}");
        let error = chosen(&[("text", false), ("more", false)], None).unwrap_err();
        assert!(error.starts_with("no column has bytes: "), "{error}");
        assert!(chosen(&[], None).unwrap_err().contains("no other column"));
    }
}
