//! The settings and their sources: the options, then the environment, then the profile.

use std::path::PathBuf;

use foreread_tier::{OpenOptions, TierError};

use crate::Environment;
use crate::error::invalid;
use crate::profile::Profiles;

/// The default number of parallel reads. A request to an origin in the same region takes about 20
/// ms and moves 50 to 100 MB/s. So this number fills 10 Gbit/s with samples of 500 KB.
pub(crate) const DEFAULT_PARALLELISM: usize = 64;

/// The names in [`OpenOptions::settings`], the equivalent variables, and the name in a profile.
/// Keys are handled by [`Environment::with_keys`]: the settings' keys replace the variables' keys
/// together.
const SETTINGS: &[(&str, &[&str], &str)] = &[
    ("endpoint", &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"], "endpoint_url"),
    ("region", &["AWS_REGION", "AWS_DEFAULT_REGION"], "region"),
    ("profile", &["AWS_PROFILE", "AWS_DEFAULT_PROFILE"], ""),
    ("allow_http", &["AWS_ALLOW_HTTP"], ""),
    ("skip_signature", &["AWS_SKIP_SIGNATURE", "AWS_NO_SIGN_REQUEST"], ""),
    ("request_payer", &["AWS_REQUEST_PAYER"], ""),
    ("ca_bundle", &["AWS_CA_BUNDLE"], "ca_bundle"),
    ("virtual_hosted_style", &["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"], ""),
    ("access_key_id", &[], ""),
    ("secret_access_key", &[], ""),
    ("session_token", &[], ""),
];

/// The configuration of access to a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct S3Config {
    pub(crate) bucket: String,
    /// Without slashes around it. Empty for the whole bucket.
    pub(crate) prefix: String,
    /// The user's endpoint, if set.
    pub(crate) endpoint: Option<String>,
    pub(crate) region: String,
    pub(crate) profile: String,
    /// Whether the options name the profile, so that it precedes the keys in the environment.
    pub(crate) profile_first: bool,
    pub(crate) plain: bool,
    pub(crate) virtual_hosted: bool,
    pub(crate) skip_signature: bool,
    pub(crate) request_payer: bool,
    pub(crate) ca_bundle: Option<PathBuf>,
    pub(crate) parallelism: Option<usize>,
}

/// A bucket and the prefix in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BucketPrefix {
    pub(crate) bucket: String,
    pub(crate) prefix: String,
}

impl BucketPrefix {
    /// Parses `scheme://bucket/prefix`. Escapes are not resolved: a `%` is a `%`, as in Amazon's
    /// own tools.
    pub(crate) fn of(url: &str) -> Result<Self, TierError> {
        let rest = url.split_once("://").map_or("", |(_, rest)| rest);
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.contains(['@', ':']) {
            // The text before the `@` may be a secret.
            let why = "write `s3://bucket/prefix`; the address of the storage goes into AWS_ENDPOINT_URL and \
                       credentials into the environment or a profile";
            return Err(invalid("the URL", why));
        }
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if bucket.is_empty() || bucket.len() > 255 || !bucket.chars().all(fits) {
            return Err(invalid(url, format!("`{bucket}` is not a bucket name; write `s3://bucket/prefix`")));
        }
        Self::below(bucket, prefix, url)
    }

