//! The configuration, and the interpretation of URLs and settings.

use std::collections::BTreeMap;
use std::path::PathBuf;

use foreread_tier::{OpenOptions, TierError};

use crate::services::{AuthorityKind, OpendalService, SERVICES};

/// The default of concurrent reads. It is above the numbers that the layers' search uses.
const PARALLELISM: usize = 256;

/// How an origin is read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpendalConfig {
    /// The maximum of concurrent reads (default: 256).
    pub parallelism: usize,
    /// For origins that cannot list: a local file with one object path per line.
    pub list: Option<PathBuf>,
}

impl Default for OpendalConfig {
    fn default() -> Self {
        Self { parallelism: PARALLELISM, list: None }
    }
}

impl OpendalConfig {
    /// The configuration in `options`, without their settings.
    ///
    /// # Errors
    /// If the parallelism is 0 or above 4,096.
    pub fn from_options(options: &OpenOptions) -> Result<Self, TierError> {
        let parallelism = options.checked_parallelism("opendal")?.unwrap_or(PARALLELISM);
        Ok(Self { parallelism, ..Self::default() })
    }

    /// The same with at most `parallelism` concurrent reads (0 counts as 1).
    #[must_use]
    pub fn with_parallelism(self, parallelism: usize) -> Self {
        Self { parallelism: parallelism.clamp(1, OpenOptions::MAX_PARALLELISM), ..self }
    }
}

/// An origin, as options of OpenDAL.
#[derive(Debug)]
pub(crate) struct OriginTarget {
    pub(crate) service: &'static OpendalService,
    /// OpenDAL's options of the service. They include secrets and are never shown.
    pub(crate) options: BTreeMap<String, String>,
    /// The file with the paths of a web server's objects.
    pub(crate) list: Option<PathBuf>,
}

impl OriginTarget {
    /// The origin of `url`, with the settings and the environment.
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
        let Some((service, (_, kind))) = known else {
            return Err(TierError::invalid("opendal", &scheme, "unknown scheme"));
        };
        let mut options = settings_of(service, settings, environment)?;
        let list = options.remove("list").map(PathBuf::from);
        let host = options.remove("host");
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let located = located(service, *kind, authority, path)?;
        if let AuthorityKind::Web(transport) = kind {
            bind(service, transport, authority, &mut options, host.as_deref())?;
        }
        for (name, value) in located {
            if !value.is_empty() {
                options.insert(name.to_owned(), value);
            }
        }
        Ok(Self { service, options, list })
    }

    /// The canonical name of the origin's location.
    pub(crate) fn canonical_place(&self) -> String {
        let mut place = self.service.name.to_owned();
        for name in LOCATION_OPTIONS {
            let value =
                self.options.get(name).map(|value| value.trim_matches('/')).filter(|value| !value.is_empty());
            if let Some(value) = value {
                place.push_str(&format!(" {name}={value}"));
            }
        }
        place
    }
}

