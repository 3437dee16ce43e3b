//! The data sources: directories, the tests' S3 server, Ceph. They are filled once per run, in all
//! formats that a selected contender reads.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail};
use foreread_benches::files::SyntheticSamples;
use foreread_benches::loaders::record::{SampleFormat, SourceGroup};
use foreread_tier_testing::store::HttpStore;
use serde_json::{Value, json};

use crate::contenders::{Contender, LoaderProcesses, converter};
use crate::results::{EpochTiming, RoundResult};

/// Lengths of the samples.
const LENGTHS: (u64, u64) = (90_000, 130_000);

/// Samples are slices of this many bytes of noise, more than a processor's cache holds.
const SPREAD: usize = 64 << 20;

/// All data sources of a run.
pub struct DataSources {
    home: PathBuf,
    store: Option<HttpStore>,
}

/// A data source that is filled and ready.
pub struct DataSource<'a> {
    pub group: SourceGroup,
    home: &'a Path,
    store: Option<&'a HttpStore>,
    /// The common fields of all jobs: the location of each format, and the credentials.
    job_template: Value,
}

impl DataSources {
    pub fn new(home: &Path) -> Self {
        Self { home: home.to_owned(), store: None }
    }

    /// Prepares a data source. `None` if it is not available.
    pub fn open(
        &mut self,
        group: SourceGroup,
        contenders: &[&Contender],
        libraries: &mut LoaderProcesses,
    ) -> Result<Option<DataSource<'_>>> {
        let mut formats = vec![SampleFormat::Raw];
        formats.extend(contenders.iter().map(|contender| contender.format));
        let mut job_template = match group {
            SourceGroup::Local => {
                let root = self.directories(group.samples(), &formats, libraries)?;
                let at = |format: SampleFormat| root.join(format.name());
                json!({
                    "local": true, "raw": at(SampleFormat::Raw), "mds": at(SampleFormat::Mds),
                    "chunks": at(SampleFormat::Chunks), "tar": at(SampleFormat::Tar),
                })
            }
            SourceGroup::Store(_) => {
                if self.store.is_none() {
                    let root = self.directories(group.samples(), &formats, libraries)?;
                    self.store = Some(start_store(&root, group.samples(), &formats)?);
                }
                let store = self.store.as_ref().context("the store was started")?;
                store.set_latency(Duration::ZERO);
                bucket(&store.endpoint(), "key", "secret")
            }
            SourceGroup::Ceph => {
                let Ok(job_template) = std::env::var("FOREREAD_BENCH_CEPH") else { return Ok(None) };
                let job_template: Value =
                    serde_json::from_str(&job_template).context("FOREREAD_BENCH_CEPH")?;
                let field =
                    |pointer| job_template.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
                let mut job_template =
                    bucket(field("/endpoint"), field("/full/access_key"), field("/full/secret_key"));
                self.release_memory()?;
                let root = self.directories(group.samples(), &formats, libraries)?;
                eprintln!("storing {} samples in Ceph", group.samples());
                (job_template["who"], job_template["from"]) = ("upload".into(), json!(root));
                libraries
                    .run_job("data", &job_template)?
                    .map_err(|why| anyhow!("cannot store samples in Ceph: {why}"))?;
                job_template
            }
        };
        job_template["catalog"] = json!(self.home.join(format!("{}.catalog", group.name())));
        if formats.contains(&SampleFormat::Tar) && libraries.has("ours")? {
            job_template["who"] = "catalog".into();
            libraries.run_job("ours", &job_template)?.map_err(|why| anyhow!("cannot index shards: {why}"))?;
        }
        if let (SourceGroup::Store(latency_ms), Some(store)) = (group, &self.store) {
            store.set_latency(Duration::from_millis(latency_ms));
        }
        let store = self.store.as_ref().filter(|_| matches!(group, SourceGroup::Store(_)));
        Ok(Some(DataSource { group, home: &self.home, store, job_template }))
    }

    /// Frees the memory and files of the previous data sources, because Ceph's objects need the
    /// memory.
    fn release_memory(&mut self) -> Result<()> {
        self.store = None;
        let root = self.root(SourceGroup::Local.samples());
        if root.exists() {
            std::fs::remove_dir_all(root)?;
        }
        Ok(())
    }

    fn root(&self, samples: usize) -> PathBuf {
        self.home.join(format!("of-{samples}"))
    }

    /// A directory with one subdirectory per format.
    fn directories(
        &self,
        samples: usize,
        formats: &[SampleFormat],
        libraries: &mut LoaderProcesses,
    ) -> Result<PathBuf> {
        let root = self.root(samples);
        for format in SampleFormat::ALL.into_iter().filter(|format| formats.contains(format)) {
            let (raw, to) = (root.join(SampleFormat::Raw.name()), root.join(format.name()));
            if to.exists() {
                continue;
            }
            eprintln!("making {samples} samples, {}", format.name());
            std::fs::create_dir_all(&to)?;
            let Some(converter) = converter(format) else {
                SyntheticSamples::new(samples, LENGTHS.0, LENGTHS.1, SPREAD).write(&to)?;
                continue;
            };
            if libraries.has(converter)? {
                let job = json!({"who": "convert", "raw": raw, "to": to});
                libraries.run_job(converter, &job)?.map_err(|why| anyhow!("{converter}: {why}"))?;
            }
        }
        // Otherwise the kernel's writeback would overlap the measurement.
        rustix::fs::syncfs(std::fs::File::open(&root)?)?;
        Ok(root)
    }
}

