//! WebDataset's rule: groups a tar's members into samples.

use std::collections::BTreeSet;

use super::rows::{FormatColumns, SampleRows};
use super::scan::MemberScan;
use foreread_formats::FormatError;

/// The maximum number of fields in one sample.
const MOST_FIELDS: usize = 1000;

/// Splits a member's name into key and field at the first dot of its last part. The field is in
/// lower case. `None` for names that are no samples in WebDataset either. These are names without a
/// dot, hidden names and metadata (`__name__`).
fn cut(name: &str) -> Option<(&str, String)> {
    let first = name.split('/').next().unwrap_or_default();
    if first.len() >= 4 && first.starts_with("__") && first.ends_with("__") {
        return None;
    }
    let last = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = last + name[last..].find('.').filter(|&dot| dot > 0)?;
    Some((&name[..dot], name[dot + 1..].to_lowercase()))
}

/// Groups members: consecutive ones with one key are one sample. Returns the samples, and the
/// number of members that belong to none.
pub(crate) fn group(members: &MemberScan) -> Result<(SampleRows, u64), FormatError> {
    let mut rows = SampleRows::new(FormatColumns::TAR);
    let mut skipped = members.skipped;
    let mut fields: BTreeSet<String> = BTreeSet::new();
    for (number, &(start, length, _)) in members.places.iter().enumerate() {
        let name = members.names.get(number);
        let Some((key, field)) = cut(name) else {
            skipped += 1;
            continue;
        };
        if rows.last_key() != Some(key) {
            rows.push(key, start, 0, 0);
            fields.clear();
        }
        rows.push_field(&field, start, length);
        if fields.len() == MOST_FIELDS {
            return Err(FormatError::damaged(
                start,
                format!("the sample {key:?} has more than {MOST_FIELDS} fields"),
            ));
        }
        if !fields.insert(field) {
            return Err(FormatError::damaged(
                start,
                format!("the sample {key:?} has {name:?} twice, upper case or not"),
            ));
        }
    }
    Ok((rows, skipped))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: SHARD-3
    fn names_are_split_as_in_webdataset() {
        for (name, key, field) in [
            ("a.jpg", "a", "jpg"),
            ("dir.v2/sub/0001.Seg.PNG", "dir.v2/sub/0001", "seg.png"),
            ("./a.jpg", "./a", "jpg"),
            ("../a.jpg", "../a", "jpg"),
            ("a.", "a", ""),
            ("__a/b.c", "__a/b", "c"),
        ] {
            assert_eq!(cut(name), Some((key, field.to_owned())), "{name}");
        }
        for name in ["", "README", "dir.v2/README", ".hidden", "a/.hidden.jpg", "__meta__", "__x__/a.jpg"] {
            assert_eq!(cut(name), None, "{name}");
        }
    }
}
