//! Lists of decoders as JSON: `[["fletcher32","zlib","shuffle:4"],["deflate"]]`. Catalogs and
//! unfinished indexes keep them.

use foreread_types::Decoder;
use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::Serializer;

/// Writes the lists.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(recipes: &[Vec<Decoder>], out: S) -> Result<S::Ok, S::Error> {
    out.collect_seq(
        recipes.iter().map(|decoders| decoders.iter().map(ToString::to_string).collect::<Vec<_>>()),
    )
}

/// Reads the lists.
///
/// # Errors
/// An unknown decoder, and those of the deserializer.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Vec<Decoder>>, D::Error> {
    let lists: Vec<Vec<String>> = Vec::deserialize(from)?;
    let decoders = |list: Vec<String>| list.iter().map(|text| text.parse()).collect::<Result<_, _>>();
    lists.into_iter().map(decoders).collect::<Result<_, _>>().map_err(D::Error::custom)
}

/// The lists as JSON.
pub fn to_json(recipes: &[Vec<Decoder>]) -> String {
    let mut json = Vec::new();
    // Text in memory is always written.
    match serialize(recipes, &mut serde_json::Serializer::new(&mut json)) {
        Ok(()) => String::from_utf8(json).unwrap_or_default(),
        Err(_) => String::new(),
    }
}

/// The lists in JSON. `None` for anything else.
pub fn from_json(json: &str) -> Option<Vec<Vec<Decoder>>> {
    deserialize(&mut serde_json::Deserializer::from_str(json)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_back() {
        let recipes = vec![vec![Decoder::Fletcher32, Decoder::Zlib, Decoder::Shuffle(4)], vec![]];
        let json = to_json(&recipes);
        assert_eq!(json, r#"[["fletcher32","zlib","shuffle:4"],[]]"#);
        assert_eq!(from_json(&json), Some(recipes));
        for bad in ["", "[", r#"[["lzma"]]"#, r#"["zlib"]"#, "{}"] {
            assert_eq!(from_json(bad), None, "{bad}");
        }
    }
}
