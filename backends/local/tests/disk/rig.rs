//! A directory, its datasets and their expected contents.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use foreread_local::disk::{DatasetOnDisk, DiskConfig, DiskTier};
use foreread_tier::{CacheTier, HeapBuffers, Lookup, Object, ReadRequest, Sample, Span, TierError};
use foreread_tier_testing::{KnownSample, NEVER, content};
use foreread_types::{DatasetId, DatasetIdentity, SampleId, SampleKey, Tick};

/// Two datasets of 4,000 samples.
pub fn datasets() -> [DatasetOnDisk; 2] {
    [dataset(1), dataset(2)]
}

pub fn dataset(print: u128) -> DatasetOnDisk {
    DatasetOnDisk { identity: DatasetIdentity(print), samples: 4000, bytes: 1 << 30 }
}

pub fn config(directory: &Path, capacity: u64) -> DiskConfig {
    DiskConfig::new([(directory.to_owned(), capacity)]).with_reader(crate::reader())
}

pub fn open(directory: &Path, capacity: u64) -> DiskTier {
    open_as(config(directory, capacity)).unwrap()
}

pub fn open_as(config: DiskConfig) -> Result<DiskTier, TierError> {
    DiskTier::open(config, &datasets(), Arc::new(HeapBuffers))
}

/// This user's cache in a directory.
pub fn root(directory: &Path) -> PathBuf {
    directory.join(format!("foreread-cache-{}", rustix::process::geteuid().as_raw()))
}

/// The cache of the dataset `print` in a directory.
pub fn place(directory: &Path, print: u128) -> PathBuf {
    root(directory).join(DatasetIdentity(print).to_string())
}

/// The sample `id` of dataset 0 with `size` bytes. Its content depends on both.
pub fn sample(id: u64, size: u64) -> KnownSample {
    let path = format!("samples/{id}");
    let content = content(9, &path, size);
    let object = Object { path: path.into(), size, version: None };
    KnownSample { key: SampleKey::new(DatasetId(0), SampleId(id)), object, content }
}

/// A fixed length per sample.
pub fn size_of(id: u64) -> u64 {
    [0, 1, 100, 4032, 4033, 20_000, 70_001, 110_000][(id % 8) as usize] + id / 8 % 7
}

pub fn known(id: u64) -> KnownSample {
    sample(id, size_of(id))
}

pub fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(NEVER, future).await.expect("it hangs") })
}

/// Stores a sample and waits until it is written. `None` if it does not fit.
pub async fn store(tier: &DiskTier, known: &KnownSample) -> Option<Result<(), TierError>> {
    let room = tier.reserve(tier.footprint().of(known.object.size))?;
    Some(tier.store(room, known.key, Sample::uncharged(known.content.clone())).await)
}

pub async fn read(tier: &DiskTier, known: &KnownSample) -> Result<Bytes, TierError> {
    let object = known.object.clone();
    let request = ReadRequest::new(known.key, object, Span::Whole, Tick(0));
    foreread_tier::Tier::read(tier, Arc::new(request)).await
}

pub fn is_stored(tier: &DiskTier, known: &KnownSample) -> bool {
    matches!(tier.lookup(known.key), Lookup::Stored)
}

/// Reads all cached samples of dataset 0. Returns the number of correct ones, the others are
/// errors.
///
/// # Panics
/// If one is wrong.
pub async fn verify(tier: &DiskTier, known: impl Fn(u64) -> KnownSample) -> u64 {
    let mut right = 0;
    for id in tier.samples(DatasetId(0)) {
        let known = known(id.0);
        match read(tier, &known).await {
            Ok(bytes) => {
                assert!(bytes == known.content, "sample {id}: wrong bytes");
                right += 1;
            }
            Err(error) => {
                let stays = is_stored(tier, &known);
                assert_eq!(stays, !error.kind().is_loss(), "sample {id}: {error}");
            }
        }
    }
    right
}

/// The allocated bytes of a directory and everything below it.
pub fn taken(path: &Path) -> u64 {
    // A segment may be removed meanwhile.
    let Ok(metadata) = fs::symlink_metadata(path) else { return 0 };
    let below = match metadata.is_dir() {
        true => fs::read_dir(path).unwrap().map(|entry| taken(&entry.unwrap().path())).sum(),
        false => 0,
    };
    metadata.blocks() * 512 + below
}

/// The files below a directory, indexes first, as a crash leaves them.
pub fn files(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort_by_key(|path| (path.extension().is_some(), path.clone()));
    found
}

/// Copies a cache in its current state.
pub fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        // Private, as a cache's directories are, whatever the umask.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(target.parent().unwrap()).unwrap();
        match fs::copy(&file, &target) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {} // just removed
            other => drop(other.unwrap()),
        }
    }
}

pub fn seed() -> u64 {
    let seed = std::env::var("FOREREAD_TEST_SEED").ok().map_or_else(
        || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64,
        |text| text.parse().unwrap(),
    );
    println!("FOREREAD_TEST_SEED={seed}");
    seed
}

/// Runs a command and returns whether it succeeded.
pub fn command(words: &[&str]) -> bool {
    let output = std::process::Command::new(words[0]).args(&words[1..]).output();
    output.is_ok_and(|output| output.status.success())
}

/// A separate file system, unmounted at the end.
pub struct Mount(pub tempfile::TempDir);

impl Mount {
    /// A tmpfs of `bytes`. `None` where that is not permitted.
    pub fn tmpfs(bytes: u64) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let options = format!("size={bytes}");
        let path = directory.path().to_str().unwrap().to_owned();
        command(&["mount", "-t", "tmpfs", "-o", &options, "tmpfs", &path]).then_some(Self(directory))
    }

    /// An ext4 of `bytes` in a file.
    pub fn ext4(bytes: u64) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        fs::File::create(&image).unwrap().set_len(bytes).unwrap();
        let target = directory.path().join("mounted");
        fs::create_dir(&target).unwrap();
        let (image, target) = (image.to_str().unwrap().to_owned(), target.to_str().unwrap().to_owned());
        let made = command(&["mkfs.ext4", "-q", "-F", "-m", "0", &image])
            && command(&["mount", "-o", "loop", &image, &target]);
        made.then_some(Self(directory))
    }

    pub fn path(&self) -> PathBuf {
        let below = self.0.path().join("mounted");
        if below.exists() { below } else { self.0.path().to_owned() }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        command(&["umount", "-l", self.path().to_str().unwrap()]);
    }
}

static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Collects this program's warnings from now on.
pub fn listen() {
    // Another test of this program may already collect them.
    let _ = tracing::subscriber::set_global_default(Listener);
}

/// The warnings about a directory so far.
pub fn warnings(directory: &Path) -> Vec<String> {
    let about = directory.to_str().unwrap();
    WARNINGS.lock().unwrap().iter().filter(|line| line.contains(about)).cloned().collect()
}

struct Listener;

impl tracing::Subscriber for Listener {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn event(&self, event: &tracing::Event<'_>) {
        struct Line(String);
        impl tracing::field::Visit for Line {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!("{field}={value:?} ");
            }
        }
        let mut line = Line(String::new());
        event.record(&mut line);
        WARNINGS.lock().unwrap().push(line.0);
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}
