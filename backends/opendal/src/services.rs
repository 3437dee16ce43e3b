//! The services: their URLs, their settings and their constructors.
//!
//! | service | URLs | settings |
//! |---|---|---|
//! | `http` | `http://host/path`, `https://` | `username`, `password`, `token`, `host`, `list` |
//! | `webdav` | `webdav://host/path`, `webdavs://` | `username`, `password`, `token`, `host` |
//! | `webhdfs` | `webhdfs://namenode:9870/path`, `swebhdfs://` | `user_name`, `delegation`, `host` |
//! | `oss` | `oss://bucket/prefix` | `endpoint`, `access_key_id`, `access_key_secret`, `security_token`, `skip_signature`, ... |
//! | `cos` | `cos://bucket/prefix` | `endpoint`, `secret_id`, `secret_key`, `security_token` |
//! | `hf` | `hf://datasets/owner/name@revision/path` | `token`, `endpoint` |
//! | `hdfs` | `hdfs://namenode:8020/path` | none |
//! | `sftp` | `sftp://user@host:port/path` | `key`, `known_hosts_strategy` |

use std::collections::BTreeMap;

use opendal::Operator;

/// The meaning of a URL's authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "each is used by the services of some features")]
pub(crate) enum AuthorityKind {
    /// A web server, contacted by this scheme.
    Web(&'static str),
    /// A bucket, with the name of its option.
    Bucket(&'static str),
    /// Hadoop's name node.
    NameNode,
    /// A host, with a user.
    Ssh,
    /// The kind of a repository on the Hugging Face Hub.
    Hub,
}

/// One of OpenDAL's services.
#[derive(Debug)]
pub(crate) struct OpendalService {
    /// Its name in messages and environment variables.
    pub(crate) name: &'static str,
    /// The schemes of its URLs.
    pub(crate) schemes: &'static [(&'static str, AuthorityKind)],
    /// The form of its URLs.
    pub(crate) example: &'static str,
    /// Its settings.
    pub(crate) options: &'static [&'static str],
    /// The settings with credentials.
    pub(crate) secrets: &'static [&'static str],
    /// The beginnings of the variables with credentials, of this project and of the service's own
    /// tools.
    pub(crate) credentials: &'static [&'static str],
    /// The credentials that are sent unchanged to the URL's host, and are therefore bound to the
    /// setting `host`.
    pub(crate) bound: &'static [&'static str],
    /// Whether redirects are followed. Services with signed requests must not follow them: another
    /// host could not check the signature, and would learn it together with the tokens.
    pub(crate) redirects: bool,
    /// The constructor of the operator.
    pub(crate) make: fn(BTreeMap<String, String>) -> opendal::Result<Operator>,
}

