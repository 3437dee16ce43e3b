//! Which paths can name an object.

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
        Some("") => Err("the path is empty, starts or ends with `/`, or contains `//`"),
        Some(_) => Err("the path contains a `.` or `..` component"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