fn bucket(endpoint: &str, access: &str, secret: &str) -> Value {
    json!({
        "local": false, "endpoint": endpoint, "access": access, "secret": secret,
        "raw": "s3://raw/", "mds": "s3://mds/", "chunks": "s3://chunks/", "tar": "s3://tar/",
    })
}

/// A store with a bucket for each format. Samples are slices of noise. Shards are read into memory.
fn start_store(root: &Path, samples: usize, formats: &[SampleFormat]) -> Result<HttpStore> {
    let store = HttpStore::start();
    for format in SampleFormat::ALL.into_iter().filter(|format| formats.contains(format)) {
        store.bucket(format.name());
        if format == SampleFormat::Raw {
            for (name, sample) in SyntheticSamples::new(samples, LENGTHS.0, LENGTHS.1, SPREAD).iter() {
                store.put(format.name(), &name, sample);
            }
            continue;
        }
        for file in std::fs::read_dir(root.join(format.name()))? {
            let file = file?;
            let name = file.file_name();
            let name = name.to_str().context("a shard's name is not UTF-8")?;
            store.put(format.name(), name, std::fs::read(file.path())?);
        }
    }
    Ok(store)
}

impl DataSource<'_> {
    /// Resets the store's request counters.
    pub fn reset(&self) {
        if let Some(store) = self.store {
            store.reset();
        }
    }

    /// The job of a contender, for `peers/contend.py`.
    pub fn job(&self, contender: &Contender, setting: u32, limit: f64, later: u64) -> Value {
        let mut job = self.job_template.clone();
        (job["who"], job["setting"]) = (contender.function.into(), setting.into());
        (job["limit"], job["later"], job["home"]) = (limit.into(), later.into(), json!(self.home));
        // Loaders of shards keep them on a disk.
        job["keeps"] = (contender.format != SampleFormat::Raw).into();
        job
    }

    /// Parses a contender's response. An error if it did not deliver every sample.
    pub fn result(&self, answer: &Value) -> std::result::Result<RoundResult, String> {
        self.read(answer).map_err(|error| format!("{error:#}"))
    }

    fn read(&self, answer: &Value) -> Result<RoundResult> {
        let epochs: Vec<EpochTiming> = serde_json::from_value(answer["epochs"].clone())?;
        let first = answer["first"].as_f64().context("no first batch")?;
        let first_at = answer["first_at"].as_f64().context("no first batch")?;
        for epoch in &epochs {
            // Some loaders repeat a few samples, so that all workers have the same number.
            let (least, most) = (self.group.samples() as f64, self.group.samples() as f64 * 1.01);
            if !epoch.cut && !(least..=most).contains(&epoch.samples) {
                bail!("{} samples delivered of {}", epoch.samples, self.group.samples());
            }
        }
        let sent = self.store.and_then(|store| store.requests().first_sent);
        // Both processes share the wall clock only.
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        let since_sent = sent.map(|sent| first_at - (now - sent.elapsed().as_secs_f64()));
        Ok(RoundResult { epochs, first, since_sent, requests: self.store.map(HttpStore::requests) })
    }
}