    /// A prefix of `bucket`, after a check of the prefix.
    pub(crate) fn below(bucket: &str, prefix: &str, url: &str) -> Result<Self, TierError> {
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        if !prefix.is_empty() {
            check_path(prefix).map_err(|why| invalid(url, format!("its prefix cannot be read: {why}")))?;
        }
        Ok(Self { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }

    /// The key of the object at `path` below the prefix.
    pub(crate) fn key(&self, path: &str) -> String {
        if self.prefix.is_empty() { path.to_owned() } else { format!("{}/{path}", self.prefix) }
    }

    /// The common beginning of all keys below the prefix.
    pub(crate) fn base(&self) -> String {
        if self.prefix.is_empty() { String::new() } else { format!("{}/", self.prefix) }
    }
}

/// Refuses paths that no sample may have. On a disk cache they could lead out of the prefix, or
/// `object_store` would not send them unchanged.
pub(crate) fn check_path(path: &str) -> Result<(), &'static str> {
    if path.chars().any(|c| c.is_ascii_control()) {
        return Err("the path contains a control character");
    }
    foreread_tier::check_path(path)
}

impl S3Config {
    /// Combines `url`, the options, the environment and the profile. Reads the files below
    /// `~/.aws`.
    pub(crate) fn gather(
        url: &str,
        options: &OpenOptions,
        environment: &Environment,
    ) -> Result<Self, TierError> {
        let BucketPrefix { bucket, prefix } = BucketPrefix::of(url)?;
        if let Some(name) =
            options.settings.keys().find(|name| SETTINGS.iter().all(|(known, ..)| known != name))
        {
            let known: Vec<_> = SETTINGS.iter().map(|(name, ..)| *name).collect();
            return Err(invalid(name, format!("S3 has no such setting; it has {}", known.join(", "))));
        }
        let set = |name: &str| -> Option<String> {
            let variables =
                SETTINGS.iter().find(|(known, ..)| *known == name).map_or(&[][..], |(_, names, _)| *names);
            options
                .settings
                .get(name)
                .map(String::as_str)
                .or_else(|| environment.first(variables))
                .map(str::to_owned)
        };
        let requested = set("profile");
        let profile_asked = requested.is_some();
        let profile = requested.unwrap_or_else(|| "default".to_owned());
        let skip_signature = flag("skip_signature", set("skip_signature"))?.unwrap_or(false);
        let keys_first = options.settings.contains_key("access_key_id");
        let profile_first = options.settings.contains_key("profile") && !keys_first;
        let has_keys =
            ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"].map(|name| environment.get(name).is_some());
        let needs_none = skip_signature || has_keys == [true; 2] && !profile_first;
        let profiles = match needs_none {
            true => Profiles::read_if_possible(environment),
            false => Profiles::read(environment)?,
        };
        if profile_asked && !needs_none && !profiles.has(&profile) {
            let why = "there is no such profile in ~/.aws/config or ~/.aws/credentials; check AWS_PROFILE";
            return Err(invalid(&profile, why));
        }
        let either = |name: &str| {
            let in_profile =
                SETTINGS.iter().find(|(known, ..)| *known == name).map_or("", |(.., name)| *name);
            set(name).or_else(|| profiles.get(&profile, in_profile).map(str::to_owned))
        };
        let endpoint = either("endpoint").map(|text| endpoint(&text)).transpose()?;
        let plain = endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"));
        if plain && flag("allow_http", set("allow_http"))? == Some(false) {
            let why = "it is not encrypted and AWS_ALLOW_HTTP forbids that; set AWS_ALLOW_HTTP=true";
            return Err(invalid(endpoint.as_deref().unwrap_or_default(), why));
        }
        let request_payer = match set("request_payer").as_deref() {
            Some("requester") => true,
            text => flag("request_payer", text.map(str::to_owned))?.unwrap_or(false),
        };
        let parallelism = options.checked_parallelism("s3")?;
        let (region, ca_bundle) = (either("region"), either("ca_bundle").map(PathBuf::from));
        Ok(Self {
            bucket,
            prefix,
            endpoint,
            region: region.unwrap_or_else(|| "us-east-1".to_owned()),
            profile,
            profile_first,
            plain,
            virtual_hosted: flag("virtual_hosted_style", set("virtual_hosted_style"))?.unwrap_or(false),
            skip_signature,
            request_payer,
            ca_bundle,
            parallelism,
        })
    }

    /// The address of the origin.
    pub(crate) fn address(&self) -> String {
        match &self.endpoint {
            Some(endpoint) => endpoint.clone(),
            None => {
                let (region, china) = (&self.region, self.region.starts_with("cn-"));
                format!("https://s3.{region}.amazonaws.com{}", if china { ".cn" } else { "" })
            }
        }
    }

    /// The base address of every request, with the bucket in the path or in the host name.
    pub(crate) fn bucket_address(&self) -> String {
        let (address, bucket) = (self.address(), &self.bucket);
        match address.split_once("://") {
            Some((scheme, host)) if self.virtual_hosted => format!("{scheme}://{bucket}.{host}"),
            _ => format!("{address}/{bucket}"),
        }
    }

