//! How samples are stored in objects, and how that is detected from object names.

use foreread_types::setting;

use crate::{DatasetError, DatasetErrorKind};

/// How samples are stored in objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// Each object is one sample.
    Files,
    /// Objects are tar archives as WebDataset writes them. A sample consists of consecutive members
    /// whose paths are equal up to the first dot of their last part. The text after that dot, in
    /// lower case, is the name of the member's field.
    Tar,
    /// Objects are TFRecord files: each record is a sample.
    TfRecord,
    /// Objects are zip archives: each member is a sample.
    Zip,
    /// Objects are LMDB databases: each value is a sample.
    Lmdb,
    /// Objects are HDF5 files: each row of a dataset is a sample, or each dataset.
    Hdf5,
    /// Objects are Parquet files with an uncompressed column of bytes: each value is a sample.
    Parquet,
    /// Objects are Arrow streams or files with a column of bytes: each value is a sample.
    Arrow,
    /// Objects are MosaicML Streaming shards (MDS), next to their `index.json`.
    Mds,
    /// Objects are LitData chunks, next to their `index.json`.
    LitData,
    /// Objects are NumPy arrays: each row is a sample.
    Npy,
    /// Objects are files of tokens (`.bin`, `.npy`, Megatron's `.bin` with its `.idx`): each window
    /// is a sample, or each document.
    Tokens,
    /// Objects are RecordIO files of MXNet: each record is a sample, or the image in it.
    RecordIo,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 13] = [
        Self::Files,
        Self::Tar,
        Self::TfRecord,
        Self::Zip,
        Self::Lmdb,
        Self::Hdf5,
        Self::Parquet,
        Self::Arrow,
        Self::Mds,
        Self::LitData,
        Self::Npy,
        Self::Tokens,
        Self::RecordIo,
    ];

    /// The name that catalogs and the command line use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Tar => "tar",
            Self::TfRecord => "tfrecord",
            Self::Zip => "zip",
            Self::Lmdb => "lmdb",
            Self::Hdf5 => "hdf5",
            Self::Parquet => "parquet",
            Self::Arrow => "arrow",
            Self::Mds => "mds",
            Self::LitData => "litdata",
            Self::Npy => "npy",
            Self::Tokens => "tokens",
            Self::RecordIo => "recordio",
        }
    }

    /// The format with that [`name`](Self::name).
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// The packed format that an object of this name has, in any case: `.tar`, `.tar.gz`, `.tgz`,
    /// `.tar.zst`, `.tzst`, `.tfrecord`, `.tfrecords`, these with `.gz` or `.zlib`, `.zip`,
    /// `.lmdb`, `.mdb`, `.h5`, `.hdf5`, `.parquet`, `.arrow`, `.mds`, `.npy`, `.rec`, and
    /// TensorFlow's `.tfrecord-00000-of-01024`.
    pub fn of_shard(path: &str) -> Option<Self> {
        let is = |suffix| ends_with(path, suffix);
        let is_one_of = |suffixes: &[&str]| suffixes.iter().any(|suffix| ends_with(path, suffix));
        match () {
            () if is_one_of(&[".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst"]) => Some(Self::Tar),
            () if is_one_of(&TFRECORD) || is_numbered(path) => Some(Self::TfRecord),
            () if is(".zip") => Some(Self::Zip),
            () if is(".lmdb") || is(".mdb") => Some(Self::Lmdb),
            () if is(".h5") || is(".hdf5") => Some(Self::Hdf5),
            () if is(".parquet") => Some(Self::Parquet),
            () if is(".arrow") => Some(Self::Arrow),
            () if is(".mds") => Some(Self::Mds),
            () if is(".npy") => Some(Self::Npy),
            () if is(".rec") => Some(Self::RecordIo),
            () => None,
        }
    }

    /// Whether an object of this name can only be a shard, although the name does not contain the
    /// format, as in `train-00000-of-01024`.
    pub fn is_numbered_shard(path: &str) -> bool {
        numbered(path).is_some()
    }

    /// Whether an object of this name is a shard that is compressed as a whole. No sample of it
    /// could be read.
    pub fn is_compressed_shard(path: &str) -> bool {
        is_compressed(path)
    }

    /// Whether an object of this name belongs to shards and has no samples: an index, a list, a
    /// lock.
    pub fn is_companion(path: &str) -> bool {
        let name = path.rsplit('/').next().unwrap_or(path);
        let known = ["index.json", "shardindex.json", "state.json", "dataset_info.json", "dataset_dict.json"];
        known.contains(&name)
            || name == "lock.mdb"
            || [".idx", ".lst", "-lock"].iter().any(|suffix| ends_with(name, suffix))
    }

    /// Whether samples also depend on files next to the shards.
    pub(crate) const fn has_companions(self) -> bool {
        matches!(self, Self::Mds | Self::LitData | Self::Tokens)
    }

    /// Whether samples are parts of objects.
    pub const fn is_packed(self) -> bool {
        !matches!(self, Self::Files)
    }
}

