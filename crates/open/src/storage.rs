//! Settings of a storage backend, by name.

use std::collections::BTreeMap;
use std::fmt;

/// Settings that the backend of one dataset gets, by name, for example `endpoint` and `profile` for
/// S3.
///
/// The backend's documentation lists its names. An unknown one is an error that lists them when the
/// dataset is opened. They take precedence over the process's environment. `Debug` shows names
/// only, because values may be secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct StorageOptions(BTreeMap<String, String>);

impl StorageOptions {
    /// Sets one option. A later value replaces an earlier one.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.insert(name.into(), value.into());
    }

    /// The options as a backend takes them.
    pub fn to_settings(&self) -> BTreeMap<String, String> {
        self.0.clone()
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for StorageOptions {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(options: I) -> Self {
        Self(options.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl fmt::Debug for StorageOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: FAIL-28
    fn storage_options_show_no_values() {
        let options = StorageOptions::from_iter([("secret_access_key", "hush")]);
        assert_eq!(format!("{options:?}"), r#"{"secret_access_key"}"#);
    }
}