/// The options that define the location. All others concern access, or are secret.
const LOCATION_OPTIONS: [&str; 9] = [
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

/// The settings of `service`. The caller's settings precede the environment's.
fn settings_of(
    service: &OpendalService,
    settings: &BTreeMap<String, String>,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<BTreeMap<String, String>, TierError> {
    if let Some(name) = settings.keys().find(|name| !service.options.contains(&name.as_str())) {
        let known = service.options.join(", ");
        return Err(TierError::invalid(
            service.name,
            name,
            format!("unknown setting; expected one of {known}"),
        ));
    }
    let of = |name: &&str| {
        let given = settings.get(*name).cloned().or_else(|| environment(&variable(service, name)))?;
        (!given.is_empty()).then(|| ((*name).to_owned(), given))
    };
    Ok(service.options.iter().filter_map(of).collect())
}

/// Removes credentials for another host than this one. A URL may come from a foreign catalog. It
/// must not decide where credentials are sent, nor that they are sent unencrypted.
///
/// # Errors
/// If there are credentials without a host.
fn bind(
    service: &OpendalService,
    transport: &str,
    authority: &str,
    options: &mut BTreeMap<String, String>,
    host: Option<&str>,
) -> Result<(), TierError> {
    let Some(given) = service.bound.iter().find(|name| options.contains_key(**name)) else { return Ok(()) };
    let Some(host) = host else {
        let (given, host) = (variable(service, given), variable(service, "host"));
        let scheme = if transport == "http" { "http://" } else { "" };
        let why = format!(
            "{given} is set without its host; set {host}={scheme}{authority} if it is for this host \
             (http:// allows unencrypted transfer)"
        );
        return Err(TierError::invalid(service.name, authority, why));
    };
    let (scheme, named) = host.split_once("://").unwrap_or(("https", host));
    if !matches!(scheme, "http" | "https") || named.contains(['@', '?', '#']) {
        let why = "expected `host`, `host:port` or `http://host:port`";
        return Err(TierError::invalid(service.name, &variable(service, "host"), why));
    }
    if origin(scheme, named.trim_end_matches('/')) != origin(transport, authority) {
        options.retain(|name, _| !service.bound.contains(&name.as_str()));
    }
    Ok(())
}

/// Scheme, host and port in a canonical form.
fn origin(scheme: &str, authority: &str) -> String {
    let default = if scheme == "http" { ":80" } else { ":443" };
    let authority = authority.to_ascii_lowercase();
    format!("{scheme}://{}", authority.strip_suffix(default).unwrap_or(&authority))
}

/// The environment variable of a setting.
pub(crate) fn variable(service: &OpendalService, option: &str) -> String {
    format!("FOREREAD_{}_{}", service.name, option).to_ascii_uppercase()
}

/// A URL's authority and path as OpenDAL's options.
fn located(
    service: &OpendalService,
    kind: AuthorityKind,
    authority: &str,
    path: &str,
) -> Result<Vec<(&'static str, String)>, TierError> {
    let refuse = |why: String| Err(TierError::invalid(service.name, service.example, why));
    if authority.is_empty() {
        return refuse("expected a URL of this form".to_owned());
    }
    if !matches!(kind, AuthorityKind::Ssh) && authority.contains('@') {
        let variables: Vec<_> = service.secrets.iter().map(|name| variable(service, name)).collect();
        let variables = variables.join(", ");
        // URLs appear in catalogs, logs and messages.
        return refuse(format!("credentials are not allowed in a URL; set {variables} instead"));
    }
    let root = path.to_owned();
    match kind {
        AuthorityKind::Web(transport) => {
            if path.contains(['?', '#']) {
                return refuse(
                    "`?` and `#` are not allowed in a dataset's URL; write `%3F` and `%23`".into(),
                );
            }
            let root = opendal::raw::percent_decode_path(path);
            Ok(vec![("endpoint", format!("{transport}://{authority}")), ("root", root)])
        }
        AuthorityKind::Bucket(option) => {
            // The bucket becomes a part of the host name, which no character of it may end.
            let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if !authority.chars().all(fits) {
                return refuse(format!("invalid bucket name `{authority}`"));
            }
            Ok(vec![(option, authority.to_owned()), ("root", root)])
        }
        AuthorityKind::NameNode => Ok(vec![("name_node", format!("hdfs://{authority}")), ("root", root)]),
        AuthorityKind::Ssh => {
            let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
            if user.contains(':') {
                return refuse("passwords are not allowed in a URL; SFTP needs a key".to_owned());
            }
            // The `ssh` command would parse it as an option, and options can run programs.
            if user.starts_with('-') || host.starts_with('-') {
                return refuse("user and host must not begin with `-`".to_owned());
            }
            Ok(vec![("endpoint", host.to_owned()), ("user", user.to_owned()), ("root", root)])
        }
        AuthorityKind::Hub => {
            let kind = match authority {
                "datasets" => "dataset",
                "models" => "model",
                "spaces" => "space",
                _ => return refuse("expected `datasets`, `models` or `spaces`".to_owned()),
            };
            let mut parts = path.splitn(3, '/');
            let (owner, name) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            let (name, revision) = name.split_once('@').unwrap_or((name, ""));
            if owner.is_empty() || name.is_empty() {
                return refuse("expected owner and name of a repository".to_owned());
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

    fn target(url: &str) -> Result<OriginTarget, TierError> {
        OriginTarget::new(url, &BTreeMap::new(), |_| None)
    }

    #[test]
    #[cfg(all(feature = "http", feature = "webdav", feature = "webhdfs", feature = "oss"))]
    fn urls_become_options() {
        for (url, service, options) in [
            ("http://host:8080/a%20b/c", "http", [("endpoint", "http://host:8080"), ("root", "a b/c")]),
            ("HTTPS://host/a/", "http", [("endpoint", "https://host"), ("root", "a/")]),
            ("webdav://host/a", "webdav", [("endpoint", "http://host"), ("root", "a")]),
            ("webdavs://host/a", "webdav", [("endpoint", "https://host"), ("root", "a")]),
            ("webhdfs://name:9870/a", "webhdfs", [("endpoint", "http://name:9870"), ("root", "a")]),
            ("oss://bucket/a%20b c", "oss", [("bucket", "bucket"), ("root", "a%20b c")]),
        ] {
            let target = target(url).unwrap();
            let found: Vec<_> = target.options.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            assert_eq!((target.service.name, &found[..]), (service, &options[..]), "{url}");
        }
    }

    #[test]
    #[cfg(feature = "huggingface")]
    fn repository_url_has_revision_and_path() {
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
    // semantics: OPENDAL-9
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
    fn settings_precede_the_environment_and_typos_are_refused() {
        let environment = |name: &str| match name {
            "FOREREAD_WEBDAV_USERNAME" => Some("from-environment".to_owned()),
            "FOREREAD_WEBDAV_PASSWORD" => Some("secret".to_owned()),
            "FOREREAD_WEBDAV_HOST" => Some("http://host".to_owned()),
            _ => None,
        };
        let settings = BTreeMap::from([("username".to_owned(), "given".to_owned())]);
        let target = OriginTarget::new("webdav://host/", &settings, environment).unwrap();
        assert_eq!((&*target.options["username"], &*target.options["password"]), ("given", "secret"));
        let settings = BTreeMap::from([("usrname".to_owned(), "given".to_owned())]);
        let error = OriginTarget::new("webdav://host/", &settings, environment).unwrap_err().to_string();
        assert!(error.contains("usrname") && error.contains("username, password, token, host"), "{error}");
    }

    /// The credentials that are sent to `url`, if they are bound to `host`.
    #[cfg(all(feature = "http", feature = "webdav", feature = "webhdfs"))]
    fn sent(url: &str, host: Option<&str>) -> Result<Vec<String>, TierError> {
        let environment = |name: &str| {
            if name.ends_with("_HOST") { host.map(str::to_owned) } else { Some("hunter2".to_owned()) }
        };
        let options = OriginTarget::new(url, &BTreeMap::new(), environment)?.options;
        let secrets = ["username", "password", "token", "delegation"];
        Ok(options.into_keys().filter(|name| secrets.contains(&name.as_str())).collect())
    }

    #[test]
    #[cfg(all(feature = "http", feature = "webdav", feature = "webhdfs"))]
    // semantics: OPENDAL-7
    fn credentials_are_sent_to_their_host_only() {
        let all = ["password", "token", "username"];
        for (url, host, expected) in [
            ("webdavs://host/a", "host", &all[..]),
            ("webdavs://HOST:443/a", "https://host/", &all),
            ("https://host:8443/a", "host:8443", &all),
            ("webdav://host:8080/a", "http://host:8080", &all),
            ("http://host/a", "http://host:80", &all),
            ("swebhdfs://host/a", "host", &["delegation"]),
            // Another host, another port, and unencrypted transfer that is not allowed.
            ("webdavs://evil/a", "host", &[]),
            ("webdavs://host.evil/a", "host", &[]),
            ("https://host:8443/a", "host", &[]),
            ("webdav://host/a", "host", &[]),
            ("http://host:443/a", "host", &[]),
            ("webhdfs://evil:9870/a", "http://host:9870", &[]),
        ] {
            assert_eq!(sent(url, Some(host)).unwrap(), expected, "{url} {host}");
        }
        for (url, expected_text) in [
            ("webdavs://evil/a", "FOREREAD_WEBDAV_HOST=evil "),
            ("http://evil/a", "FOREREAD_HTTP_HOST=http://evil "),
            ("webhdfs://evil/a", "FOREREAD_WEBHDFS_HOST=http://evil "),
        ] {
            let text = sent(url, None).unwrap_err().to_string();
            assert!(text.contains(expected_text) && !text.contains("hunter2"), "{text}");
        }
        let text = sent("webdavs://host/a", Some("ftp://host")).unwrap_err().to_string();
        assert!(text.contains("FOREREAD_WEBDAV_HOST"), "{text}");
    }

    #[test]
    #[cfg(feature = "oss")]
    // semantics: OPENDAL-7
    fn bucket_name_cannot_end_the_host_name() {
        for url in ["oss://evil.example.org?x/a", "oss://evil#x/a", "oss://evil:80/a", "oss://e\\vil/a"] {
            assert_eq!(target(url).unwrap_err().kind(), ErrorKind::Invalid, "{url}");
        }
    }

    #[test]
    #[cfg(feature = "http")]
    // semantics: OPENDAL-7
    fn sftp_host_is_not_an_ssh_option() {
        let of = |authority| located(&SERVICES[0], AuthorityKind::Ssh, authority, "a");
        assert!(of("user@host").is_ok());
        for authority in ["-oProxyCommand=evil", "-l@host", "user@-oProxyCommand=evil"] {
            assert_eq!(of(authority).unwrap_err().kind(), ErrorKind::Invalid, "{authority}");
        }
    }

    #[test]
    #[cfg(feature = "webdav")]
    fn place_has_no_secret_and_no_trailing_slash() {
        let environment = |name: &str| match name {
            "FOREREAD_WEBDAV_PASSWORD" => Some("hunter2".to_owned()),
            "FOREREAD_WEBDAV_HOST" => Some("http://host".to_owned()),
            _ => None,
        };
        let place =
            |url: &str| OriginTarget::new(url, &BTreeMap::new(), environment).unwrap().canonical_place();
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
