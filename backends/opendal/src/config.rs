//! What can be set, and what a URL and the settings around it say of an origin.

use std::collections::BTreeMap;
use std::path::PathBuf;

use foreread_tier::{OpenOptions, TierError};

use crate::error::invalid;
use crate::service::{Place, SERVICES, Service};

/// Reads under way at once where nobody says otherwise: what is above the layers' own search for the best is of no use.
const PARALLELISM: usize = 256;

/// A bound on the bound: each read under way is a connection.
const MOST: usize = 4096;

/// How an origin is read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpendalConfig {
    /// Reads under way at once, at most; 256 by default.
    pub parallelism: usize,
    /// For stores that list nothing: a file here with the path of an object on each line.
    pub list: Option<PathBuf>,
}

impl Default for OpendalConfig {
    fn default() -> Self {
        Self { parallelism: PARALLELISM, list: None }
    }
}

impl OpendalConfig {
    /// The configuration that `options` ask for, their settings aside.
    ///
    /// # Errors
    /// If the parallelism is 0 or above 4,096.
    pub fn from_options(options: &OpenOptions) -> Result<Self, TierError> {
        match options.parallelism {
            None => Ok(Self::default()),
            Some(parallelism @ 1..=MOST) => Ok(Self { parallelism, ..Self::default() }),
            Some(other) => {
                Err(invalid("opendal", "parallelism", format!("{other} is not between 1 and {MOST}")))
            }
        }
    }

    /// The same with at most `parallelism` reads under way at once (0 is taken as 1).
    #[must_use]
    pub fn with_parallelism(self, parallelism: usize) -> Self {
        Self { parallelism: parallelism.clamp(1, MOST), ..self }
    }
}

/// One origin, as OpenDAL needs to know it.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) service: &'static Service,
    /// OpenDAL's options of the service. Secrets are among them: they are never shown.
    pub(crate) options: BTreeMap<String, String>,
    /// The file that lists what a web server has.
    pub(crate) list: Option<PathBuf>,
}