    /// The canonical name of the bucket and prefix, the same for every route to them. Amazon's own
    /// endpoints (public ones, of a VPC, dual-stack, FIPS, accelerated) all lead to one set of
    /// buckets per partition. Any other endpoint is a separate origin.
    pub(crate) fn canonical_place(&self) -> String {
        let address = self.address();
        let (scheme, rest) = address.split_once("://").unwrap_or(("https", &address));
        let (authority, path) =
            rest.split_once('/').map_or((rest, String::new()), |(host, path)| (host, format!("/{path}")));
        let authority = authority.to_ascii_lowercase();
        let default = if scheme == "http" { ":80" } else { ":443" };
        let has_port = authority
            .rsplit_once(':')
            .is_some_and(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
        let service = match partition(&authority, &self.region).filter(|_| path.is_empty()) {
            Some(partition) => partition.to_owned(),
            None => format!("{scheme}://{authority}{}{path}", if has_port { "" } else { default }),
        };
        format!("s3 {service} {}/{}", self.bucket, self.prefix)
    }

    pub(crate) fn location(&self) -> BucketPrefix {
        BucketPrefix { bucket: self.bucket.clone(), prefix: self.prefix.clone() }
    }
}

/// The partition whose general purpose buckets `host` serves, if it is one of Amazon's endpoints
/// for them. Outposts, directory buckets, access points and object lambdas have separate names and
/// return `None`.
fn partition(host: &str, region: &str) -> Option<&'static str> {
    let host = host.strip_suffix(":443").or_else(|| host.strip_suffix(":80")).unwrap_or(host);
    let (labels, china) = match host.strip_suffix(".amazonaws.com.cn") {
        Some(labels) => (labels, true),
        None => (host.strip_suffix(".amazonaws.com")?, false),
    };
    let is_region = |text: &str| {
        let parts = text.split('-').count();
        (3..=4).contains(&parts) && text.ends_with(|c: char| c.is_ascii_digit())
    };
    let is_service = |label: &str| match label.strip_prefix("s3-") {
        None => label == "s3",
        Some(rest) => {
            matches!(rest, "fips" | "accelerate" | "external-1")
                || is_region(rest) && !rest.starts_with("outposts")
        }
    };
    labels.split('.').find(|label| is_service(label))?;
    let named = labels
        .split('.')
        .map(|label| label.strip_prefix("s3-").unwrap_or(label))
        .find(|label| is_region(label));
    match named.unwrap_or(region) {
        _ if china => Some("aws-cn"),
        region if region.starts_with("us-gov-") => Some("aws-us-gov"),
        _ => Some("aws"),
    }
}

fn endpoint(text: &str) -> Result<String, TierError> {
    let text = text.trim().trim_end_matches('/');
    let shown = text.rsplit('@').next().unwrap_or_default();
    let host =
        ["http://", "https://"].iter().find_map(|scheme| text.strip_prefix(scheme)).unwrap_or_default();
    let fits = !host.is_empty() && !host.contains(['@', '?', '#', ' ']);
    if fits && format!("{text}/").parse::<http::Uri>().is_ok() {
        return Ok(text.to_owned());
    }
    let why = "not an address of storage; expected AWS_ENDPOINT_URL like `https://store.example.org:9000`";
    Err(invalid(shown, why))
}

fn flag(name: &str, text: Option<String>) -> Result<Option<bool>, TierError> {
    match text.map(|text| text.to_ascii_lowercase()).as_deref() {
        None => Ok(None),
        Some("true" | "1" | "yes" | "on") => Ok(Some(true)),
        Some("false" | "0" | "no" | "off") => Ok(Some(false)),
        Some(other) => Err(invalid(name, format!("`{other}` is neither true nor false"))),
    }
}

#[cfg(test)]
mod tests {
    use foreread_tier::ErrorKind;

    use super::*;

    fn gather(
        url: &str,
        settings: &[(&str, &str)],
        variables: &[(&str, &str)],
    ) -> Result<S3Config, TierError> {
        let mut options = OpenOptions::default();
        options.settings =
            settings.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        S3Config::gather(url, &options, &Environment::new(variables.iter().copied()))
    }

    #[test]
    fn urls_are_split_into_bucket_and_prefix() {
        for (url, bucket, prefix) in [
            ("s3://b", "b", ""),
            ("s3://b/", "b", ""),
            ("s3a://my.bucket-1/a/b c%20/", "my.bucket-1", "a/b c%20"),
        ] {
            assert_eq!(
                BucketPrefix::of(url).unwrap(),
                BucketPrefix { bucket: bucket.into(), prefix: prefix.into() }
            );
        }
        for url in
            ["s3://", "s3:///x", "s3://b//x", "s3://b/../x", "s3://b/a/./x", "s3://b u/x", "s3://b/x//"]
        {
            assert_eq!(BucketPrefix::of(url).unwrap_err().kind(), ErrorKind::Invalid, "{url}");
        }
        let text = BucketPrefix::of("s3://key:hush@host/x").unwrap_err().to_string();
        assert!(!text.contains("hush") && text.contains("AWS_ENDPOINT_URL"), "{text}");
    }

    #[test]
    fn options_go_before_the_environment() {
        let variables = [
            ("AWS_ENDPOINT_URL", "http://general:1"),
            ("AWS_ENDPOINT_URL_S3", "http://special:2/"),
            ("AWS_REGION", "eu-west-1"),
            ("AWS_REQUEST_PAYER", "requester"),
            ("AWS_SKIP_SIGNATURE", "true"),
        ];
        let config = gather("s3://b/x", &[], &variables).unwrap();
        assert_eq!(config.bucket_address(), "http://special:2/b");
        assert!(config.plain && config.request_payer && config.skip_signature);
        let settings = [("endpoint", "https://mine"), ("region", "home"), ("virtual_hosted_style", "1")];
        let config = gather("s3://b/x", &settings, &variables).unwrap();
        assert_eq!((config.bucket_address().as_str(), config.region.as_str()), ("https://b.mine", "home"));
        assert!(!config.plain);
        let amazon = gather("s3://b/x", &[], &[("AWS_DEFAULT_REGION", "cn-north-1")]).unwrap();
        assert_eq!(amazon.bucket_address(), "https://s3.cn-north-1.amazonaws.com.cn/b");
        assert_eq!(gather("s3://b", &[], &[]).unwrap().address(), "https://s3.us-east-1.amazonaws.com");
    }

