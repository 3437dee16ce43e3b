//! URLs of Azure's containers.
//!
//! `az://container/path` leaves the account to the environment. The form of Hadoop and Spark,
//! `abfss://container@account.dfs.core.windows.net/path`, names it. A host that is not Azure's is
//! refused. Requests carry credentials, and a catalog from another author must not decide where
//! they are sent.

use foreread_tier::TierError;

use crate::config::BucketPrefix;
use crate::error::invalid;

/// Azure's clouds. The first is the default of its client.
const CLOUDS: [&str; 5] = [
    "core.windows.net",
    "core.usgovcloudapi.net",
    "core.chinacloudapi.cn",
    "core.cloudapi.de",
    "fabric.microsoft.com",
];

/// The schemes of Azure's URLs.
pub(crate) const SCHEMES: [&str; 5] = ["az", "abfs", "abfss", "wasb", "wasbs"];

/// A container's account, if its URL names one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AzureAccount {
    pub(crate) name: String,
    /// The address of the account, if it is not the default one.
    pub(crate) endpoint: Option<String>,
}

/// The container and the prefix of a URL, and its account if the URL names one.
pub(crate) fn location(url: &str) -> Result<(BucketPrefix, Option<AzureAccount>), TierError> {
    let (_, rest) = url.split_once("://").unwrap_or_default();
    let (authority, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let Some((container, host)) = authority.split_once('@') else {
        return Ok((BucketPrefix::of(url)?, None));
    };
    // The error repeats no part of the URL, because a user may have written a key before the `@`.
    let wrong = || {
        let why = "write `abfss://container@account.dfs.core.windows.net/path` or `az://container/path`; \
                   another address goes into AZURE_STORAGE_ENDPOINT and credentials into \
                   AZURE_STORAGE_ACCOUNT_KEY";
        invalid("the URL", why)
    };
    let fits = |text: &str, more: &str| {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || more.contains(c);
        !text.is_empty() && text.len() <= 63 && text.chars().all(fits)
    };
    let mut parts = host.splitn(3, '.');
    let (Some(name), Some("dfs" | "blob"), Some(cloud)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(wrong());
    };
    if !fits(container, "-$") || !fits(name, "-") || !CLOUDS.contains(&cloud) {
        return Err(wrong());
    }
    let endpoint = (cloud != CLOUDS[0]).then(|| format!("https://{name}.blob.{cloud}"));
    let location = BucketPrefix::below(container, prefix, url)?;
    Ok((location, Some(AzureAccount { name: name.to_owned(), endpoint })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: BUCKET-14
    fn urls_name_a_container_and_may_name_its_account() {
        let account = |name: &str, endpoint: Option<&str>| {
            Some(AzureAccount { name: name.into(), endpoint: endpoint.map(str::to_owned) })
        };
        for (url, container, prefix, expected) in [
            ("az://c/a/b", "c", "a/b", None),
            ("abfs://c", "c", "", None),
            ("abfss://c@acct.dfs.core.windows.net/a/b/", "c", "a/b", account("acct", None)),
            ("wasbs://my-c@acct.blob.core.windows.net", "my-c", "", account("acct", None)),
            (
                "abfss://c@acct.dfs.core.usgovcloudapi.net/x",
                "c",
                "x",
                account("acct", Some("https://acct.blob.core.usgovcloudapi.net")),
            ),
        ] {
            let (location, found) = location(url).unwrap();
            assert_eq!((location.bucket.as_str(), location.prefix.as_str()), (container, prefix), "{url}");
            assert_eq!(found, expected, "{url}");
        }
    }

    #[test]
    // semantics: BUCKET-14
    fn other_hosts_and_keys_in_urls_are_refused_and_not_repeated() {
        for url in [
            "abfss://c@hush.example.org/x",
            "abfss://c@acct.dfs.hush.net/x",
            "az://hush:KEY@acct.dfs.core.windows.net/x",
            "az://c@hush",
            "az://@hush.dfs.core.windows.net",
            "az://c@h/ush.dfs.core.windows.net",
        ] {
            let text = location(url).unwrap_err().to_string();
            assert!(!text.contains("hush") && text.contains("AZURE_STORAGE_ENDPOINT"), "{text}");
        }
        assert!(location("abfss://c@acct.dfs.core.windows.net/a/../b").is_err());
    }
}