/// Suffixes of TFRecord files.
const TFRECORD: [&str; 6] =
    [".tfrecord", ".tfrecords", ".tfrecord.gz", ".tfrecords.gz", ".tfrecord.zlib", ".tfrecords.zlib"];

/// TensorFlow's numbering of shards: `train.tfrecord-00000-of-01024`.
fn is_numbered(path: &str) -> bool {
    numbered(path).is_some_and(|name| ends_with(name, ".tfrecord") || ends_with(name, ".tfrecords"))
}

/// The text before `-00000-of-01024`.
fn numbered(path: &str) -> Option<&str> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (rest, of) = path.rsplit_once("-of-")?;
    let (name, number) = rest.rsplit_once('-')?;
    (digits(of) && digits(number)).then_some(name)
}

/// Suffixes of shards that are compressed as a whole, in ways that are not decompressed here.
const COMPRESSED: [&str; 10] = [
    ".mds.gz",
    ".mds.br",
    ".mds.bz2",
    ".mds.zstd",
    ".mds.snappy",
    ".tar.bz2",
    ".tbz2",
    ".tar.xz",
    ".txz",
    ".tar.lz4",
];

fn is_compressed(path: &str) -> bool {
    COMPRESSED.iter().any(|suffix| ends_with(path, suffix))
}

fn ends_with(path: &str, suffix: &str) -> bool {
    let start = path.len().checked_sub(suffix.len());
    start.and_then(|start| path.get(start..)).is_some_and(|end| end.eq_ignore_ascii_case(suffix))
}

/// The format of a dataset's objects, as far as their names show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DetectedFormat {
    /// The names show the format.
    Format(Format),
    /// They are shards (`train-00000-of-01024`). Their first bytes must show the format.
    Numbered,
    /// They are LitData's chunks, if an `index.json` is next to them.
    Chunks,
}

/// The format of a dataset of these objects, if none is set. It is packed if every object is a
/// shard of one kind, and else files. A mixture is reported.
///
/// # Errors
/// If every object is a compressed shard, which could only be read as files of meaningless bytes.
pub(crate) fn detect<'a>(
    base_url: &str,
    paths: impl Iterator<Item = &'a str> + Clone,
) -> Result<DetectedFormat, DatasetError> {
    let shards = paths.clone().filter(|path| !Format::is_companion(path));
    if shards.clone().next().is_some() && shards.clone().all(is_chunk) {
        return Ok(DetectedFormat::Chunks);
    }
    let mut found = shards.clone().map(Format::of_shard);
    match (found.next().flatten(), found.next()) {
        // Of several arrays, each is more likely a sample than a shard.
        (Some(Format::Npy), Some(_)) => return Ok(DetectedFormat::Format(Format::Files)),
        (Some(format), second) if second.into_iter().chain(found).all(|other| other == Some(format)) => {
            return Ok(DetectedFormat::Format(format));
        }
        _ => {}
    }
    if paths.clone().next().is_some() && paths.clone().all(Format::is_numbered_shard) {
        return Ok(DetectedFormat::Numbered);
    }
    if let Some(path) = paths.clone().next()
        && shards.clone().next().is_some()
        && shards.clone().all(is_compressed)
    {
        let path = shards.clone().next().unwrap_or(path);
        return Err(compressed(base_url, path));
    }
    let is_shard = |path: &&str| Format::of_shard(path).is_some() || is_compressed(path);
    let (shards, all) = (paths.clone().filter(is_shard).count(), paths.clone().count());
    if let Some(first) = paths.clone().find(is_shard) {
        let suffix = first.rsplit_once('.').map_or(first, |(_, suffix)| suffix);
        let pattern = format!("**/*.{suffix}");
        tracing::warn!(
            "{base_url}: {shards} of {all} objects are shards ({first}) and not all are of one kind: each \
             object is taken as one sample; choose them with {}, or leave them out with {}",
            setting("include").to(&pattern),
            setting("exclude").to(&pattern)
        );
    }
    Ok(DetectedFormat::Format(Format::Files))
}

/// Whether this is a name of LitData's: `chunk-0-0.bin`, or compressed `chunk-0-0.zstd.bin`.
fn is_chunk(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let numbers = name.strip_prefix("chunk-").and_then(|rest| rest.strip_suffix(".bin"));
    let numbers = numbers.map(|numbers| numbers.strip_suffix(".zstd").unwrap_or(numbers));
    numbers.and_then(|numbers| numbers.split_once('-')).is_some_and(|(rank, chunk)| {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number(rank) && is_number(chunk)
    })
}