impl Target {
    /// What `url`, the settings and the environment say.
    pub(crate) fn new(
        url: &str,
        settings: &BTreeMap<String, String>,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, TierError> {
        let (scheme, rest) = url.split_once("://").unwrap_or((url, ""));
        let scheme = scheme.to_ascii_lowercase();
        let known = SERVICES
            .iter()
            .find_map(|service| Some((service, service.schemes.iter().find(|(name, _)| *name == scheme)?)));
        let Some((service, (_, place))) = known else {
            return Err(invalid("opendal", &scheme, "no such scheme is known here"));
        };
        let mut options = settings_of(service, settings, environment)?;
        let list = options.remove("list").map(PathBuf::from);
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        for (name, value) in located(service, *place, authority, path)? {
            if !value.is_empty() {
                options.insert(name.to_owned(), value);
            }
        }
        Ok(Self { service, options, list })
    }

    /// What all this names, as one word.
    pub(crate) fn canonical_place(&self) -> String {
        let mut word = self.service.name.to_owned();
        for name in WHERE {
            let value =
                self.options.get(name).map(|value| value.trim_matches('/')).filter(|value| !value.is_empty());
            if let Some(value) = value {
                word.push_str(&format!(" {name}={value}"));
            }
        }
        word
    }
}

/// The options that say where something lies; all others say how it is reached, by whom, or are secret.
const WHERE: [&str; 9] = [
    "endpoint",
    "account_name",
    "bucket",
    "container",
    "name_node",
    "repo_type",
    "repo_id",
    "revision",
    "root",
];

/// The settings of `service` that were given, the caller's before the environment's.
fn settings_of(
    service: &Service,
    settings: &BTreeMap<String, String>,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<BTreeMap<String, String>, TierError> {
    if let Some(name) = settings.keys().find(|name| !service.options.contains(&name.as_str())) {
        let known = service.options.join(", ");
        return Err(invalid(service.name, name, format!("there is no such setting; there are: {known}")));
    }
    let of = |name: &&str| {
        let given = settings.get(*name).cloned().or_else(|| environment(&variable(service, name)))?;
        (!given.is_empty()).then(|| ((*name).to_owned(), given))
    };
    Ok(service.options.iter().filter_map(of).collect())
}

/// The environment's name for a setting.
pub(crate) fn variable(service: &Service, option: &str) -> String {
    format!("FOREREAD_{}_{}", service.name, option).to_ascii_uppercase()
}

/// What a URL's authority and path say, as OpenDAL's options.
fn located(
    service: &Service,
    place: Place,
    authority: &str,
    path: &str,
) -> Result<Vec<(&'static str, String)>, TierError> {
    let refuse = |why: String| Err(invalid(service.name, service.example, why));
    if authority.is_empty() {
        return refuse("write the URL in this form".to_owned());
    }
    if !matches!(place, Place::Ssh) && authority.contains('@') {
        let variables: Vec<_> = service.secrets.iter().map(|name| variable(service, name)).collect();
        let variables = variables.join(" and ");
        // A URL goes into catalogs, logs and messages.
        return refuse(format!("credentials do not belong into a URL; set {variables} instead"));
    }
    let root = path.to_owned();
    match place {
        Place::Web(transport) => {
            if path.contains(['?', '#']) {
                return refuse(
                    "`?` and `#` do not belong into a dataset's URL; write `%3F` and `%23`".into(),
                );
            }
            let root = opendal::raw::percent_decode_path(path);
            Ok(vec![("endpoint", format!("{transport}://{authority}")), ("root", root)])
        }
        Place::Bucket(option) => Ok(vec![(option, authority.to_owned()), ("root", root)]),
        Place::NameNode => Ok(vec![("name_node", format!("hdfs://{authority}")), ("root", root)]),
        Place::Ssh => {
            let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
            if user.contains(':') {
                return refuse("passwords do not belong into a URL; SFTP needs a key".to_owned());
            }
            Ok(vec![("endpoint", host.to_owned()), ("user", user.to_owned()), ("root", root)])
        }
        Place::Hub => {
            let kind = match authority {
                "datasets" => "dataset",
                "models" => "model",
                "spaces" => "space",
                _ => return refuse("it begins with `datasets`, `models` or `spaces`".to_owned()),
            };
            let mut parts = path.splitn(3, '/');
            let (owner, name) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            let (name, revision) = name.split_once('@').unwrap_or((name, ""));
            if owner.is_empty() || name.is_empty() {
                return refuse("it names no repository".to_owned());
            }
            Ok(vec![
                ("repo_type", kind.to_owned()),
                ("repo_id", format!("{owner}/{name}")),
                ("revision", revision.to_owned()),
                ("root", parts.next().unwrap_or_default().to_owned()),
            ])
        }
    }
}

#[cfg(test)]
mod tests {
    use foreread_tier::ErrorKind;

    use super::*;

    fn target(url: &str) -> Result<Target, TierError> {
        Target::new(url, &BTreeMap::new(), |_| None)
    }

    #[test]
    #[cfg(all(feature = "http", feature = "webdav", feature = "webhdfs", feature = "gcs"))]
    fn urls_say_where() {
        for (url, service, options) in [
            ("http://host:8080/a%20b/c", "http", [("endpoint", "http://host:8080"), ("root", "a b/c")]),
            ("HTTPS://host/a/", "http", [("endpoint", "https://host"), ("root", "a/")]),
            ("webdav://host/a", "webdav", [("endpoint", "http://host"), ("root", "a")]),
            ("webdavs://host/a", "webdav", [("endpoint", "https://host"), ("root", "a")]),
            ("webhdfs://name:9870/a", "webhdfs", [("endpoint", "http://name:9870"), ("root", "a")]),
            ("gs://bucket/a%20b c", "gcs", [("bucket", "bucket"), ("root", "a%20b c")]),
        ] {
            let target = target(url).unwrap();
            let found: Vec<_> = target.options.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            assert_eq!((target.service.name, &found[..]), (service, &options[..]), "{url}");
        }
    }

    #[test]
    #[cfg(feature = "huggingface")]
    fn a_repository_has_a_revision_and_a_path() {
        let of = target("hf://datasets/owner/name@refs/train/a").unwrap().options;
        let get = |name: &str| of.get(name).map(String::as_str);
        assert_eq!(
            (get("repo_id"), get("revision"), get("root")),
            (Some("owner/name"), Some("refs"), Some("train/a"))
        );
        assert_eq!(get("repo_type"), Some("dataset"));
        for url in ["hf://owner/name", "hf://datasets/owner", "hf://datasets"] {
            assert_eq!(target(url).unwrap_err().kind(), ErrorKind::Invalid, "{url}");
        }
    }

    #[test]
    #[cfg(feature = "webdav")]
    fn credentials_in_a_url_are_refused_and_not_repeated() {
        for url in [
            "webdav://me:hunter2@host/a",
            "webdav://hunter2@host",
            "webdav:///a",
            "webdav://host/a?sig=hunter2",
        ] {
            let error = target(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
        let error = target("webdav://me:hunter2@host/a").unwrap_err().to_string();
        assert!(error.contains("FOREREAD_WEBDAV_USERNAME"), "{error}");
    }

    #[test]
    #[cfg(feature = "webdav")]
    fn settings_win_over_the_environment_and_unknown_ones_are_refused() {
        let environment = |name: &str| match name {
            "FOREREAD_WEBDAV_USERNAME" => Some("from-environment".to_owned()),
            "FOREREAD_WEBDAV_PASSWORD" => Some("secret".to_owned()),
            _ => None,
        };
        let settings = BTreeMap::from([("username".to_owned(), "given".to_owned())]);
        let target = Target::new("webdav://host/", &settings, environment).unwrap();
        assert_eq!((&*target.options["username"], &*target.options["password"]), ("given", "secret"));
        let settings = BTreeMap::from([("usrname".to_owned(), "given".to_owned())]);
        let error = Target::new("webdav://host/", &settings, environment).unwrap_err().to_string();
        assert!(error.contains("usrname") && error.contains("username, password, token"), "{error}");
    }

    #[test]
    #[cfg(feature = "webdav")]
    fn place_has_no_secret_and_no_trailing_slash() {
        let environment = |name: &str| (name == "FOREREAD_WEBDAV_PASSWORD").then(|| "hunter2".to_owned());
        let place = |url: &str| Target::new(url, &BTreeMap::new(), environment).unwrap().canonical_place();
        assert_eq!(place("webdav://host/a/"), "webdav endpoint=http://host root=a");
        assert_eq!(place("webdav://host/a"), place("webdav://host/a/"));
        assert_ne!(place("webdav://host/a"), place("webdav://other/a"));
    }

    #[test]
    fn absurd_parallelism_is_refused() {
        let mut options = OpenOptions::default();
        for (parallelism, right) in [(None, true), (Some(1), true), (Some(0), false), (Some(5000), false)] {
            options.parallelism = parallelism;
            assert_eq!(OpendalConfig::from_options(&options).is_ok(), right, "{parallelism:?}");
        }
    }
}
