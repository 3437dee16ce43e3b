//! The profile files below `~/.aws`.

use std::path::Path;

use foreread_tier::TierError;
use ini::{Ini, ParseOption};

use crate::Environment;
use crate::error::invalid;

/// The current content of both files.
#[derive(Clone, Default)]
pub(crate) struct Profiles {
    config: Ini,
    credentials: Ini,
}

impl Profiles {
    /// Reads both files. A missing file counts as empty. Blocks.
    pub(crate) fn read(environment: &Environment) -> Result<Self, TierError> {
        let load = |variable, name| match environment.file(variable, name) {
            Some(path) => parse(&path),
            None => Ok(Ini::new()),
        };
        Ok(Self {
            config: load("AWS_CONFIG_FILE", ".aws/config")?,
            credentials: load("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials")?,
        })
    }

    /// Like [`read`](Self::read), if the environment has keys or none are needed. Unusable files
    /// are logged and ignored.
    pub(crate) fn read_if_possible(environment: &Environment) -> Self {
        Self::read(environment).unwrap_or_else(|error| {
            tracing::warn!(%error, "profiles are left out: the keys come from the environment");
            Self::default()
        })
    }

    /// A value of a profile. If both files have it, the one of the credentials file.
    pub(crate) fn get(&self, profile: &str, name: &str) -> Option<&str> {
        let section = section_of(profile);
        self.credentials.get_from(Some(profile), name).or_else(|| self.config.get_from(Some(section), name))
    }

    /// A value of a single sign-on session, which several profiles may share.
    pub(crate) fn of_session(&self, session: &str, name: &str) -> Option<&str> {
        self.config.get_from(Some(format!("sso-session {session}")), name)
    }

    /// Whether one of the files has the profile.
    pub(crate) fn has(&self, profile: &str) -> bool {
        self.credentials.section(Some(profile)).is_some()
            || self.config.section(Some(section_of(profile))).is_some()
    }
}

fn section_of(profile: &str) -> String {
    if profile == "default" { profile.to_owned() } else { format!("profile {profile}") }
}

fn parse(path: &Path) -> Result<Ini, TierError> {
    let shown = path.display().to_string();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Ini::new()),
        Err(error) => return Err(invalid(&shown, format!("it cannot be read: {error}"))),
    };
    // As in Amazon's tools, quotes and backslashes are part of a value. The parser's message has
    // the line's number. The line itself may be a secret and is not in the message.
    let as_it_is = ParseOption { enabled_quote: false, enabled_escape: false, ..ParseOption::default() };
    Ini::load_from_str_opt(&text, as_it_is)
        .map_err(|error| invalid(&shown, format!("line {}: {}", error.line, error.msg)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_files_are_read_and_credentials_win() {
        let home = tempfile::tempdir().unwrap();
        let environment = Environment::default().with_home(home.path());
        assert!(!Profiles::read(&environment).unwrap().has("default"));
        std::fs::create_dir(home.path().join(".aws")).unwrap();
        let config = "[default]\nregion = eu-west-1\n\n[profile \
                      two]\nregion=us-west-2\naws_access_key_id=config\n\
                      s3 =\n  addressing_style = path\n\
                      [profile quoting]\ncredential_process = \"/opt/a b/x\" 'c d'\n";
        std::fs::write(home.path().join(".aws/config"), config).unwrap();
        let credentials = "[two]\naws_access_key_id = credentials\naws_secret_access_key = a+b/c\\d=\n";
        std::fs::write(home.path().join(".aws/credentials"), credentials).unwrap();
        let profiles = Profiles::read(&environment).unwrap();
        assert_eq!(profiles.get("default", "region"), Some("eu-west-1"));
        assert_eq!(profiles.get("two", "region"), Some("us-west-2"));
        assert_eq!(profiles.get("two", "aws_access_key_id"), Some("credentials"));
        assert_eq!(profiles.get("two", "aws_secret_access_key"), Some("a+b/c\\d="));
        assert_eq!(profiles.get("quoting", "credential_process"), Some("\"/opt/a b/x\" 'c d'"));
        assert!(profiles.has("two") && !profiles.has("three"));
    }

    #[test]
    fn invalid_file_is_named_without_its_content() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("config");
        std::fs::write(&path, "[default]\nregion = x\n[profile hush\n").unwrap();
        let environment = Environment::new([("AWS_CONFIG_FILE", path.to_str().unwrap())]);
        let text = Profiles::read(&environment).map(|_| ()).unwrap_err().to_string();
        assert!(text.contains("config") && !text.contains("hush"), "{text}");
    }
}
