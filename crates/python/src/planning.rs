//! Plans, calibrations and simulations, passed to Python as JSON and text (`_outlook.py`).

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use foreread::Registry;
use foreread_estimate::{CalibrateOptions, PlanReport};
use foreread_simulator::{
    AnyScenario, Comparison, FilesComparison, FilesPolicy, JobsComparison, JobsPolicy, Policy, SimulateError,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::ExceptionClass;
use crate::settings::{self, PythonSettings};
use crate::{interrupt, json, loader, logs, process_local};

/// The plan of this rank alone, as JSON and text.
#[pyfunction]
#[pyo3(signature = (target, **settings))]
pub(crate) fn plan_of(
    py: Python<'_>,
    target: &Bound<'_, PyAny>,
    settings: Option<&Bound<'_, PyDict>>,
) -> PyResult<(String, String)> {
    process_local::count_forks();
    logs::set_up(py)?;
    let mut settings = PythonSettings::of("plan", settings)?;
    settings.peers = false;
    let builder = loader::builder(target, settings)?.plan_only(true);
    let outlook = interrupt::run_fallible(py, move |_| {
        let ready = builder.prepare()?;
        let prepared = ready.prepared();
        let train = prepared.catalogs().next();
        Ok::<_, foreread::Error>(PlanReport::of(prepared, train)?.with_servers(train))
    })?;
    Ok((json::text(&outlook)?, outlook.to_string()))
}

/// Measures a dataset's storage and directories for a disk tier, and returns the results.
///
/// With `output` they are also written to a file for `calibration=`.
#[pyfunction]
#[pyo3(signature = (target = None, *, disks = None, seconds = 30.0, output = None))]
pub(crate) fn calibrate<'py>(
    py: Python<'py>,
    target: Option<&Bound<'py, PyAny>>,
    disks: Option<Vec<PathBuf>>,
    seconds: f64,
    output: Option<PathBuf>,
) -> PyResult<Bound<'py, PyAny>> {
    process_local::count_forks();
    logs::set_up(py)?;
    let mut wanted = CalibrateOptions::default();
    wanted.target = target.map(|target| settings::path("target", target)).transpose()?;
    wanted.disks = disks.unwrap_or_default();
    let time = Duration::try_from_secs_f64(seconds).ok().filter(|time| *time >= Duration::from_secs(1));
    wanted.time = time.ok_or_else(|| ExceptionClass::Config.with("seconds: must be at least 1"))?;
    if wanted.target.is_none() && wanted.disks.is_empty() {
        return Err(ExceptionClass::Config.with("nothing to measure: expected a target, disks, or both"));
    }
    let measured = interrupt::run_fallible(py, move |_| {
        let measured = foreread_estimate::calibrate(wanted, Registry::with_defaults(), |_| ())?;
        output.map_or(Ok(()), |path| foreread_settings::calibration::write(&measured, &path))?;
        Ok::<_, foreread::Error>(measured)
    })?;
    json::python(py, &measured)
}

/// A comparison of policies, held by Python's Simulation.
#[pyclass(frozen, module = "foreread")]
#[derive(Debug)]
pub struct Compared {
    json: String,
    text: String,
    /// The comparison on machines, or the subject of another comparison.
    machines: Result<Comparison, &'static str>,
}

impl Compared {
    /// The comparison on machines. Others have no plots.
    fn machines(&self) -> PyResult<&Comparison> {
        let no_plot = |of| ExceptionClass::Config.with(format!("plot: a scenario of {of} has no plot"));
        self.machines.as_ref().map_err(no_plot)
    }
}

#[pymethods]
impl Compared {
    /// The results as JSON.
    fn json(&self) -> &str {
        &self.json
    }

    fn __str__(&self) -> &str {
        &self.text
    }

    /// A bar chart with one bar per policy, as SVG.
    fn bars(&self) -> PyResult<String> {
        self.machines()?.bars().map_err(|error| ExceptionClass::Error.with(error.to_string()))
    }

