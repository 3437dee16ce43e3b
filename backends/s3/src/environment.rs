//! The environment variables that configure access to an origin.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use foreread_tier::TierError;

use crate::error::invalid;

/// Environment variables as a value: the process's or a test's. Its debug output has only the
/// names.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment {
    variables: BTreeMap<String, String>,
    home: Option<PathBuf>,
}

impl Environment {
    /// Only these variables, without a home directory.
    pub fn new<N: Into<String>, V: Into<String>>(variables: impl IntoIterator<Item = (N, V)>) -> Self {
        let variables = variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        Self { variables, home: None }
    }

    /// The current variables of the process. Values that are not UTF-8 are left out.
    pub fn of_process() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self { variables: std::env::vars_os().filter_map(text).collect(), home: std::env::home_dir() }
    }

    /// Sets the home directory, which contains `.aws`.
    #[must_use]
    pub fn with_home(self, home: impl Into<PathBuf>) -> Self {
        Self { home: Some(home.into()), ..self }
    }

    /// Replaces the keys of the variables by the keys of these settings, if there are any. Keys of
    /// two accounts must not be mixed.
    ///
    /// # Errors
    /// If the settings have only one part of a key.
    pub(crate) fn with_keys(self, settings: &BTreeMap<String, String>) -> Result<Self, TierError> {
        let keys = [
            ("access_key_id", "AWS_ACCESS_KEY_ID"),
            ("secret_access_key", "AWS_SECRET_ACCESS_KEY"),
            ("session_token", "AWS_SESSION_TOKEN"),
        ];
        let [id, secret, token] =
            keys.map(|(setting, _)| settings.get(setting).filter(|key| !key.is_empty()));
        if [id, secret, token] == [None; 3] {
            return Ok(self);
        }
        if id.is_none() || secret.is_none() {
            return Err(invalid("access_key_id", "set access_key_id and secret_access_key together"));
        }
        let mut variables = self.variables;
        for ((_, variable), key) in keys.into_iter().zip([id, secret, token]) {
            match key {
                Some(key) => variables.insert(variable.to_owned(), key.clone()),
                None => variables.remove(variable),
            };
        }
        Ok(Self { variables, ..self })
    }

    /// The value of a variable that is set and not empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The first of these variables that is set.
    pub(crate) fn first(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.get(name))
    }

    /// The file that a variable names, or else a file below the home directory.
    pub(crate) fn file(&self, variable: &str, below_home: &str) -> Option<PathBuf> {
        match self.get(variable) {
            Some(path) => match (path.strip_prefix("~/"), &self.home) {
                (Some(rest), Some(home)) => Some(home.join(rest)),
                _ => Some(PathBuf::from(path)),
            },
            None => self.home.as_ref().map(|home| home.join(below_home)),
        }
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.variables.keys().filter(|name| name.starts_with("AWS_")).collect();
        f.debug_struct("Environment").field("names", &names).finish_non_exhaustive()
    }
}

impl reqsign_core::Env for Environment {
    fn var(&self, key: &str) -> Option<String> {
        self.get(key).map(str::to_owned)
    }

    fn vars(&self) -> std::collections::HashMap<String, String> {
        self.variables.clone().into_iter().filter(|(_, value)| !value.is_empty()).collect()
    }

    fn home_dir(&self) -> Option<PathBuf> {
        self.home.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: FAIL-28
    fn keys_of_settings_replace_those_of_variables_together() {
        let variables = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];
        let environment = Environment::new(variables.map(|name| (name, "env")));
        let with = |settings: &[(&str, &str)]| {
            let settings = settings.iter().map(|(name, key)| (name.to_string(), key.to_string())).collect();
            environment.clone().with_keys(&settings)
        };
        let given = with(&[("access_key_id", "id"), ("secret_access_key", "s")]).unwrap();
        assert_eq!(variables.map(|name| given.get(name)), [Some("id"), Some("s"), None]);
        assert!(with(&[("region", "x")]).unwrap() == environment);
        for half in ["access_key_id", "secret_access_key", "session_token"] {
            let error = with(&[(half, "hush")]).unwrap_err().to_string();
            assert!(error.contains("secret_access_key") && !error.contains("hush"), "{error}");
        }
    }

    #[test]
    fn printing_shows_no_value_and_empty_is_unset() {
        let environment =
            Environment::new([("AWS_SECRET_ACCESS_KEY", "hush"), ("AWS_REGION", ""), ("OTHER", "x")]);
        let text = format!("{environment:?}");
        assert!(!text.contains("hush") && text.contains("AWS_SECRET_ACCESS_KEY"), "{text}");
        assert_eq!(environment.first(&["AWS_REGION", "OTHER"]), Some("x"));
        let at_home = environment.with_home("/home/me");
        assert_eq!(
            at_home.file("AWS_CONFIG_FILE", ".aws/config").unwrap(),
            PathBuf::from("/home/me/.aws/config")
        );
    }
}
