//! Errors of the simulator.
//!
//! The error is opaque. Callers print the message: one line that names the field, the cause and the
//! remedy. A policy that refuses a scenario is not an error but a result of the simulation.

/// An invalid scenario, or an unknown policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct SimulateError(#[from] SimulateReason);

impl SimulateError {
    /// An error about a field.
    pub(crate) fn field(path: impl Into<String>, problem: impl Into<String>) -> Self {
        SimulateReason::Field { path: path.into(), problem: problem.into() }.into()
    }

    /// An error about an unknown name.
    pub(crate) fn unknown(what: &'static str, name: &str, known: String) -> Self {
        SimulateReason::Name { what, name: name.to_owned(), known }.into()
    }
}

impl From<foreread_oracle::OracleError> for SimulateError {
    fn from(error: foreread_oracle::OracleError) -> Self {
        Self(SimulateReason::Order(error))
    }
}

impl From<foreread_planner::PlanError> for SimulateError {
    fn from(error: foreread_planner::PlanError) -> Self {
        Self(SimulateReason::Plan(error))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SimulateReason {
    #[error("line {line} is not valid TOML: {problem}")]
    Syntax { line: usize, problem: String },
    #[error("{path}: {problem}")]
    Field { path: String, problem: String },
    #[error("unknown {what} `{name}`: expected one of {known}")]
    Name { what: &'static str, name: String, known: String },
    #[error(transparent)]
    Order(foreread_oracle::OracleError),
    #[error(transparent)]
    Plan(foreread_planner::PlanError),
}
