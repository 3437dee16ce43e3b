//! A run that is ready to start: its datasets are open, its order is determined, and it is planned.

use std::sync::atomic::AtomicBool;

use foreread_loader::{History, RunReport};
use tokio::task::JoinSet;

use crate::assembly::{Assembly, ReadParts};
use crate::config::Config;
use crate::loader::Loader;
use crate::planned::Planned;
use crate::prepared::Prepared;
use crate::report::WarmDataset;
use crate::runtime::Workers;
use foreread_open::error::{Error, Result};
use foreread_types::RankOf;

/// A run that is ready to start.
#[derive(Debug)]
pub struct Ready {
    prepared: Prepared,
    workers: Workers,
}

impl Ready {
    pub(crate) fn new(prepared: Prepared, workers: Workers) -> Self {
        Self { prepared, workers }
    }

    pub(crate) fn parts(self) -> (Prepared, Workers) {
        (self.prepared, self.workers)
    }

    /// The plan.
    pub fn prepared(&self) -> &Prepared {
        &self.prepared
    }

    /// Has the node's agent fill its memory with the training data ahead of a run, if `begin` is
    /// set. Returns how much of them is there. The agent continues when this process ends. It
    /// reads each sample once, however many processes ask. `None` without an agent. Blocks the
    /// thread until the agent has answered.
    ///
    /// # Errors
    /// If the agent has ended, or cannot do it. Also if the dataset is a part of a catalog, because
    /// an agent keeps the whole.
    pub fn warm_agent(&self, begin: bool) -> Result<Option<WarmDataset>> {
        self.refuse_part()?;
        self.prepared.agents.attached().map(|agent| agent.warm(begin, RankOf::ALONE)).transpose()
    }

    /// Begins the same with one of several equal parts of the data: a cluster's agents each keep
    /// that of their rank.
    ///
    /// # Errors
    /// As [`warm_agent`](Self::warm_agent).
    pub fn warm_agent_part(&self, part: RankOf) -> Result<Option<WarmDataset>> {
        self.refuse_part()?;
        self.prepared.agents.attached().map(|agent| agent.warm(true, part)).transpose()
    }

    fn refuse_part(&self) -> Result<()> {
        match self.prepared.named.first() {
            Some(part) if part.numbers().is_some() => Err(Error::usage(format!(
                "these are {} of the {} samples of {}, and an agent is filled with all: name the whole \
                 dataset, or let the job that reads these fill it",
                part.len(),
                part.with_gone().len(),
                part.base_url()
            ))),
            _ => Ok(()),
        }
    }

    /// Starts reading ahead.
    pub fn start(self) -> Loader {
        let Self { prepared, workers } = self;
        let Prepared {
            planned,
            opened,
            named: catalogs,
            caches,
            disk,
            shared,
            blocks,
            released,
            group,
            buffers,
            agents,
            node_host,
            ..
        } = prepared;
        let Planned { config, run, plan, floor, memory, units, factors, .. } = planned;
        // The limit of the training data. The validation data have the same, or the same store.
        let limit = opened.first().and_then(|dataset| dataset.limit.clone());
        // Users know the loader, and not the rooms behind it.
        for (level, (_, cache)) in plan.levels().iter().zip(&caches) {
            tracing::info!(
                target: "foreread::loader",
                tier = cache.name(),
                capacity = level.capacity,
                samples = level.samples,
                "a tier of the run"
            );
        }
        tracing::info!(
            target: "foreread::loader",
            samples = catalogs[0].len(),
            bytes = catalogs[0].total_bytes(),
            passes = run.passes().len(),
            look_ahead = config.look_ahead,
            retention = ?plan.retention(),
            floor,
            "starting"
        );
        let locality = group.as_ref().and_then(|group| group.locality());
        let Config { look_ahead, on_error, .. } = config;
        let units = units.as_ref().map(|_| shared.units().clone());
        let reading = ReadParts { retry: config.retry_policy(), units: units.clone(), buffers };
        let dealing = locality.clone();
        let mut assembly = Assembly::new(opened, caches, dealing, look_ahead, on_error, blocks, reading);
        let mut recalls = JoinSet::new();
        for files in released {
            recalls.spawn_on(files.recall(run.clone()), workers.handle());
        }
        agents.announce(&run, &plan, locality.as_ref());
        let inner = assembly.start(run, plan, workers.handle());
        agents.watch(inner.stalled());
        Loader {
            inner,
            earlier: RunReport::default(),
            earlier_history: History::default(),
            assembly,
            catalogs,
            config,
            floor,
            factors,
            units,
            origin: shared.meter,
            limit,
            disk,
            group,
            agents,
            node_host,
            jumped: false,
            left: AtomicBool::new(false),
            _memory: memory,
            _recalls: recalls,
            workers,
        }
    }
}
