//! The phases of a run.

use std::fmt;
use std::sync::Arc;

use foreread_types::{DatasetId, Fingerprint};

use crate::error::{OracleError, Reason};
use crate::order::check_samples;
use crate::{Fingerprinter, Order, Sampler};

/// What a phase is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PhaseKind {
    /// The model learns from these samples.
    Train,
    /// The model is measured on these samples.
    Validation,
}

impl fmt::Display for PhaseKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Train => "train",
            Self::Validation => "validation",
        })
    }
}

/// One pass that every epoch makes over a dataset.
#[derive(Clone, Debug)]
pub struct Phase {
    /// What it is for.
    pub kind: PhaseKind,
    /// The dataset that it reads.
    pub dataset: DatasetId,
    /// Draws its order.
    pub sampler: Arc<dyn Sampler>,
    /// Samples in a rank's batch; `None` for one batch a pass.
    pub batch_size: Option<u64>,
    /// Whether what does not fill a batch on every rank is dropped, and not padded.
    pub drop_last: bool,
}

impl Phase {
    /// The order of one of its passes, with ids of its dataset alone.
    ///
    /// # Errors
    /// What the sampler's [`order`](Sampler::order) returns; an id that the sampler's population does not have.
    pub fn order(&self, epoch: u64) -> Result<Order, OracleError> {
        let order = self.sampler.order(epoch)?;
        order.check_ids(self.sampler.population())?;
        Ok(order)
    }
}

/// A run: in each of `epochs` epochs, all phases in order.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// How often the phases run.
    pub epochs: u64,
    /// What one epoch consists of.
    pub phases: Vec<Phase>,
}

impl Schedule {
    /// A schedule of `epochs` epochs, each of which runs `phases` in order.
    ///
    /// # Errors
    /// No phase; a batch size of 0; a sampler that does not know so many epochs; samplers that disagree on how many
    /// samples a dataset has; a phase of more than 2^63 samples.
    pub fn new(epochs: u64, phases: Vec<Phase>) -> Result<Self, OracleError> {
        let schedule = Self { epochs, phases };
        schedule.check()?;
        Ok(schedule)
    }

    pub(crate) fn check(&self) -> Result<(), OracleError> {
        if self.phases.is_empty() {
            return Err(Reason::NoPhases.into());
        }
        for (index, phase) in self.phases.iter().enumerate() {
            check_samples(phase.sampler.population())?;
            check_samples(phase.sampler.len())?;
            if phase.batch_size == Some(0) {
                return Err(Reason::BatchSize.into());
            }
            if let Some(known) = phase.sampler.epochs().filter(|&known| known < self.epochs) {
                return Err(Reason::Epochs { phase: index, known, epochs: self.epochs }.into());
            }
            let dataset = phase.dataset;
            if let Some(other) = self.phases[..index].iter().find(|other| other.dataset == dataset) {
                let (found, expected) = (phase.sampler.population(), other.sampler.population());
                if found != expected {
                    return Err(Reason::Populations { dataset, phase: index, found, expected }.into());
                }
            }
        }
        Ok(())
    }

    /// Names the global orders: each phase's kind, dataset number and sampler.
    ///
    /// World size, dealing, batch size, `drop_last` and the number of epochs are left out: they say who reads when and
    /// for how long, not in which order, so that a run can be extended, resized and resumed.
    pub fn fingerprint(&self) -> Fingerprint {
        self.phases
            .iter()
            .fold(Fingerprinter::new("schedule 1").number(self.phases.len() as u64), |print, phase| {
                let kind = match phase.kind {
                    PhaseKind::Train => 0,
                    PhaseKind::Validation => 1,
                };
                print.number(kind).number(u64::from(phase.dataset.0)).part(phase.sampler.fingerprint())
            })
            .finish()
    }
}