/// The services of the enabled features.
pub(crate) const SERVICES: &[OpendalService] = &[
    #[cfg(feature = "http")]
    OpendalService {
        name: "http",
        schemes: &[("http", AuthorityKind::Web("http")), ("https", AuthorityKind::Web("https"))],
        example: "https://host/path",
        options: &["username", "password", "token", "host", "list"],
        secrets: &["username", "password", "host"],
        credentials: &["FOREREAD_HTTP_"],
        bound: &["username", "password", "token"],
        redirects: true,
        make: Operator::from_iter::<opendal::services::Http>,
    },
    #[cfg(feature = "webdav")]
    OpendalService {
        name: "webdav",
        schemes: &[("webdav", AuthorityKind::Web("http")), ("webdavs", AuthorityKind::Web("https"))],
        example: "webdavs://host/path",
        options: &["username", "password", "token", "host"],
        secrets: &["username", "password", "host"],
        credentials: &["FOREREAD_WEBDAV_"],
        bound: &["username", "password", "token"],
        redirects: false,
        make: Operator::from_iter::<opendal::services::Webdav>,
    },
    #[cfg(feature = "webhdfs")]
    OpendalService {
        name: "webhdfs",
        schemes: &[("webhdfs", AuthorityKind::Web("http")), ("swebhdfs", AuthorityKind::Web("https"))],
        example: "webhdfs://namenode:9870/path",
        options: &["user_name", "delegation", "host"],
        secrets: &["user_name", "delegation", "host"],
        credentials: &["FOREREAD_WEBHDFS_"],
        bound: &["delegation"],
        redirects: true,
        make: Operator::from_iter::<opendal::services::Webhdfs>,
    },
    #[cfg(feature = "oss")]
    OpendalService {
        name: "oss",
        schemes: &[("oss", AuthorityKind::Bucket("bucket"))],
        example: "oss://bucket/prefix",
        options: &[
            "endpoint",
            "addressing_style",
            "access_key_id",
            "access_key_secret",
            "security_token",
            "role_arn",
            "role_session_name",
            "oidc_provider_arn",
            "oidc_token_file",
            "sts_endpoint",
            "external_id",
            "skip_signature",
        ],
        secrets: &["access_key_id", "access_key_secret"],
        credentials: &["FOREREAD_OSS_", "ALIBABA_CLOUD_", "OSS_", "HOME"],
        bound: &[],
        redirects: false,
        make: Operator::from_iter::<opendal::services::Oss>,
    },
    #[cfg(feature = "cos")]
    OpendalService {
        name: "cos",
        schemes: &[("cos", AuthorityKind::Bucket("bucket")), ("cosn", AuthorityKind::Bucket("bucket"))],
        example: "cos://bucket/prefix",
        options: &["endpoint", "secret_id", "secret_key", "security_token", "disable_config_load"],
        secrets: &["secret_id", "secret_key"],
        credentials: &["FOREREAD_COS_", "TENCENTCLOUD_", "TKE_"],
        bound: &[],
        redirects: false,
        make: Operator::from_iter::<opendal::services::Cos>,
    },
    #[cfg(feature = "huggingface")]
    OpendalService {
        name: "hf",
        schemes: &[("hf", AuthorityKind::Hub)],
        example: "hf://datasets/owner/name@revision/path",
        options: &["token", "endpoint"],
        secrets: &["token"],
        credentials: &["FOREREAD_HF_", "HF_", "HUGGING_FACE_", "HOME"],
        bound: &[],
        redirects: true,
        make: crate::hub::operator,
    },
    #[cfg(feature = "hdfs")]
    OpendalService {
        name: "hdfs",
        schemes: &[("hdfs", AuthorityKind::NameNode)],
        example: "hdfs://namenode:8020/path",
        options: &[],
        secrets: &[],
        credentials: &["HADOOP_", "KRB5", "HOME"],
        bound: &[],
        redirects: false,
        make: Operator::from_iter::<opendal::services::HdfsNative>,
    },
    #[cfg(feature = "sftp")]
    OpendalService {
        name: "sftp",
        schemes: &[("sftp", AuthorityKind::Ssh)],
        example: "sftp://user@host:port/path",
        options: &["key", "known_hosts_strategy"],
        secrets: &["key"],
        credentials: &["FOREREAD_SFTP_", "SSH_AUTH_SOCK", "HOME"],
        bound: &[],
        redirects: false,
        make: Operator::from_iter::<opendal::services::Sftp>,
    },
];

/// The remedy for denied access to the service `scheme`: the variables of its credentials.
pub(crate) fn remedy(scheme: &str) -> Option<String> {
    let service = SERVICES.iter().find(|service| service.name == scheme)?;
    let variables: Vec<_> =
        service.secrets.iter().map(|name| crate::config::variable(service, name)).collect();
    (!variables.is_empty()).then(|| format!("set {}", variables.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: AGENT-9
    fn settings_of_each_service_count_as_credentials() {
        for service in SERVICES.iter().filter(|service| !service.options.is_empty()) {
            let own = format!("FOREREAD_{}_", service.name.to_uppercase());
            assert!(service.credentials.contains(&&*own), "{own}");
        }
    }
}
