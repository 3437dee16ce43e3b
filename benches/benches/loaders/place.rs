//! Where the samples lie: directories, the own store, Ceph; made once for a run, in all forms that somebody reads.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail};
use foreread_benches::files::Samples;
use foreread_tier_testing::store::Store;
use serde_json::{Value, json};

use crate::contenders::{Contender, Form, Libraries};
use crate::outcome::{Epoch, Outcome};

/// Samples, and their lengths. Ceph keeps its objects in memory, in four forms, and is slow: it has fewer.
const SAMPLES: usize = 20_000;
const SAMPLES_IN_CEPH: usize = 5_000;
const LENGTHS: (u64, u64) = (90_000, 130_000);

/// They are cut out of so many bytes of noise, which no processor's cache holds.
const SPREAD: usize = 64 << 20;

/// A place that is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Local,
    /// The own store, whose answers are so many milliseconds late.
    Store(u64),
    Ceph,
}

impl Group {
    pub const ALL: [Self; 4] = [Self::Local, Self::Store(0), Self::Store(40), Self::Ceph];

    pub fn name(self) -> String {
        match self {
            Self::Local => "local".to_owned(),
            Self::Store(late) => format!("s3-{late}ms"),
            Self::Ceph => "ceph".to_owned(),
        }
    }

    pub fn title(self) -> String {
        match self {
            Self::Local => format!("{SAMPLES} page-cached files"),
            Self::Store(late) => format!("{SAMPLES} objects, own S3 store over loopback, {late} ms late"),
            Self::Ceph => format!("{SAMPLES_IN_CEPH} objects, Ceph's S3 gateway over loopback"),
        }
    }

    pub fn samples(self) -> usize {
        if self == Self::Ceph { SAMPLES_IN_CEPH } else { SAMPLES }
    }

    /// How often each contender has its turn, the trial apart.
    pub fn rounds(self) -> usize {
        if self == Self::Local { 3 } else { 2 }
    }
}

/// All places of a run.
pub struct Places {
    home: PathBuf,
    store: Option<Store>,
}

/// One of them, ready to be read.
pub struct Place<'a> {
    pub group: Group,
    home: &'a Path,
    store: Option<&'a Store>,
    /// What a job says of it: where each form lies, and how one gets in.
    told: Value,
}

impl Places {
    pub fn new(home: &Path) -> Self {
        Self { home: home.to_owned(), store: None }
    }

