//! How samples are stored in objects, and how that is detected from object names.

use serde::{Deserialize, Serialize};
use std::collections::HashSet;

use foreread_types::setting;

use crate::{DatasetError, DatasetErrorKind};

/// Defines [`Format`] by its rows: a variant, the name that catalogs and the command line use, and
/// the suffixes of shards.
macro_rules! formats {
    ($($(#[$doc:meta])* $format:ident $name:literal [$($suffix:literal),*];)*) => {
        /// How samples are stored in objects.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        #[non_exhaustive]
        pub enum Format {
            $($(#[$doc])* $format,)*
        }

        impl Format {
            /// The values of the setting: `auto`, and the names of all formats.
            pub const CHOICES: &[&str] = &["auto", $($name,)*];

            /// All formats.
            pub const ALL: [Self; Self::CHOICES.len() - 1] = [$(Self::$format,)*];

            /// The name that catalogs and the command line use.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$format => $name,)*
                }
            }

            /// The suffixes of its shards.
            const fn suffixes(self) -> &'static [&'static str] {
                match self {
                    $(Self::$format => &[$($suffix,)*],)*
                }
            }
        }
    };
}

formats! {
    /// Each object is one sample.
    Files "files" [];
    /// Objects are tar archives as WebDataset writes them. A sample consists of consecutive members
    /// whose paths are equal up to the first dot of their last part. The text after that dot, in
    /// lower case, is the name of the member's field.
    Tar "tar" [".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst"];
    /// Objects are TFRecord files: each record is a sample.
    TfRecord "tfrecord" [
        ".tfrecord", ".tfrecords", ".tfrec",
        ".tfrecord.gz", ".tfrecords.gz", ".tfrec.gz",
        ".tfrecord.zlib", ".tfrecords.zlib", ".tfrec.zlib"
    ];
    /// Objects are zip archives: each member is a sample.
    Zip "zip" [".zip"];
    /// Objects are LMDB databases: each value is a sample.
    Lmdb "lmdb" [".lmdb", ".mdb"];
    /// Objects are HDF5 files: each row of a dataset is a sample, or each dataset.
    Hdf5 "hdf5" [".h5", ".hdf5"];
    /// Objects are Parquet files with an uncompressed column of bytes: each value is a sample.
    Parquet "parquet" [".parquet"];
    /// Objects are Arrow streams or files with a column of bytes: each value is a sample.
    Arrow "arrow" [".arrow", ".feather"];
    /// Objects are MosaicML Streaming shards (MDS), next to their `index.json`.
    Mds "mds" [".mds"];
    /// Objects are LitData chunks, next to their `index.json`.
    LitData "litdata" [];
    /// Objects are NumPy arrays: each row is a sample.
    Npy "npy" [".npy"];
    /// Objects are files of tokens (`.bin`, `.npy`, Megatron's `.bin` with its `.idx`): each window
    /// is a sample, or each document.
    Tokens "tokens" [];
    /// Objects are RecordIO files of MXNet: each record is a sample, or the image in it.
    RecordIo "recordio" [".rec"];
}

impl Format {
    /// The format with that [`name`](Self::name).
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// The packed format that an object of this name has, in any case. Names end in `.tar`,
    /// `.tar.gz`, `.tgz`, `.tar.zst`, `.tzst`, `.zip`, `.lmdb`, `.mdb`, `.h5`, `.hdf5`. Or they end
    /// in `.parquet`, `.arrow`, `.feather`, `.mds`, `.npy`, `.rec`. TensorFlow's end in
    /// `.tfrecord`, `.tfrecords`, `.tfrec`, these with `.gz` or `.zlib`, or in
    /// `.tfrecord-00000-of-01024`.
    pub fn of_shard(path: &str) -> Option<Self> {
        let has_suffix = |format: &Self| format.suffixes().iter().any(|suffix| ends_with(path, suffix));
        Self::ALL.into_iter().find(has_suffix).or_else(|| is_numbered(path).then_some(Self::TfRecord))
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

/// TensorFlow's numbering of shards: `train.tfrecord-00000-of-01024`.
fn is_numbered(path: &str) -> bool {
    numbered(path).is_some_and(|name| ends_with(name, ".tfrecord") || ends_with(name, ".tfrecords"))
}

/// The text before `-00000-of-01024`.
pub(crate) fn numbered(path: &str) -> Option<&str> {
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
/// shard of one kind, and else files. Files that accompany shards do not count. A mixture is
/// reported.
///
/// # Errors
/// If every object is a compressed shard, which could only be read as files of meaningless bytes.
pub(crate) fn detect<'a>(
    base_url: &str,
    paths: impl Iterator<Item = &'a str> + Clone,
) -> Result<DetectedFormat, DatasetError> {
    let (data, all) = data(paths, false);
    if data.is_empty() {
        return Ok(DetectedFormat::Format(Format::Files));
    }
    if data.iter().all(|path| is_chunk(path)) {
        return Ok(DetectedFormat::Chunks);
    }
    match kinds(&data)[..] {
        // Of several arrays, each is more likely a sample than a shard.
        [(Some(Format::Npy), count)] if count > 1 => return Ok(DetectedFormat::Format(Format::Files)),
        [(Some(format), _)] => return Ok(DetectedFormat::Format(format)),
        _ => {}
    }
    if data.iter().all(|path| Format::is_numbered_shard(path)) {
        return Ok(DetectedFormat::Numbered);
    }
    if data.iter().all(|path| is_compressed(path)) {
        return Err(compressed(base_url, data[0]));
    }
    let shards = data.iter().filter(|path| Format::of_shard(path).is_some() || is_compressed(path));
    let shards: Vec<&&str> = shards.collect();
    if let Some(first) = most_frequent(&shards) {
        let ending = first.rfind('.').map_or("", |dot| &first[dot..]);
        let pattern = format!("**/*{ending}");
        tracing::warn!(
            "{base_url}: {} of {all} objects are shards ({first}) and not all are of one kind: each object \
             is taken as one sample; choose those of one kind with {}, or leave them out with {}",
            shards.len(),
            setting("include").to(&pattern),
            setting("exclude").to(&pattern)
        );
    }
    Ok(DetectedFormat::Format(Format::Files))
}

/// The kinds of these objects, with their numbers. `None` is a name that is of no shard.
fn kinds(data: &[&str]) -> Vec<(Option<Format>, usize)> {
    let mut kinds: Vec<(Option<Format>, usize)> = Vec::new();
    for path in data {
        let kind = Format::of_shard(path);
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, count)) => *count += 1,
            None => kinds.push((kind, 1)),
        }
    }
    kinds
}

