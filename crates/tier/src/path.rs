//! Which paths can name an object, and which of them a listing contains.

/// Checks a path below an origin: relative, without empty, `.` or `..` components, without a zero
/// byte.
///
/// # Errors
/// The reason, for a message that names the path.
pub fn check_path(path: &str) -> Result<(), &'static str> {
    if path.contains('\0') {
        return Err("the path contains a zero byte");
    }
    match path.split('/').find(|part| matches!(*part, "" | "." | "..")) {
        None => Ok(()),
        Some("") if path.is_empty() => Err("the path is empty"),
        Some("") if path.starts_with('/') => Err("the path starts with `/`"),
        Some("") if path.contains("//") => Err("the path contains `//`"),
        Some("") => Err("the path ends with `/`"),
        Some(".") => Err("the path contains a `.` component"),
        Some(_) => Err("the path contains a `..` component"),
    }
}

/// The range of a listing, for origins that filter the paths that they find.
#[derive(Clone, Debug)]
pub struct ListRange {
    prefix: String,
    after: Option<String>,
}

impl ListRange {
    /// The range of [`OriginTier::list`](crate::OriginTier::list) with these arguments.
    pub fn new(prefix: &str, after: Option<&str>) -> Self {
        let prefix = prefix.trim_end_matches('/');
        let slash = if prefix.is_empty() { "" } else { "/" };
        Self { prefix: format!("{prefix}{slash}"), after: after.map(str::to_owned) }
    }

    /// The directory of the listing: empty, or ends with a slash.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The path that precedes all objects of the listing.
    pub fn after(&self) -> Option<&str> {
        self.after.as_deref()
    }

    /// Whether an object belongs to the listing.
    pub fn includes(&self, path: &str) -> bool {
        path.strip_prefix(&*self.prefix).is_some_and(|rest| !rest.is_empty())
            && !self.is_hidden(path)
            && self.after().is_none_or(|after| path > after)
    }

    /// Whether a component of the path below the prefix starts with a dot.
    pub fn is_hidden(&self, path: &str) -> bool {
        let below = path.strip_prefix(&*self.prefix).unwrap_or(path);
        below.split('/').any(|part| part.starts_with('.'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_excludes_hidden_and_earlier_objects() {
        let range = ListRange::new("a", Some("a/m"));
        for (path, is) in [("a/n", true), ("a/m", false), ("a/", false), ("ab/n", false), ("a/n/.x", false)] {
            assert_eq!(range.includes(path), is, "{path}");
        }
        let hidden = ListRange::new(".git/", None);
        assert_eq!((hidden.prefix(), hidden.after()), (".git/", None));
        assert!(hidden.includes(".git/config"), "the prefix itself is not hidden");
        assert!(ListRange::new("", None).includes("a"));
    }

    #[test]
    fn climbing_and_malformed_paths_are_rejected() {
        for path in ["", "/a", "a/", "a//b", "..", "a/../b", "./a", "a/.", "a\0b"] {
            assert!(check_path(path).is_err(), "{path:?}");
        }
        for path in ["a", "a/b", "..a/b..", "a/...", ".hidden", "a b/\u{e9}", "%20"] {
            assert_eq!(check_path(path), Ok(()), "{path:?}");
        }
    }
}
