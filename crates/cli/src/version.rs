//! The version, with the facts for a report of a bug: commit, features, URL schemes.

use foreread::Registry;

/// The features of this build.
const FEATURES: &[(&str, bool)] = &[
    ("azure", cfg!(feature = "azure")),
    ("gcs", cfg!(feature = "gcs")),
    ("lustre", cfg!(feature = "lustre")),
    ("opendal", cfg!(feature = "opendal")),
    ("opendal-hdfs", cfg!(feature = "opendal-hdfs")),
    ("opendal-sftp", cfg!(feature = "opendal-sftp")),
    ("plot", cfg!(feature = "plot")),
    ("s3", cfg!(feature = "s3")),
    ("share", cfg!(feature = "share")),
];

/// The text of `--version`, after the command's name.
pub fn long(registry: &Registry) -> String {
    let commit =
        option_env!("BUILT_FROM_COMMIT").map_or_else(String::new, |commit| format!(" (commit {commit})"));
    let features: Vec<&str> = FEATURES.iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect();
    let features = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
    format!(
        "{}{commit}\nfeatures: {features}\nURL schemes: {}",
        env!("CARGO_PKG_VERSION"),
        registry.schemes().join(", ")
    )
}
