//! The variables that say how a store is reached.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Environment variables, as a value: the process's own or a test's. Printing one shows the names alone.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment {
    variables: BTreeMap<String, String>,
    home: Option<PathBuf>,
}

impl Environment {
    /// These variables and no others, and no home directory.
    pub fn new<N: Into<String>, V: Into<String>>(variables: impl IntoIterator<Item = (N, V)>) -> Self {
        let variables = variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        Self { variables, home: None }
    }

    /// The process's, now. What is no UTF-8 is left out.
    pub fn of_process() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self { variables: std::env::vars_os().filter_map(text).collect(), home: std::env::home_dir() }
    }

    /// The same with another home directory, where `.aws` is looked for.
    #[must_use]
    pub fn with_home(self, home: impl Into<PathBuf>) -> Self {
        Self { home: Some(home.into()), ..self }
    }

    /// A variable that is set and not empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The first of these that is set.
    pub(crate) fn first(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.get(name))
    }

    /// The file that a variable names, or else one below the home directory.
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
