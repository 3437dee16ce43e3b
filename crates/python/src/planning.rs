//! Plans and simulations: figures as JSON and as text, from which Python makes its own objects (`_outlook.py`).

use std::path::{Path, PathBuf};
use std::time::Duration;

use foreread::Registry;
use foreread::calibration::CalibrateOptions;
use foreread::plan::Outlook;
use foreread_simulator::{Comparison, Policy, Scenario};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{self, Class};
use crate::settings::{self, Settings};
use crate::{allocator, here, json, loader, logs, waiting};

/// A plan of this rank alone, as JSON and as text.
#[pyfunction]
#[pyo3(signature = (target, **settings))]
pub(crate) fn plan_of(
    py: Python<'_>,
    target: &Bound<'_, PyAny>,
    settings: Option<&Bound<'_, PyDict>>,
) -> PyResult<(String, String)> {
    allocator::set_up();
    here::watch();
    logs::set_up(py)?;
    let mut settings = Settings::of("plan", settings)?;
    settings.together = false;
    let builder = loader::builder(target, settings)?;
    let planned = waiting::apart(py, Duration::ZERO, move |_| {
        let ready = builder.prepare()?;
        Outlook::of(ready.prepared(), ready.prepared().blocks())
    })?;
    let outlook = planned.map_err(|error| errors::raised(&error))?;
    Ok((text(&outlook)?, outlook.to_string()))
}

/// Measures a dataset's origin and directories for a disk tier, and returns what was found.
///
/// With `output` it is also written to a file, which `calibration=` reads.
#[pyfunction]
#[pyo3(signature = (target = None, *, disks = None, seconds = 30.0, output = None))]
pub(crate) fn calibrate<'py>(
    py: Python<'py>,
    target: Option<&Bound<'py, PyAny>>,
    disks: Option<Vec<PathBuf>>,
    seconds: f64,
    output: Option<PathBuf>,
) -> PyResult<Bound<'py, PyAny>> {
    allocator::set_up();
    here::watch();
    logs::set_up(py)?;
    let mut wanted = CalibrateOptions::default();
    wanted.target = target.map(|target| settings::path("target", target)).transpose()?;
    wanted.disks = disks.unwrap_or_default();
    let time = Duration::try_from_secs_f64(seconds).ok().filter(|time| *time >= Duration::from_secs(1));
    wanted.time = time.ok_or_else(|| Class::Config.with("seconds: it is at least 1"))?;
    if wanted.target.is_none() && wanted.disks.is_empty() {
        return Err(Class::Config.with("there is nothing to measure: name a target, disks, or both"));
    }
    let measured = waiting::apart(py, Duration::ZERO, move |_| {
        let measured = foreread::calibration::calibrate(wanted, Registry::with_defaults(), |_| ())?;
        output.map_or(Ok(()), |path| measured.write(&path))?;
        Ok(measured)
    })?;
    json::python(py, &measured.map_err(|error: foreread::Error| errors::raised(&error))?)
}

fn text(value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| Class::Error.with(format!("it cannot be written: {error}")))
}

/// What policies make of a scenario: Python's Simulation keeps it.
#[pyclass(frozen, module = "foreread")]
#[derive(Debug)]
pub struct Compared(Comparison);

#[pymethods]
impl Compared {
    /// The figures, as JSON.
    fn json(&self) -> PyResult<String> {
        text(&self.0.report())
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    /// One bar a policy, as SVG.
    fn bars(&self) -> PyResult<String> {
        self.0.bars().map_err(|error| Class::Error.with(error.to_string()))
    }

    /// Seconds against cache size, as SVG; None for a scenario without a cache. Simulates each policy ten times more.
    fn against_cache(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let compared = self.0.clone();
        let swept = waiting::apart(py, Duration::ZERO, move |_| compared.sweep(&mut |_, _| ()))?;
        let swept = swept.map_err(|error| Class::Config.with(error.to_string()))?;
        let Some((bound, sweeps)) = swept else { return Ok(None) };
        self.0.against_cache(bound, &sweeps).map(Some).map_err(|error| Class::Error.with(error.to_string()))
    }
}

/// Plays policies through on a scenario: a file's path, or its text.
#[pyfunction]
#[pyo3(signature = (scenario, *, policies = None, seeds = 1))]
pub(crate) fn compare(
    py: Python<'_>,
    scenario: PathBuf,
    policies: Option<Vec<String>>,
    seeds: u64,
) -> PyResult<Compared> {
    let scenario = read(&scenario)?;
    let policies = match policies {
        None => Policy::ALL.to_vec(),
        Some(names) => {
            let parsed: Result<Vec<Policy>, _> = names.iter().map(|name| name.parse::<Policy>()).collect();
            parsed.map_err(|error| Class::Config.with(format!("policies: {error}")))?
        }
    };
    if policies.is_empty() || !(1..=Comparison::MOST_SEEDS).contains(&seeds) {
        let most = Comparison::MOST_SEEDS;
        return Err(Class::Config.with(format!("name at least one policy, and from 1 to {most} seeds")));
    }
    let compared = waiting::apart(py, Duration::ZERO, move |_| {
        Comparison::run(scenario, &policies, seeds, &mut |_, _| ())
    })?;
    compared.map(Compared).map_err(|error| Class::Config.with(error.to_string()))
}

/// What is no file's name, by its line breaks, is a scenario itself.
fn read(scenario: &Path) -> PyResult<Scenario> {
    let given = scenario.to_string_lossy();
    let (name, text) = if given.contains('\n') {
        ("the scenario".to_owned(), given.into_owned())
    } else {
        let read = foreread::read_text(scenario).map_err(|error| {
            let class =
                if error.kind() == std::io::ErrorKind::NotFound { Class::NotFound } else { Class::Config };
            class.with(format!("{given} cannot be read: {error}"))
        });
        (given.clone().into_owned(), read?)
    };
    Scenario::from_toml(&text).map_err(|error| Class::Config.with(format!("{name}: {error}")))
}
