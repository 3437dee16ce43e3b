//! The phases of a run.

use std::fmt;
use std::sync::Arc;

use foreread_types::{DatasetId, Fingerprint};

use crate::error::{OracleError, OracleReason};
use crate::order::check_samples;
use crate::{Fingerprinter, Order, Sampler};

/// The purpose of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PhaseKind {
    /// The model is trained on these samples.
    Train,
    /// The model is evaluated on these samples.
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
    /// The purpose.
    pub kind: PhaseKind,
    /// The dataset.
    pub dataset: DatasetId,
    /// The sampler that draws the order.
    pub sampler: Arc<dyn Sampler>,
    /// Samples in a rank's batch. `None` means one batch per pass.
    pub batch_size: Option<u64>,
    /// Whether the remainder that does not fill a batch on every rank is dropped. Otherwise it is
    /// padded.
    pub drop_last: bool,
}

impl Phase {
    /// The order of one pass, with ids of its dataset alone.
    ///
    /// # Errors
    /// The errors of the sampler's [`order`](Sampler::order), and an id outside the sampler's
    /// population.
    pub fn order(&self, epoch: u64) -> Result<Order, OracleError> {
        let order = self.sampler.order(epoch)?;
        order.check_ids(self.sampler.population())?;
        Ok(order)
    }
}

/// A run: in each of `epochs` epochs, all phases in order.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// The number of epochs.
    pub epochs: u64,
    /// The phases of one epoch, in order.
    pub phases: Vec<Phase>,
}

impl Schedule {
    /// A schedule of `epochs` epochs that each run `phases` in order.
    ///
    /// # Errors
    /// No phase, a batch size of 0, or a phase of more than 2^63 samples. A sampler with fewer
    /// known epochs, or samplers that disagree on the size of a dataset.
    pub fn new(epochs: u64, phases: Vec<Phase>) -> Result<Self, OracleError> {
        let schedule = Self { epochs, phases };
        schedule.check()?;
        Ok(schedule)
    }

    pub(crate) fn check(&self) -> Result<(), OracleError> {
        if self.phases.is_empty() {
            return Err(OracleReason::NoPhases.into());
        }
        for (index, phase) in self.phases.iter().enumerate() {
            check_samples(phase.sampler.population())?;
            check_samples(phase.sampler.len())?;
            if phase.batch_size == Some(0) {
                return Err(OracleReason::BatchSize.into());
            }
            if let Some(known) = phase.sampler.epochs().filter(|&known| known < self.epochs) {
                return Err(OracleReason::Epochs { phase: index, known, epochs: self.epochs }.into());
            }
            let dataset = phase.dataset;
            if let Some(other) = self.phases[..index].iter().find(|other| other.dataset == dataset) {
                let (found, expected) = (phase.sampler.population(), other.sampler.population());
                if found != expected {
                    return Err(OracleReason::Populations { dataset, phase: index, found, expected }.into());
                }
            }
        }
        Ok(())
    }

    /// The fingerprint of the global orders: each phase's kind, dataset number and sampler.
    ///
    /// World size, deal, batch size, `drop_last` and the number of epochs are left out. They decide
    /// which rank reads when, not the order. So a run can be extended, resized and resumed.
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
