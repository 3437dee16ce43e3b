//! The cost of resuming at the start and at the end of a long run.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use bytes::Bytes;
use foreread::{Config, Loader, Memory, Registry, State};
use foreread_benches::table::{Figure, Goal};
use foreread_benches::{IMAGENET, files, median};
use foreread_dataset::Catalog;
use foreread_tier::{
    Backend, Object, OpenContext, OpenOptions, OriginTier, ReadFuture, ReadRequest, Tier, TierError,
    TierProfile,
};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};

const ROUNDS: usize = 9;
const EPOCHS: u64 = 90;
const BATCH: u64 = 256;

/// An origin that responds immediately with zeros. The catalog alone defines its objects.
#[derive(Debug)]
struct Zeros {
    profile: TierProfile,
    bytes: Bytes,
}

impl Tier for Zeros {
    fn name(&self) -> &str {
        "zeros"
    }

    fn profile(&self) -> &TierProfile {
        &self.profile
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        Box::pin(std::future::ready(Ok(self.bytes.slice(..request.len() as usize))))
    }

    fn submit(&self) {}
}

impl OriginTier for Zeros {
    fn place(&self) -> &str {
        "zeros"
    }

    fn list(&self, _: &str, _: Option<&str>) -> BoxStream<'static, Result<Object, TierError>> {
        stream::empty().boxed()
    }

    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
        let error = TierError::new(foreread_tier::ErrorKind::NotFound, "bench").with_object(path);
        Box::pin(std::future::ready(Err(error)))
    }

    fn layouts(&self, _paths: Vec<Arc<str>>) -> Option<foreread_tier::LayoutsFuture> {
        None
    }
}

#[derive(Debug)]
struct ZerosBackend;

#[async_trait]
impl Backend for ZerosBackend {
    fn schemes(&self) -> &[&str] {
        &["zeros"]
    }

    async fn open(
        &self,
        _: &str,
        _: &OpenOptions,
        _: &OpenContext,
    ) -> Result<Arc<dyn OriginTier>, TierError> {
        Ok(Arc::new(Zeros { profile: TierProfile::new(64), bytes: vec![0; 1 << 18].into() }))
    }
}

/// A checkpoint in the middle of an epoch, as a run would have saved it.
fn state(first: &State, epoch: u64) -> Result<State> {
    let mut saved = serde_json::to_value(first)?;
    saved["epoch"] = epoch.into();
    saved["consumed"] = (IMAGENET / 2 / BATCH * BATCH).into();
    Ok(serde_json::from_value(saved)?)
}

/// Milliseconds from the creation of the loader to the first batch, resumed from a checkpoint.
fn first_batch(target: &str, config: &Config, from: State) -> Result<f64> {
    let (epoch, start) = (from.epoch(), Instant::now());
    let builder =
        Loader::builder_with(target, config.clone()).registry(Registry::empty().register(ZerosBackend));
    let loader = builder.resume(from).start()?;
    let batch = loader.batches().next().context("no batch")??;
    ensure!(batch.epoch() == epoch && batch.len() as u64 == BATCH, "resumed at the wrong position");
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

pub fn figures() -> Result<Vec<Figure>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("catalog.foreread");
    Catalog::from_objects("zeros://train", files::imagenet_objects(IMAGENET))?.save(&path)?;
    let target = path.to_str().context("the path is not UTF-8")?;
    let mut config = Config::default();
    (config.epochs, config.batch_size) = (EPOCHS, BATCH);
    (config.memory, config.look_ahead) = (Memory::Bytes(1 << 30), 64 << 20);
    let registry = Registry::empty().register(ZerosBackend);
    let first = Loader::builder_with(target, config.clone()).registry(registry).start()?.state();
    let (mut early, mut late) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        early.push(first_batch(target, &config, state(&first, 1)?)?);
        late.push(first_batch(target, &config, state(&first, EPOCHS - 1)?)?);
    }
    let ratio = median(late.iter().zip(&early).map(|(late, early)| late / early));
    let about = "resume in a run of 90 epochs of 1.28 M";
    let early = median(early);
    Ok(vec![
        Figure::new(format!("{about}: first batch, epoch 1"), Goal::None, early, "ms")
            .note("includes opening the catalog, planning and reading"),
        Figure::new(format!("{about}: first batch, epoch 89"), Goal::None, median(late), "ms"),
        Figure::new(format!("{about}: epoch 89 / epoch 1"), Goal::AtMost(1.05), ratio, "times")
            .note("the target is no increase; 5 % are measurement noise"),
    ])
}
