//! Whether what ranks send each other is encrypted: where the environment names certificates, and only then.

use std::sync::Arc;

use foreread_peer::Network;

use crate::error::{Error, ErrorKind, Result};

/// The variables: this rank's certificate and key, whom it believes, and the name that all certificates bear (unset: each bears its
/// host's). All PEM files.
const CERTIFICATE: &str = "FOREREAD_TLS_CERTIFICATE";
const KEY: &str = "FOREREAD_TLS_KEY";
const AUTHORITY: &str = "FOREREAD_TLS_AUTHORITY";
#[cfg(feature = "tls")]
const NAME: &str = "FOREREAD_TLS_NAME";

/// `network`, encrypted if the environment says so.
pub(super) fn encrypted(
    network: Arc<dyn Network>,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Arc<dyn Network>> {
    let set = |name: &&str| environment(name).is_some_and(|value| !value.is_empty());
    let names = [CERTIFICATE, KEY, AUTHORITY];
    if !names.iter().any(set) {
        return Ok(network);
    }
    if let Some(missing) = names.iter().find(|name| !set(name)) {
        let all = names.join(", ");
        return Err(Error::new(
            ErrorKind::Usage,
            format!("{missing} is not set; encryption takes all of {all}"),
        ));
    }
    with_files(network, environment)
}

#[cfg(feature = "tls")]
fn with_files(
    network: Arc<dyn Network>,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Arc<dyn Network>> {
    let file = |name: &str| environment(name).unwrap_or_default().into();
    let files = foreread_peer::TlsFiles {
        certificate: file(CERTIFICATE),
        key: file(KEY),
        authority: file(AUTHORITY),
        name: environment(NAME),
    };
    let encrypted = foreread_peer::Encrypted::new(network, &files)
        .map_err(|error| Error::new(ErrorKind::Usage, format!("ranks cannot encrypt: {error}")))?;
    Ok(Arc::new(encrypted))
}

#[cfg(not(feature = "tls"))]
fn with_files(_: Arc<dyn Network>, _: &dyn Fn(&str) -> Option<String>) -> Result<Arc<dyn Network>> {
    let why =
        format!("{CERTIFICATE} is set, and this program was built without the feature `tls`, which encrypts");
    Err(Error::new(ErrorKind::Usage, why))
}

#[cfg(test)]
mod tests {
    use foreread_peer::System;

    use super::*;

    fn asked(set: &[(&str, &str)]) -> Result<Arc<dyn Network>> {
        let environment =
            |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        encrypted(Arc::new(System), &environment)
    }

    #[test]
    fn half_of_what_encryption_takes_is_refused_and_nothing_is_plain() {
        assert!(asked(&[]).is_ok());
        let error = asked(&[(KEY, "/k"), (AUTHORITY, "/a")]).unwrap_err().to_string();
        assert!(error.starts_with("FOREREAD_TLS_CERTIFICATE is not set"), "{error}");
        let all = [(CERTIFICATE, "/no/certificate"), (KEY, "/no/key"), (AUTHORITY, "/no/authority")];
        let error = asked(&all).unwrap_err().to_string();
        assert!(
            error.contains(if cfg!(feature = "tls") { "/no/" } else { "without the feature" }),
            "{error}"
        );
    }
}
