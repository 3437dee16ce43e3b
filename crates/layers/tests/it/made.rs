//! Samples that are made from stored bytes, read through all layers.

use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use foreread_layers::{RetryPolicy, Stack};
use foreread_tier::{ErrorKind, OriginTier, ReadRequest, Span, StoredPart, Tier};
use foreread_tier_testing::{FailingTier, FakeOrigin, Fault, When};
use foreread_types::{DatasetId, Decoder, Recipe, SampleId, SampleKey, Tick};

/// Bytes that become a tenth of their length.
fn plain(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| ((at / 16 * 7 + seed) % 251) as u8).collect()
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut writer = ZlibEncoder::new(Vec::new(), Compression::default());
    writer.write_all(bytes).unwrap();
    writer.finish().unwrap()
}

/// An object of compressed pieces, and the part that is each piece.
fn object(pieces: &[Vec<u8>]) -> (Vec<u8>, Vec<StoredPart>) {
    let (mut bytes, mut parts) = (b"head".to_vec(), Vec::new());
    for piece in pieces {
        let stored = zlib(piece);
        let start = bytes.len() as u64;
        let length = piece.len() as u64;
        parts.push(StoredPart {
            object: None,
            stored: start..start + stored.len() as u64,
            recipe: Recipe::new([Decoder::Zlib], length).unwrap(),
            delivered: 0..length,
        });
        bytes.extend(stored);
    }
    (bytes, parts)
}

fn origin(bytes: &[u8]) -> FakeOrigin {
    FakeOrigin::of_contents([("shard", Bytes::copy_from_slice(bytes))])
}

fn request(origin: &FakeOrigin, parts: &[StoredPart]) -> ReadRequest {
    let key = SampleKey::new(DatasetId(0), SampleId(3));
    ReadRequest::new(key, origin.object(SampleId(0)), Span::Made(parts.into()), Tick(1))
}

#[tokio::test]
// semantics: FORMAT-5
async fn parts_are_decoded_cut_and_joined() {
    // Decoded by the reading task, and by a thread.
    for length in [100, 200_000] {
        let pieces = [plain(1, length), plain(2, length), plain(3, 50)];
        let (bytes, mut parts) = object(&pieces);
        parts[1].delivered = 7..length as u64 - 9;
        let origin = origin(&bytes);
        let stack = Stack::new(0);
        let layered = stack.wrap(Arc::new(origin.clone()));
        for parts in [&parts[..1], &parts[1..2], &parts[..]] {
            let request = request(&origin, parts);
            let expected: Vec<u8> = parts
                .iter()
                .flat_map(|part| {
                    let at = object_index(part, &pieces, &bytes);
                    pieces[at][part.delivered.start as usize..part.delivered.end as usize].to_vec()
                })
                .collect();
            assert_eq!(request.len(), expected.len() as u64);
            let before = stack.meter.read().bytes;
            let answer = layered.read(Arc::new(request.clone())).await.unwrap();
            assert!(answer == expected, "{length}");
            // The stored bytes were read and counted. Bytes between parts may be read with them.
            assert_eq!(stack.meter.read().bytes - before, request.stored_len());
            assert!(request.stored_len() < request.len().max(200));
        }
    }
}

/// The piece that a part was made of.
fn object_index(part: &StoredPart, pieces: &[Vec<u8>], bytes: &[u8]) -> usize {
    let stored = &bytes[part.stored.start as usize..part.stored.end as usize];
    pieces.iter().position(|piece| zlib(piece) == stored).unwrap()
}

/// Streams of samples held all threads of a runtime, and waited for samples that no thread decoded.
#[test]
// semantics: FORMAT-5
fn sample_is_decoded_while_all_threads_are_held() {
    let builder = &mut tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().max_blocking_threads(1).build().unwrap();
    let (release, held) = std::sync::mpsc::channel::<()>();
    runtime.spawn_blocking(move || held.recv());
    let (bytes, parts) = object(&[plain(1, 200_000)]);
    let origin = origin(&bytes);
    let layered = Stack::bare().wrap(Arc::new(origin.clone()));
    let answer = runtime.block_on(layered.read(Arc::new(request(&origin, &parts)))).unwrap();
    assert!(answer == plain(1, 200_000));
    drop(release);
}

#[tokio::test(start_paused = true)]
// semantics: FORMAT-5
async fn failed_part_is_read_again() {
    let (bytes, parts) = object(&[plain(1, 1000), plain(2, 1000)]);
    let origin = origin(&bytes);
    let failing: Arc<dyn OriginTier> = Arc::new(
        FailingTier::new(Arc::new(origin.clone())).on(When::Read(0), Fault::Error(ErrorKind::Transient)),
    );
    let stack = Stack::bare().with_retry(RetryPolicy::default());
    let answer = stack.wrap(failing).read(Arc::new(request(&origin, &parts))).await.unwrap();
    assert_eq!(answer, [plain(1, 1000), plain(2, 1000)].concat());
    assert_eq!(origin.counts().order().len(), 2);
}

#[tokio::test]
// semantics: FORMAT-5
async fn damaged_bytes_are_an_error_that_names_their_place() {
    for length in [1000, 100_000] {
        let (mut bytes, parts) = object(&[plain(1, length)]);
        bytes[4 + 20] ^= 1;
        let origin = origin(&bytes);
        let layered = Stack::new(0).wrap(Arc::new(origin.clone()));
        let error = layered.read(Arc::new(request(&origin, &parts))).await.unwrap_err();
        assert_eq!((error.kind(), error.object()), (ErrorKind::Corrupt, Some("shard")));
        let text = error.to_string();
        assert!(text.contains(&format!("4..{}", bytes.len())) && text.contains("zlib"), "{text}");
        assert!(!text.contains('\n'), "{text}");
        assert_eq!(origin.counts().order().len(), 2, "once more, and no third time");
    }
}

/// A flipped bit on the way ended the run, although the object was intact.
#[tokio::test]
// semantics: FORMAT-5
async fn bytes_that_were_damaged_on_the_way_are_read_again() {
    let (bytes, parts) = object(&[plain(1, 1000)]);
    let origin = origin(&bytes);
    let failing: Arc<dyn OriginTier> =
        Arc::new(FailingTier::new(Arc::new(origin.clone())).on(When::Read(0), Fault::Flip));
    let answer = Stack::bare().wrap(failing).read(Arc::new(request(&origin, &parts))).await.unwrap();
    assert_eq!(answer, plain(1, 1000));
}

#[tokio::test]
// semantics: FORMAT-5
async fn impossible_parts_are_refused_before_a_read() {
    let (bytes, parts) = object(&[plain(1, 1000)]);
    let origin = origin(&bytes);
    let layered = Stack::new(0).wrap(Arc::new(origin.clone()));
    let part = |change: fn(&mut StoredPart)| {
        let mut part = parts[0].clone();
        change(&mut part);
        part
    };
    for part in [
        part(|part| part.stored.end += 1),
        part(|part| part.stored.end = part.stored.start),
        part(|part| part.delivered.end += 1),
        part(|part| part.delivered = 9..9),
        part(|part| part.recipe = Recipe::new([Decoder::Zlib], 1 << 40).unwrap()),
    ] {
        let error = layered.read(Arc::new(request(&origin, std::slice::from_ref(&part)))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{part:?}: {error}");
    }
    assert_eq!(origin.counts().order().len(), 0);
    // Without the layers nothing decodes.
    let error = origin.read(Arc::new(request(&origin, &parts))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}
