//! The name of a dataset's origin. Datasets of one origin share its limits.
//!
//! For URLs it is the scheme and the bucket or server. For paths it is the directory where their
//! file system is mounted.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The name of the origin at a location.
pub(crate) fn origin_name(url: &str) -> String {
    let path = match url.split_once("://") {
        Some(("file", path)) => path,
        Some((scheme, rest)) => {
            let authority = rest.split('/').next().unwrap_or(rest);
            return format!("{scheme}://{authority}");
        }
        None => url,
    };
    mount_point(Path::new(path)).display().to_string()
}

/// The highest directory above `path` on the same file system. `path` itself if that cannot be
/// found out.
fn mount_point(path: &Path) -> &Path {
    let device = |path: &Path| path.metadata().ok().map(|found| found.dev());
    let Some(own) = device(path) else { return path };
    path.ancestors().take_while(|above| device(above) == Some(own)).last().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_is_bucket_or_mount_point() {
        assert_eq!(origin_name("s3://bucket/train/x"), "s3://bucket");
        assert_eq!(origin_name("https://host:8080/a"), "https://host:8080");
        assert_eq!(origin_name("/proc/self/fd"), "/proc");
        assert_eq!(origin_name("file:///proc/self"), "/proc");
        assert_eq!(origin_name("/no/such/place"), "/no/such/place");
    }
}