/// A shard of the kind that most of these are of.
fn most_frequent<'a>(shards: &[&&'a str]) -> Option<&'a str> {
    let all: Vec<&str> = shards.iter().map(|path| **path).collect();
    let (most, _) = kinds(&all).into_iter().rev().max_by_key(|(_, count)| *count)?;
    all.into_iter().find(|path| Format::of_shard(path) == most)
}

/// The objects without the files that accompany shards, and the number of all. If there would be
/// none left, or few in comparison, those files are the data, unless the format is known to be
/// packed.
pub(crate) fn data<'a>(
    paths: impl Iterator<Item = &'a str> + Clone,
    is_packed: bool,
) -> (Vec<&'a str>, usize) {
    /// More files for each shard than any writer makes.
    const MOST_BESIDE: usize = 4;
    let all = paths.clone().count();
    let tars: HashSet<&str> = paths.clone().filter_map(stem_of_tar).collect();
    let data: Vec<&str> = paths.clone().filter(|path| !accompanies(path, &tars)).collect();
    let has_shards = data.iter().any(|path| is_named_as_shard(path));
    let is_beside = has_shards && all - data.len() <= (data.len() + 2) * MOST_BESIDE;
    match is_beside || is_packed && !data.is_empty() {
        true => (data, all),
        false => (paths.filter(|path| !Format::is_companion(path)).collect(), all),
    }
}

/// Whether a name is that of a shard of some format.
pub(crate) fn is_named_as_shard(path: &str) -> bool {
    let is_shard = Format::of_shard(path).is_some() || Format::is_numbered_shard(path);
    is_shard || is_compressed(path) || is_chunk(path)
}

/// The path of a tar archive without its ending.
fn stem_of_tar(path: &str) -> Option<&str> {
    ends_with(path, ".tar").then(|| &path[..path.len() - ".tar".len()])
}

