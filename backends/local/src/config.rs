//! Settings of an origin, and the directory that a URL names.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use foreread_tier::{OpenOptions, TierError};

use crate::error::{NAME, invalid};
use crate::lister::ListThreads;
use crate::pool::PoolBounds;

/// Default number of concurrent reads: enough for a disk or a file server. It costs nothing where
/// the page cache answers, because threads start only when others block.
const PARALLELISM: usize = 32;

/// Default limit of the bytes that are being read: at 10 GB/s they come in 7 ms, and at 40 MB/s in
/// less than two seconds.
const BYTES: u64 = 64 << 20;

/// Default patience with a silent file server.
const PATIENCE: Duration = Duration::from_secs(20 * 60);

/// Settings of a directory origin.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalConfig {
    /// Limit of concurrent reads. 32 by default.
    pub parallelism: usize,
    /// Limit of the bytes of concurrent reads, but for the first 8. 64 MiB by default, and none if
    /// the number of reads is given.
    pub parallel_bytes: u64,
    /// How long a silent file server is waited for, on network file systems. 20 minutes by default:
    /// Lustre's recovery takes five to fifteen.
    pub patience: Duration,
    /// How threads share the listing of a directory.
    pub list_threads: ListThreads,
    /// The origin's name in messages and metrics. `local` by default.
    pub name: &'static str,
}

impl Default for LocalConfig {
    fn default() -> Self {
        Self {
            parallelism: PARALLELISM,
            parallel_bytes: BYTES,
            patience: PATIENCE,
            list_threads: ListThreads::default(),
            name: NAME,
        }
    }
}

impl LocalConfig {
    /// The configuration for `options`.
    ///
    /// # Errors
    /// If the parallelism is 0 or above 4,096, or if there is any backend setting.
    pub fn from_options(options: &OpenOptions) -> Result<Self, TierError> {
        if let Some(name) = options.settings.keys().next() {
            return Err(invalid(name, "directories have no such setting; remove it"));
        }
        let patience = options.patience.unwrap_or(PATIENCE);
        let usual = Self { patience, ..Self::default() };
        Ok(match options.checked_parallelism(NAME)? {
            Some(parallelism) => usual.with_parallelism(parallelism),
            None => usual,
        })
    }

    /// The bounds of its reads.
    pub(crate) fn bounds(&self) -> PoolBounds {
        PoolBounds { reads: self.parallelism, bytes: self.parallel_bytes }
    }

    /// Sets the limit of concurrent reads, whatever their bytes. 0 counts as 1.
    #[must_use]
    pub fn with_parallelism(self, parallelism: usize) -> Self {
        let parallelism = parallelism.clamp(1, OpenOptions::MAX_PARALLELISM);
        Self { parallelism, parallel_bytes: u64::MAX, ..self }
    }

    /// Sets how long a silent file server is waited for.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }
}

/// The directory of a plain path or a `file` URL: `data`, `/data`, `file:///data`,
/// `file://localhost/my%20data`.
///
/// A plain path is used as it is. Escapes in a URL are decoded.
///
/// # Errors
/// If the text is empty, has another scheme, names another host or has an invalid escape.
pub fn directory_of(url: &str) -> Result<PathBuf, TierError> {
    if url.is_empty() {
        return Err(invalid("", "an empty path names no directory; the one you are in is `.`"));
    }
    let rest = match url.split_once(':') {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("file") && rest.starts_with('/') => rest,
        Some((scheme, rest)) if rest.starts_with("//") && is_scheme(scheme) => {
            return Err(invalid(url, format!("`{scheme}` is not a scheme of directories")));
        }
        _ => return Ok(PathBuf::from(url)),
    };
    let path = match rest.strip_prefix("//") {
        None => rest,
        Some(rest) => match rest.find('/').map(|slash| rest.split_at(slash)) {
            Some((host, path)) if host.is_empty() || host.eq_ignore_ascii_case("localhost") => path,
            Some((host, _)) => {
                let why =
                    format!("it names the machine `{host}`; a directory here has three slashes: `file:///`");
                return Err(invalid(url, why));
            }
            None => return Err(invalid(url, "it has no path; write `file:///directory`")),
        },
    };
    match unescape(path.as_bytes()) {
        Some(path) if !path.contains(&0) => Ok(PathBuf::from(OsString::from_vec(path))),
        _ => {
            Err(invalid(url, "a `%` in it is not followed by two hexadecimal digits; write `%25` for a `%`"))
        }
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

fn unescape(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let (digits, tail) = rest.split_at_checked(2)?;
        let digit = |byte: u8| char::from(byte).to_digit(16);
        bytes.push((digit(digits[0])? * 16 + digit(digits[1])?) as u8);
        rest = tail;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use foreread_tier::ErrorKind;

    use super::*;

    #[test]
    fn directory_of_parses_paths_and_file_urls() {
        for (url, path) in [
            ("data", "data"),
            ("/data/train", "/data/train"),
            ("a:b/c", "a:b/c"),
            ("100%/x", "100%/x"),
            ("file:///data", "/data"),
            ("FILE://localhost/my%20data", "/my data"),
            ("file:/data", "/data"),
            ("file", "file"),
        ] {
            assert_eq!(directory_of(url).unwrap(), PathBuf::from(path), "{url}");
        }
        for url in
            ["", "s3://bucket/x", "file://host/x", "file://", "file:///a%2", "file:///a%zz", "file:///a%00"]
        {
            assert_eq!(directory_of(url).unwrap_err().kind(), ErrorKind::Invalid, "{url}");
        }
    }

    #[test]
    fn unknown_settings_and_invalid_parallelism_are_refused() {
        let mut options = OpenOptions::default();
        assert_eq!(LocalConfig::from_options(&options).unwrap(), LocalConfig::default());
        options.parallelism = Some(3);
        assert_eq!(LocalConfig::from_options(&options).unwrap().parallelism, 3);
        options.parallelism = Some(0);
        assert!(LocalConfig::from_options(&options).is_err());
        options.parallelism = None;
        options.settings.insert("paralelism".into(), "3".into());
        let error = LocalConfig::from_options(&options).unwrap_err();
        assert!(error.to_string().contains("paralelism"), "{error}");
    }
}
