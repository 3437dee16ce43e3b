//! The formats of tables, by the names of their files.

/// The format of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TableKind {
    /// Values between commas. The first line has the names of the columns.
    Csv,
    /// Values between tabs.
    Tsv,
    /// A JSON object in each line, or one list of objects.
    Json,
    /// Parquet.
    Parquet,
    /// A file or a stream of Arrow IPC (Feather version 2).
    Arrow,
    /// A path in each line, as in `train.txt`. If each line ends in a space and an integer, that is
    /// the column `label`.
    Lines,
}

impl TableKind {
    /// The format that a file of this name has, in any case. CSV, TSV and JSON may be compressed by
    /// gzip (`.csv.gz`), and so may lists.
    pub fn of_name(name: &str) -> Option<Self> {
        let lower = name.to_ascii_lowercase();
        let plain = lower.strip_suffix(".gz");
        let (_, ending) = plain.unwrap_or(&lower).rsplit_once('.')?;
        Some(match ending {
            "csv" => Self::Csv,
            "tsv" | "tab" => Self::Tsv,
            "jsonl" | "ndjson" | "json" => Self::Json,
            "txt" | "lst" => Self::Lines,
            "parquet" | "pq" if plain.is_none() => Self::Parquet,
            "arrow" | "feather" if plain.is_none() => Self::Arrow,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_show_formats() {
        for (name, kind) in [
            ("train.csv", Some(TableKind::Csv)),
            ("s3://b/TRAIN.CSV.GZ", Some(TableKind::Csv)),
            ("a.tsv", Some(TableKind::Tsv)),
            ("a.jsonl", Some(TableKind::Json)),
            ("a.json.gz", Some(TableKind::Json)),
            ("a.parquet", Some(TableKind::Parquet)),
            ("a.feather", Some(TableKind::Arrow)),
            ("a.parquet.gz", None),
            ("val.txt", Some(TableKind::Lines)),
            ("a.xlsx", None),
            ("csv", None),
        ] {
            assert_eq!(TableKind::of_name(name), kind, "{name}");
        }
    }
}
