//! Paths of a table, relative to the dataset's location.
//!
//! A table names files relative to that location, or by absolute paths or URLs below it. Nothing
//! else is accepted: a file elsewhere would be read from another place than the catalog names.

use arrow_array::{Array, LargeStringArray};
use foreread_types::setting;

use super::TableRows;
use crate::DatasetError;
use crate::names::refuse;

/// The paths of a column below `base_url`.
///
/// # Errors
/// [`Invalid`](crate::DatasetErrorKind::Invalid) for rows without a path, with a path elsewhere, or
/// with a path that no origin has. It counts and names them.
pub(super) fn relative<'a>(
    base_url: &str,
    rows: &TableRows,
    column: &'a LargeStringArray,
) -> Result<Vec<&'a str>, DatasetError> {
    let base = base_url.trim_end_matches('/');
    let (mut paths, mut none, mut outside, mut bad) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    paths.reserve_exact(rows.len());
    let mut why_bad = "";
    for row in 0..rows.len() {
        let path = if column.is_valid(row) { column.value(row) } else { "" };
        let path = match is_absolute(path) {
            true => path.strip_prefix(base).and_then(|rest| rest.strip_prefix('/')),
            false => Some(path.trim_start_matches("./")),
        };
        match path {
            _ if column.is_null(row) || path == Some("") => none.push(row),
            None => outside.push(row),
            Some(path) => match refuse(path) {
                Some(why) => {
                    why_bad = why;
                    bad.push(row);
                }
                None => paths.push(path),
            },
        }
    }
    let all = rows.len();
    let counted = |which: &[usize], what: &str| {
        rows.invalid(format!("{} of {all} rows {what}: {}", which.len(), rows.named(which)))
    };
    match () {
        () if !none.is_empty() => {
            let filters = setting("filters");
            Err(counted(&none, &format!("have no path; correct the table, or choose rows with {filters}")))
        }
        () if !outside.is_empty() => Err(counted(
            &outside,
            &format!("name files that are not below {base_url}; name the location of all"),
        )),
        () if !bad.is_empty() => Err(counted(&bad, &format!("have a path that cannot be read ({why_bad})"))),
        () => Ok(paths),
    }
}

/// Whether a path is absolute, or a URL.
pub(crate) fn is_absolute(path: &str) -> bool {
    path.starts_with('/') || path.contains("://")
}

impl TableRows {
    /// The location that all files have in common, if all paths are absolute paths or URLs: the
    /// directory that contains them. `None` if one is relative, or they have no origin in common.
    pub fn location(&self) -> Option<String> {
        let mut paths =
            self.columns().flat_map(|paths| paths.iter()).flatten().filter(|path| !path.is_empty());
        let first = paths.next().filter(|path| is_absolute(path))?;
        let mut common = &first[..=first.rfind('/')?];
        for path in paths {
            if !is_absolute(path) {
                return None;
            }
            while !path.starts_with(common) {
                common = &common[..=common[..common.len() - 1].rfind('/')?];
            }
        }
        let root = common.find("://").map_or(0, |scheme| scheme + "://".len());
        let is_store = root > 0 && common[root..].trim_end_matches('/').is_empty();
        let location = if common == "/" { common } else { common.trim_end_matches('/') };
        (!is_store).then(|| location.to_owned())
    }

    /// Whether a path is absolute, or a URL.
    pub fn has_absolute_paths(&self) -> bool {
        self.columns().flat_map(|paths| paths.iter()).flatten().any(is_absolute)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(paths: &[&str]) -> TableRows {
        TableRows::new("t.csv", paths.iter().map(|path| Some(*path)).collect())
    }

    fn one(base: &str, path: &str) -> Result<Vec<String>, DatasetError> {
        let rows = rows(&[path]);
        Ok(relative(base, &rows, &rows.paths)?.into_iter().map(str::to_owned).collect())
    }

    #[test]
    fn paths_are_relative_to_the_location() {
        for (base, path, below) in [
            ("s3://b/images", "a/1.jpg", "a/1.jpg"),
            ("s3://b/images/", "s3://b/images/a/1.jpg", "a/1.jpg"),
            ("/data", "/data/1.jpg", "1.jpg"),
            ("/data", "./1.jpg", "1.jpg"),
            ("/", "/data/1.jpg", "data/1.jpg"),
        ] {
            assert_eq!(one(base, path).unwrap(), [below]);
        }
        for (base, path, why) in [
            (
                "s3://b/images",
                "s3://b/images2/1.jpg",
                "1 of 1 rows name files that are not below s3://b/images",
            ),
            ("/data", "/etc/passwd", "row 1 (/etc/passwd)"),
            ("/data", "../etc/passwd", "cannot be read"),
            ("/data", "", "have no path"),
            ("/data", "./", "have no path"),
        ] {
            let error = one(base, path).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    #[test]
    fn location_is_what_all_paths_have_in_common() {
        let of = |paths: &[&str]| rows(paths).location();
        assert_eq!(of(&["s3://b/x/1", "s3://b/x/y/2"]), Some("s3://b/x".to_owned()));
        assert_eq!(of(&["s3://b/xa/1", "s3://b/xb/2"]), Some("s3://b".to_owned()));
        assert_eq!(of(&["/d/1", "/e/2"]), Some("/".to_owned()));
        assert_eq!(of(&["s3://b/1", "s3://c/2"]), None);
        assert_eq!(of(&["s3://b/1", "2"]), None);
        assert_eq!(of(&["1"]), None);
        assert_eq!(of(&[]), None);
    }
}
