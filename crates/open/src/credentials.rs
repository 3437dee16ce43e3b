//! Whose rights reads have: the credentials of a storage in the environment.
//!
//! Decision: a backend names the variables, so that a new store cannot be forgotten here. The price
//! is that any variable with such a beginning counts, credentials or not.

use std::collections::BTreeMap;

use foreread_tier::Backend;
use foreread_types::Fingerprint;

/// A proof of the credentials that the environment has for a storage. A job and its agent must have
/// the same ones, or the job would read with the rights of the agent. Empty for storage without
/// any.
pub fn credentials_proof(backend: &dyn Backend) -> String {
    let starts = backend.credentials();
    if starts.is_empty() {
        return String::new();
    }
    let is_credential = |name: &str| starts.iter().any(|start| name.starts_with(start));
    let used: BTreeMap<_, _> = std::env::vars_os()
        .filter(|(name, _)| name.to_str().is_some_and(is_credential))
        .map(|(name, value)| (name.into_encoded_bytes(), value.into_encoded_bytes()))
        .collect();
    let mut all = Vec::new();
    for part in used.iter().flat_map(|(name, value)| [name, value]) {
        all.extend((part.len() as u64).to_le_bytes());
        all.extend(part);
    }
    Fingerprint(xxhash_rust::xxh3::xxh3_128(&all)).to_string()
}
