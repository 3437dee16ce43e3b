//! The protection of samples between nodes: `FOREREAD_PEER_WIRE`, which must be equal on all ranks.

use foreread_peer::WireProtection;

use foreread_open::error::{Error, ErrorKind, Result};

/// The value from the environment. Authenticated if not set.
pub(super) fn given(environment: &dyn Fn(&str) -> Option<String>) -> Result<WireProtection> {
    let text = environment(WireProtection::VARIABLE).filter(|text| !text.trim().is_empty());
    let wire = text.map(|text| text.parse::<WireProtection>()).transpose();
    Ok(wire.map_err(|error| Error::new(ErrorKind::Usage, error.to_string()))?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: RANK-36
    fn wire_is_authenticated_unless_set_in_the_environment() {
        let set = |text: &str| given(&|name| (name == "FOREREAD_PEER_WIRE").then(|| text.to_owned()));
        assert_eq!(given(&|_| None).unwrap(), WireProtection::Authenticated);
        assert_eq!(set(" ").unwrap(), WireProtection::Authenticated);
        assert_eq!(set("sealed").unwrap(), WireProtection::Sealed);
        assert_eq!(set("checksummed ").unwrap(), WireProtection::Checksummed);
        let error = set("tls").unwrap_err().to_string();
        assert!(error.ends_with("expected authenticated, sealed or checksummed"), "{error}");
    }
}