    /// Seconds against cache size, as SVG. None for a scenario without a cache. Simulates each
    /// policy ten more times.
    fn against_cache(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let compared = self.machines()?.clone();
        let swept = simulated(py, move || compared.sweep(&mut |_, _| ()))?;
        let Some((bound, sweeps)) = swept else { return Ok(None) };
        self.machines()?
            .against_cache(bound, &sweeps)
            .map(Some)
            .map_err(|error| ExceptionClass::Error.with(error.to_string()))
    }
}

/// Simulates policies on a scenario, given as a file's path or as text.
#[pyfunction]
#[pyo3(signature = (scenario, *, policies = None, seeds = 1))]
pub(crate) fn compare(
    py: Python<'_>,
    scenario: PathBuf,
    policies: Option<Vec<String>>,
    seeds: u64,
) -> PyResult<Compared> {
    let scenario = read(&scenario)?;
    let is_empty = policies.as_ref().is_some_and(Vec::is_empty);
    if is_empty || !(1..=Comparison::MAX_SEEDS).contains(&seeds) {
        let most = Comparison::MAX_SEEDS;
        return Err(
            ExceptionClass::Config.with(format!("expected at least one policy, and from 1 to {most} seeds"))
        );
    }
    match scenario {
        AnyScenario::Machines(scenario) => {
            let policies = parsed(policies, &Policy::ALL)?;
            let work = move || Comparison::run(*scenario, &policies, seeds, &mut |_, _| ());
            let compared = simulated(py, work)?;
            let (json, text) = (json::text(&compared.report())?, compared.to_string());
            Ok(Compared { json, text, machines: Ok(compared) })
        }
        AnyScenario::SeveralJobs(scenario) => {
            let policies = parsed(policies, &JobsPolicy::ALL)?;
            let work = move || JobsComparison::run(scenario, &policies, seeds, &mut |_, _| ());
            let compared = simulated(py, work)?;
            let (json, text) = (json::text(&compared.report())?, compared.to_string());
            Ok(Compared { json, text, machines: Err("several jobs") })
        }
        AnyScenario::WholeFiles(scenario) => {
            let policies = parsed(policies, &FilesPolicy::ALL)?;
            let work = move || FilesComparison::run(scenario, &policies, seeds, &mut |_, _| ());
            let compared = simulated(py, work)?;
            let (json, text) = (json::text(&compared.report())?, compared.to_string());
            Ok(Compared { json, text, machines: Err("whole files") })
        }
    }
}

fn simulated<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, SimulateError> + Send + 'static,
) -> PyResult<T> {
    interrupt::run_interruptible(py, Duration::ZERO, |_| work())?
        .map_err(|error| ExceptionClass::Config.with(error.to_string()))
}

/// The policies with these names, or all.
fn parsed<P: Copy + FromStr<Err = SimulateError>>(names: Option<Vec<String>>, all: &[P]) -> PyResult<Vec<P>> {
    let Some(names) = names else { return Ok(all.to_vec()) };
    let parsed: Result<Vec<P>, _> = names.iter().map(|name| name.parse()).collect();
    parsed.map_err(|error| ExceptionClass::Config.with(format!("policies: {error}")))
}

/// Reads a scenario. Text with line breaks is the scenario, other text is a file's path.
fn read(scenario: &Path) -> PyResult<AnyScenario> {
    let given = scenario.to_string_lossy();
    let (name, text) = if given.contains('\n') {
        ("the scenario".to_owned(), given.into_owned())
    } else {
        let read = foreread::read_text(scenario).map_err(|error| {
            let class = if error.kind() == std::io::ErrorKind::NotFound {
                ExceptionClass::NotFound
            } else {
                ExceptionClass::Config
            };
            class.with(format!("cannot read {given}: {error}"))
        });
        (given.clone().into_owned(), read?)
    };
    AnyScenario::from_toml(&text).map_err(|error| ExceptionClass::Config.with(format!("{name}: {error}")))
}