    #[test]
    // semantics: DISK-4
    fn endpoints_of_one_store_have_one_place() {
        let place = |endpoint: &str, region: &str| {
            let settings = [("endpoint", endpoint), ("region", region)];
            let settings = if endpoint.is_empty() { &settings[1..] } else { &settings };
            gather("s3://b/p/", settings, &[]).unwrap().canonical_place()
        };
        let public = place("", "eu-west-1");
        assert_eq!(public, "s3 aws b/p");
        for endpoint in [
            "https://s3.amazonaws.com",
            "https://s3.eu-west-1.amazonaws.com/",
            "https://s3.eu-west-1.amazonaws.com:443",
            "https://s3-eu-west-1.amazonaws.com",
            "https://s3.dualstack.eu-west-1.amazonaws.com",
            "https://s3-fips.dualstack.us-east-1.amazonaws.com",
            "https://S3-Accelerate.amazonaws.com",
            "https://bucket.vpce-1a2b3c4d-5e6f.s3.eu-west-1.vpce.amazonaws.com",
            "http://s3.eu-west-1.amazonaws.com",
        ] {
            assert_eq!(place(endpoint, "eu-west-1"), public, "{endpoint}");
        }
        assert_eq!(place("", "cn-north-1"), "s3 aws-cn b/p");
        assert_eq!(place("https://s3.cn-northwest-1.amazonaws.com.cn", "eu-west-1"), "s3 aws-cn b/p");
        assert_eq!(place("", "us-gov-west-1"), "s3 aws-us-gov b/p");
        assert_eq!(place("https://s3-fips.us-gov-east-1.amazonaws.com", "eu-west-1"), "s3 aws-us-gov b/p");
        for endpoint in [
            "https://s3.amazonaws.com.evil.example",
            "https://s3.eu-west-1.amazonaws.com/gateway",
            "https://s3-outposts.eu-west-1.amazonaws.com",
            "https://s3express-use1-az4.us-east-1.amazonaws.com",
            "https://notamazonaws.com",
            "https://storage.example.org:9000",
        ] {
            let other = place(endpoint, "eu-west-1");
            assert!(other != public && other.contains("https://"), "{other}");
        }
        assert_eq!(place("http://Store:80", "x"), place("http://store", "y"));
        assert_ne!(place("http://store:9000", "x"), place("http://store:9001", "x"));
        assert_ne!(place("http://store", "x"), place("https://store", "x"));
        let other = gather("s3://b/q", &[("region", "eu-west-1")], &[]).unwrap().canonical_place();
        assert_ne!(other, public);
    }

    #[test]
    fn invalid_setting_is_refused_by_name() {
        for (settings, variables, expected) in [
            (&[("endpiont", "x")][..], &[][..], "endpiont"),
            (&[("allow_http", "perhaps")], &[("AWS_ENDPOINT_URL", "http://x")], "allow_http"),
            (&[], &[("AWS_ENDPOINT_URL", "http://x"), ("AWS_ALLOW_HTTP", "false")], "AWS_ALLOW_HTTP=true"),
            (&[], &[("AWS_ENDPOINT_URL", "store:9000")], "https://store.example.org:9000"),
            (&[("profile", "nobody")], &[], "nobody"),
        ] {
            let error = gather("s3://b", settings, variables).unwrap_err();
            assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains(expected), "{error}");
        }
        // Keys in the environment precede a profile that is missing or cannot be read.
        let keys = [("AWS_ACCESS_KEY_ID", "k"), ("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_CONFIG_FILE", "/")];
        assert!(gather("s3://b", &[], &keys[2..]).unwrap_err().to_string().contains("cannot be read"));
        gather("s3://b", &[], &keys).unwrap();
        gather("s3://b", &[], &[&keys[..], &[("AWS_PROFILE", "nobody")]].concat()).unwrap();
        gather("s3://b", &[("skip_signature", "true")], &keys[2..]).unwrap();
        let text = gather("s3://b", &[("endpoint", "http://u:hush@x")], &[]).unwrap_err().to_string();
        assert!(!text.contains("hush"), "{text}");
        let mut options = OpenOptions::default();
        options.parallelism = Some(0);
        assert!(S3Config::gather("s3://b", &options, &Environment::default()).is_err());
    }
}