/// Whether a file next to shards has no samples: an index, a checksum, a description, a mark of
/// Spark's. `tars` are the paths of tar archives without their endings, next to which img2dataset
/// writes a table.
fn accompanies(path: &str, tars: &HashSet<&str>) -> bool {
    const ENDINGS: [&str; 19] = [
        ".json", ".jsonl", ".yaml", ".yml", ".toml", ".xml", ".md", ".txt", ".csv", ".tsv", ".html", ".log",
        ".md5", ".sha1", ".sha256", ".crc", ".index", ".pbtxt", ".py",
    ];
    let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
    let stem = name.split('.').next().unwrap_or(name);
    let is_shard = Format::of_shard(name).is_some();
    // Tables of logs and of unfinished writes.
    let is_of_tables = |part: &str| ["_delta_log", "_temporary", "_meta"].contains(&part);
    Format::is_companion(path)
        || directory.split('/').any(|part| is_of_tables(part) || part.starts_with('_') && !is_shard)
        || !is_shard && name.starts_with('_')
        || ENDINGS.iter().any(|ending| ends_with(name, ending))
        || ["README", "LICENSE", "LICENCE", "NOTICE", "SHA256SUMS", "MD5SUMS"].contains(&stem)
        || path.strip_suffix(".parquet").is_some_and(|stem| tars.contains(stem))
}

/// Whether the ending of a name says that the file is one sample, or a part of one. The first bytes
/// of others are looked at.
pub(crate) fn is_named_as_sample(path: &str) -> bool {
    const ENDINGS: [&str; 64] = [
        "nc",
        "nc4",
        "cdf",
        "h5ad",
        "loom",
        "hdf",
        "he5",
        "keras",
        "ckpt",
        "jpg",
        "jpeg",
        "jpe",
        "png",
        "ppm",
        "pgm",
        "bmp",
        "tif",
        "tiff",
        "webp",
        "gif",
        "jp2",
        "jxl",
        "avif",
        "heic",
        "dng",
        "exr",
        "dcm",
        "nii",
        "mha",
        "wav",
        "flac",
        "mp3",
        "ogg",
        "opus",
        "m4a",
        "aac",
        "mp4",
        "avi",
        "mkv",
        "mov",
        "webm",
        "mpg",
        "mpeg",
        "txt",
        "json",
        "jsonl",
        "xml",
        "csv",
        "tsv",
        "html",
        "pdf",
        "pt",
        "pth",
        "pkl",
        "pickle",
        "npz",
        "npy",
        "safetensors",
        "gz",
        "zst",
        "xz",
        "bz2",
        "ply",
        "las",
    ];
    let ending = path.rsplit('/').next().and_then(|name| name.rsplit_once('.')).map(|(_, ending)| ending);
    ending.is_some_and(|ending| ENDINGS.iter().any(|known| ending.eq_ignore_ascii_case(known)))
}

/// Whether only the first bytes of a file of this name show whether it is a shard: MATLAB's files
/// are HDF5 since version 7.3.
pub(crate) fn may_be_a_shard(path: &str) -> bool {
    ends_with(path, ".mat")
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

    /// As Spark, the hub of Hugging Face, img2dataset, TFDS and WebDataset write them.
    #[test]
    // semantics: SHARD-1
    fn files_next_to_shards_do_not_change_the_format() {
        for (paths, format) in [
            (
                &["_SUCCESS", "_committed_7", "part-0.parquet", "part-1.parquet", "_meta/x"][..],
                Format::Parquet,
            ),
            (&["README.md", "dataset_infos.json", "data/train-00000-of-00001.parquet"], Format::Parquet),
            (&["00000.tar", "00000.parquet", "00000_stats.json", "00001.tar", "00001.parquet"], Format::Tar),
            (&["features.json", "label.labels.txt", "x.tfrecord-00000-of-00001"], Format::TfRecord),
            (&["a.tar", "a.tar.md5", "a.tar.index", "_meta/info.yaml", "LICENSE"], Format::Tar),
            (&["train.tfrec", "sample_submission.csv"], Format::TfRecord),
            (&["a.feather", "a.feather.crc"], Format::Arrow),
        ] {
            let found = detect("/data", paths.iter().copied()).unwrap();
            assert_eq!(found, DetectedFormat::Format(format), "{paths:?}");
        }
        // Of a thousand descriptions and one archive, the descriptions are the data.
        let many: Vec<String> = (0..1000).map(|number| format!("{number}.json")).collect();
        let many = many.iter().map(String::as_str).chain(["all.tar"]);
        assert_eq!(detect("/data", many).unwrap(), DetectedFormat::Format(Format::Files));
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
            (&["a.tar", "a.json"], Format::Tar),
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
            &["a.tar", "a.jpg", "a.json"],
            &["a.tar", "b.parquet"],
            &["a.json", "README.md"],
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
