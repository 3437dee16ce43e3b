//! Finds samples in any bytes with each parser. The result is samples within the bytes, or an
//! error of one line.
//!
//! The first byte of an input selects the parser. For MDS and LitData two bytes follow: the length
//! of the `index.json` that stands before the shard.
#![no_main]

use bytes::Bytes;
use foreread_formats::tokens::WindowOptions;
use foreread_formats::{
    Extents, FormatError, FoundSamples, arrow_stream, hdf5, litdata, lmdb, mds, megatron, npy, parquet,
    tokens,
};
use futures::executor::block_on;
use libfuzzer_sys::fuzz_target;

type Found = Result<FoundSamples, FormatError>;

fn windows() -> WindowOptions {
    WindowOptions { window: 3, stride: 2, dtype: String::new() }
}

/// All datasets of a file, with the chunks of the first ones.
fn all_of_hdf5(bytes: &Bytes) -> Found {
    let size = bytes.len() as u64;
    for dataset in block_on(hdf5::datasets(bytes))?.iter().take(8) {
        let Ok(chunks) = block_on(hdf5::chunks(bytes, &dataset.path)) else { continue };
        assert!(
            chunks.iter().all(|chunk| chunk.address.checked_add(chunk.size).is_some_and(|end| end <= size))
        );
    }
    let mut options = hdf5::Hdf5Options::default();
    options.whole = true;
    block_on(hdf5::index(bytes, &options))
}

/// The first two datasets of a file as fields of one sample.
fn joined_of_hdf5(bytes: &Bytes) -> Found {
    let mut paths = block_on(hdf5::datasets(bytes))?.into_iter().map(|dataset| dataset.path);
    let mut options = hdf5::Hdf5Options::default();
    options.dataset = paths.next();
    options.joined = paths.take(1).collect();
    block_on(hdf5::index(bytes, &options))
}

/// The `index.json` and the shard after it.
fn split(bytes: &Bytes) -> (Bytes, Bytes) {
    let (length, rest) = match bytes.first_chunk() {
        Some(length) => (u16::from_le_bytes(*length).into(), bytes.slice(2..)),
        None => (0, Bytes::new()),
    };
    let at = rest.len().min(length);
    (rest.slice(..at), rest.slice(at..))
}

/// The first shard of the index.
fn of_mds(index: &[u8], shard: &Bytes) -> Found {
    let shards = mds::parse_index(index)?;
    let listed = shards.first().ok_or_else(|| FormatError::damaged(0, "no shard"))?;
    block_on(mds::index(shard, listed, None))
}

/// The first chunk of the index: its samples, or windows of its tokens.
fn of_litdata(index: &[u8], chunk: &Bytes) -> Found {
    let index = litdata::parse_index(index)?;
    let listed = index.chunks.first().ok_or_else(|| FormatError::damaged(0, "no chunk"))?;
    match index.tokens {
        Some(_) => block_on(litdata::windows(chunk, &index, listed, &windows())),
        None => block_on(litdata::index(chunk, &index, listed, None)),
    }
}

fn check(found: Found, size: u64) {
    let found = match found {
        Ok(found) => found,
        Err(error) => return assert!(!error.to_string().contains('\n'), "{error}"),
    };
    match (&found.extents, &found.made) {
        (Extents::Rows(rows), Some(made)) => {
            assert!(made.is_ordered() && made.rows.len() == rows.len());
            assert!(rows.iter().enumerate().all(|(row, extent)| made.fits(row, *extent, size)));
        }
        (Extents::Rows(rows), None) => {
            assert!(
                rows.iter().all(|(start, length)| start.checked_add(*length).is_some_and(|end| end <= size))
            );
        }
        (Extents::Runs(runs), made) => {
            assert!(made.is_none());
            assert!(runs.iter().all(|run| run.count == 0 || run.end().is_some_and(|end| end <= size)));
        }
    }
    let count = found.len();
    assert!(found.keys.is_none_or(|keys| keys.len() as u64 == count));
    assert!(found.fields.is_none_or(|fields| fields.len() as u64 == count));
    assert!(found.columns.iter().all(|column| column.values.len() as u64 == count));
}

fuzz_target!(|input: &[u8]| {
    let Some((parser, bytes)) = input.split_first() else { return };
    let bytes = &Bytes::copy_from_slice(bytes);
    let size = bytes.len() as u64;
    match parser {
        0 => check(block_on(lmdb::index(bytes, &lmdb::LmdbOptions::default())), size),
        1 => check(block_on(hdf5::index(bytes, &hdf5::Hdf5Options::default())), size),
        2 => check(all_of_hdf5(bytes), size),
        3 => check(block_on(parquet::index(bytes, &parquet::ParquetOptions::default())), size),
        4 => check(block_on(arrow_stream::index(bytes, &arrow_stream::ArrowOptions::default())), size),
        5 => check(block_on(npy::index(bytes)), size),
        6 => check(block_on(tokens::npy(bytes, &windows())), size),
        7 => check(block_on(megatron::documents(bytes, size)), size),
        8 => {
            let (index, shard) = split(bytes);
            check(of_mds(&index, &shard), shard.len() as u64);
        }
        9 => {
            let (index, chunk) = split(bytes);
            check(of_litdata(&index, &chunk), chunk.len() as u64);
        }
        10 => check(joined_of_hdf5(bytes), size),
        11 => check(block_on(megatron::packed(bytes, size, &megatron::PackOptions::new(3))), size),
        _ => {}
    }
});
