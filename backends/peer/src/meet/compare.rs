//! Compares settings between ranks and describes the differences in one line.

use std::collections::BTreeSet;

use bytes::Bytes;
use foreread_types::Rank;

use super::messages::{ComparedSettings, ranks};
use super::waiting::MAX_NAMED_RANKS;

/// Encodes settings and a payload.
pub(super) fn pack(words: &ComparedSettings, bytes: &[u8]) -> Bytes {
    // Only texts: it cannot fail.
    let words = serde_json::to_vec(words).unwrap_or_default();
    let mut packed = Vec::with_capacity(4 + words.len() + bytes.len());
    packed.extend_from_slice(&(words.len() as u32).to_le_bytes());
    packed.extend_from_slice(&words);
    packed.extend_from_slice(bytes);
    packed.into()
}

/// The encoded settings, and the payload. Both are empty if the encoding is invalid.
pub(super) fn unpack(packed: &Bytes) -> (Bytes, Bytes) {
    let length = packed.first_chunk().map_or(0, |length| u32::from_le_bytes(*length) as usize);
    let end = length.checked_add(4).filter(|end| *end <= packed.len());
    end.map_or_else(Default::default, |end| (packed.slice(4..end), packed.slice(end..)))
}

/// The differences, if any: `seed is 7, rank 0's is 5; ...`.
pub(super) fn difference(theirs: &ComparedSettings, ours: &ComparedSettings) -> Option<String> {
    let value = |words: &ComparedSettings, name: &str| {
        words.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone())
    };
    let names = ours.iter().chain(theirs).map(|(name, _)| name);
    let mut seen = BTreeSet::new();
    let differing = names.filter(|name| seen.insert((*name).clone())).filter_map(|name| {
        let (theirs, ours) = (value(theirs, name), value(ours, name));
        let shown = |value: Option<String>| value.unwrap_or_else(|| "not set".to_owned());
        (theirs != ours).then(|| format!("{name} is {}, rank 0's is {}", shown(theirs), shown(ours)))
    });
    let all: Vec<_> = differing.collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// The ranks that differ from rank 0, in one line. The most frequent difference comes first.
pub(super) fn differences(parts: &[Option<Bytes>]) -> Option<String> {
    let words =
        |part: &Option<Bytes>| -> Option<ComparedSettings> { serde_json::from_slice(part.as_ref()?).ok() };
    let ours = words(parts.first()?)?;
    let mut found: Vec<(String, Vec<Rank>)> = Vec::new();
    for (rank, part) in parts.iter().enumerate().filter(|(_, part)| part.is_some()) {
        // Settings that cannot be read come from another release.
        let Some(text) = difference(&words(part).unwrap_or_default(), &ours) else { continue };
        match found.iter_mut().find(|(known, _)| *known == text) {
            Some((_, group)) => group.push(Rank(rank as u32)),
            None => found.push((text, vec![Rank(rank as u32)])),
        }
    }
    found.sort_by_key(|(_, group)| std::cmp::Reverse(group.len()));
    let (text, group) = found.first()?;
    let (named, more) =
        (&group[..group.len().min(MAX_NAMED_RANKS)], group.len().saturating_sub(MAX_NAMED_RANKS));
    let verb = if group.len() == 1 { "differs" } else { "differ" };
    let others: usize = found.iter().skip(1).map(|(_, group)| group.len()).sum();
    let others = match others {
        0 => String::new(),
        others => format!(" ({others} more differ otherwise)"),
    };
    Some(format!("{} {verb} from rank 0: {text}{others}", ranks(named, more)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(all: &[(&str, &str)]) -> ComparedSettings {
        all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn words_and_bytes_travel_as_one() {
        let packed = pack(&words(&[("seed", "5")]), b"held");
        let (shown, held) = unpack(&packed);
        assert_eq!((&shown[..], &held[..]), (&br#"[["seed","5"]]"#[..], &b"held"[..]));
        for cut in 0..packed.len() - 4 {
            assert_eq!(unpack(&packed.slice(..cut)).1, "", "{cut}");
        }
        assert_eq!(unpack(&Bytes::from_static(&[0xff; 8])), Default::default());
    }

    #[test]
    fn differences_name_rank_and_setting() {
        let item = |seed: &str| {
            Some(Bytes::from(serde_json::to_vec(&words(&[("seed", seed), ("plan", "a")])).unwrap()))
        };
        assert_eq!(differences(&[item("5"), item("5"), None]), None);
        assert_eq!(
            differences(&[item("5"), item("5"), item("7")]).unwrap(),
            "rank 2 differs from rank 0: seed is 7, rank 0's is 5"
        );
        assert_eq!(
            differences(&[item("5"), item("6"), item("7"), item("7")]).unwrap(),
            "ranks 2 and 3 differ from rank 0: seed is 7, rank 0's is 5 (1 more differ otherwise)"
        );
        let other = words(&[("seed", "5"), ("catalog", "x")]);
        assert_eq!(
            difference(&other, &words(&[("seed", "5"), ("plan", "a")])).unwrap(),
            "plan is not set, rank 0's is a; catalog is x, rank 0's is not set"
        );
    }
}