    /// Makes what is missing; nothing where there is no such place.
    pub fn open(
        &mut self,
        group: Group,
        contenders: &[&Contender],
        libraries: &mut Libraries,
    ) -> Result<Option<Place<'_>>> {
        let mut forms = vec![Form::Raw];
        forms.extend(contenders.iter().map(|contender| contender.form));
        let mut told = match group {
            Group::Local => {
                let root = self.directories(SAMPLES, &forms, libraries)?;
                let at = |form: Form| root.join(form.name());
                json!({"local": true, "raw": at(Form::Raw), "mds": at(Form::Mds), "chunks": at(Form::Chunks), "tar": at(Form::Tar)})
            }
            Group::Store(_) => {
                if self.store.is_none() {
                    let root = self.directories(SAMPLES, &forms, libraries)?;
                    self.store = Some(stored(&root, &forms)?);
                }
                let store = self.store.as_ref().context("the store was started")?;
                store.set_latency(Duration::ZERO);
                bucket(&store.endpoint(), "key", "secret")
            }
            Group::Ceph => {
                let Ok(told) = std::env::var("FOREREAD_BENCH_CEPH") else { return Ok(None) };
                let told: Value = serde_json::from_str(&told).context("FOREREAD_BENCH_CEPH")?;
                let say = |pointer| told.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
                let mut told = bucket(say("/endpoint"), say("/full/access_key"), say("/full/secret_key"));
                self.leave()?;
                let root = self.directories(SAMPLES_IN_CEPH, &forms, libraries)?;
                eprintln!("storing {SAMPLES_IN_CEPH} samples in Ceph");
                (told["who"], told["from"]) = ("upload".into(), json!(root));
                libraries.ask("data", &told)?.map_err(|why| anyhow!("Ceph cannot be filled: {why}"))?;
                told
            }
        };
        told["catalog"] = json!(self.home.join(format!("{}.catalog", group.name())));
        if forms.contains(&Form::Tar) && libraries.has("ours")? {
            told["who"] = "catalog".into();
            libraries.ask("ours", &told)?.map_err(|why| anyhow!("shards cannot be indexed: {why}"))?;
        }
        if let (Group::Store(late), Some(store)) = (group, &self.store) {
            store.set_latency(Duration::from_millis(late));
        }
        let store = self.store.as_ref().filter(|_| matches!(group, Group::Store(_)));
        Ok(Some(Place { group, home: &self.home, store, told }))
    }

    /// Gives back what the places before hold: Ceph's objects are in memory, and so is what is kept of them.
    fn leave(&mut self) -> Result<()> {
        self.store = None;
        let root = self.root(SAMPLES);
        if root.exists() {
            std::fs::remove_dir_all(root)?;
        }
        Ok(())
    }

    fn root(&self, samples: usize) -> PathBuf {
        self.home.join(format!("of-{samples}"))
    }

    /// A directory that has one for each form.
    fn directories(&self, samples: usize, forms: &[Form], libraries: &mut Libraries) -> Result<PathBuf> {
        let root = self.root(samples);
        for form in Form::ALL.into_iter().filter(|form| forms.contains(form)) {
            let (raw, to) = (root.join(Form::Raw.name()), root.join(form.name()));
            if to.exists() {
                continue;
            }
            eprintln!("making {samples} samples, {}", form.name());
            std::fs::create_dir_all(&to)?;
            let Some(maker) = form.maker() else {
                Samples::new(samples, LENGTHS.0, LENGTHS.1, SPREAD).write(&to)?;
                continue;
            };
            if libraries.has(maker)? {
                let job = json!({"who": "convert", "raw": raw, "to": to});
                libraries.ask(maker, &job)?.map_err(|why| anyhow!("{maker}: {why}"))?;
            }
        }
        // Or the kernel's writing back would run beside what is measured.
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

/// A store with a bucket for each form. Samples are made of noise again; shards are read into memory.
fn stored(root: &Path, forms: &[Form]) -> Result<Store> {
    let store = Store::start();
    for form in Form::ALL.into_iter().filter(|form| forms.contains(form)) {
        store.bucket(form.name());
        if form == Form::Raw {
            for (name, sample) in Samples::new(SAMPLES, LENGTHS.0, LENGTHS.1, SPREAD).iter() {
                store.put(form.name(), &name, sample);
            }
            continue;
        }
        for file in std::fs::read_dir(root.join(form.name()))? {
            let file = file?;
            let name = file.file_name();
            let name = name.to_str().context("shards' names are text")?;
            store.put(form.name(), name, std::fs::read(file.path())?);
        }
    }
    Ok(store)
}

impl Place<'_> {
    /// Forgets what the store was asked.
    pub fn reset(&self) {
        if let Some(store) = self.store {
            store.reset();
        }
    }

    /// What a contender is told.
    pub fn job(&self, who: &str, setting: u32, most: f64, warm: u64) -> Value {
        let mut job = self.told.clone();
        (job["who"], job["setting"], job["most"]) = (who.into(), setting.into(), most.into());
        (job["warm"], job["home"]) = (warm.into(), json!(self.home));
        job
    }

    /// What a contender found; why it cannot count where it has not delivered every sample.
    pub fn outcome(&self, answer: &Value) -> std::result::Result<Outcome, String> {
        self.read(answer).map_err(|error| format!("{error:#}"))
    }

    fn read(&self, answer: &Value) -> Result<Outcome> {
        let epochs: Vec<Epoch> = serde_json::from_value(answer["epochs"].clone())?;
        let first = answer["first"].as_f64().context("no first batch came")?;
        let first_at = answer["first_at"].as_f64().context("no first batch came")?;
        for epoch in &epochs {
            // Some loaders repeat a few, so that all workers have as many.
            let (least, most) = (self.group.samples() as f64, self.group.samples() as f64 * 1.01);
            if !epoch.cut && !(least..=most).contains(&epoch.samples) {
                bail!("{} samples came of {}", epoch.samples, self.group.samples());
            }
        }
        let sent = self.store.and_then(|store| store.requests().first_sent);
        // The clock on the wall is the one that both processes have.
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        let since_sent = sent.map(|sent| first_at - (now - sent.elapsed().as_secs_f64()));
        Ok(Outcome { epochs, first, since_sent, requests: self.store.map(Store::requests) })
    }
}