/// The error for compressed shards.
pub(crate) fn compressed(base_url: &str, path: &str) -> DatasetError {
    let message = format!(
        "{base_url}: {path:?} is a compressed shard, so its samples cannot be read individually; \
         decompress it and index the result ({} takes it unchanged)",
        setting("format").to("files")
    );
    DatasetError::new(DatasetErrorKind::Unsupported, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_formats() {
        for format in Format::ALL {
            assert_eq!(Format::from_name(format.name()), Some(format));
        }
        assert_eq!(Format::from_name("auto"), None);
        for (path, format) in [
            ("a/b.tar", Some(Format::Tar)),
            ("B.TAR", Some(Format::Tar)),
            ("x.tfrecord", Some(Format::TfRecord)),
            ("x.tfrecords", Some(Format::TfRecord)),
            ("a/x.tfrecord-00000-of-01024", Some(Format::TfRecord)),
            ("x.tfrecord-of-1", None),
            ("train-00000-of-01024", None),
            ("train-0000x-of-01024", None),
            ("x.zip", Some(Format::Zip)),
            ("a/data.mdb", Some(Format::Lmdb)),
            ("a.LMDB", Some(Format::Lmdb)),
            ("a.h5", Some(Format::Hdf5)),
            ("a.hdf5", Some(Format::Hdf5)),
            ("train-00000-of-00002.parquet", Some(Format::Parquet)),
            ("shard.00000.mds", Some(Format::Mds)),
            ("x.arrow", Some(Format::Arrow)),
            ("x.npy", Some(Format::Npy)),
            ("train.rec", Some(Format::RecordIo)),
            ("x.bin", None),
            ("tar", None),
            ("x.tar.gz", Some(Format::Tar)),
            ("x.TGZ", Some(Format::Tar)),
            ("x.tfrecord.gz", Some(Format::TfRecord)),
            ("x.tar.xz", None),
            ("\u{e9}tar", None),
        ] {
            assert_eq!(Format::of_shard(path), format, "{path}");
        }
    }

    #[test]
    // semantics: SHARD-1
    fn only_shards_of_one_kind_are_packed() {
        let of = |paths: &[&'static str]| detect("/data", paths.iter().copied());
        assert_eq!(of(&["a.tar", "b/c.tar"]).unwrap(), DetectedFormat::Format(Format::Tar));
        assert_eq!(of(&["a.tfrecord", "b.tfrecords"]).unwrap(), DetectedFormat::Format(Format::TfRecord));
        assert_eq!(of(&["a.tfrecord-0-of-1", "b-0-of-1"]).unwrap(), DetectedFormat::Numbered);
        assert_eq!(of(&["train-00000-of-00002", "train-00001-of-00002"]).unwrap(), DetectedFormat::Numbered);
        for (companions, format) in [
            (&["a.tar", "a.tar.idx", "b.tar", "b.idx"][..], Format::Tar),
            (&["data.mdb", "lock.mdb"], Format::Lmdb),
            (&["x.lmdb", "x.lmdb-lock"], Format::Lmdb),
            (&["index.json", "shard.00000.mds"], Format::Mds),
            (&["dataset_info.json", "state.json", "data-00000-of-00001.arrow"], Format::Arrow),
            (&["x.npy"], Format::Npy),
            (&["a.idx", "a.lst", "a.rec", "b.rec"], Format::RecordIo),
        ] {
            assert_eq!(of(companions).unwrap(), DetectedFormat::Format(format), "{companions:?}");
        }
        assert_eq!(of(&["index.json", "a/chunk-0-0.bin", "chunk-0-1.bin"]).unwrap(), DetectedFormat::Chunks);
        assert_eq!(of(&["index.json", "chunk-0-0.zstd.bin"]).unwrap(), DetectedFormat::Chunks);
        assert!(of(&["index.json", "shard.00000.mds.zstd"]).is_err());
        for mixed in [
            &["x.npy", "y.npy"][..],
            &["chunk-1.bin"],
            &["index.json"],
            &["a.tar", "b.zip"],
            &["a-0-of-2", "a.json"],
            &["a.tar", "a.json"],
            &["a.jpg"],
            &["a.tar.xz", "b.jpg"],
            &[],
        ] {
            assert_eq!(of(mixed).unwrap(), DetectedFormat::Format(Format::Files), "{mixed:?}");
        }
        let error = of(&["a.tar.xz", "b.TBZ2"]).unwrap_err();
        assert_eq!(error.kind(), DatasetErrorKind::Unsupported);
        assert!(error.to_string().starts_with("/data: \"a.tar.xz\" is a compressed shard"), "{error}");
    }
}
