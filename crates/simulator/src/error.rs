//! Errors of the simulator.
//!
//! The error is opaque. Callers match on [`SimulateError::kind`] and print the message: one line
//! that names the field, the cause and the remedy. A policy that refuses a scenario is not an error
//! but a result of the simulation.

/// An invalid scenario, or an unknown policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct SimulateError(#[from] SimulateReason);

/// The category of a [`SimulateError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SimulateErrorKind {
    /// The text is not valid TOML.
    Syntax,
    /// A field is missing, unknown or invalid.
    Field,
    /// The name of the policy is unknown.
    Policy,
    /// The run does not fit this machine.
    TooLarge,
}

impl SimulateError {
    /// The category. Match on this, not on the text.
    pub fn kind(&self) -> SimulateErrorKind {
        match &self.0 {
            SimulateReason::Syntax { .. } => SimulateErrorKind::Syntax,
            SimulateReason::Field { .. } => SimulateErrorKind::Field,
            SimulateReason::Policy { .. } => SimulateErrorKind::Policy,
            SimulateReason::Order(_) | SimulateReason::Plan(_) => SimulateErrorKind::TooLarge,
        }
    }

    /// An error about a field.
    pub(crate) fn field(path: impl Into<String>, problem: impl Into<String>) -> Self {
        SimulateReason::Field { path: path.into(), problem: problem.into() }.into()
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
    #[error("unknown policy `{name}`: expected one of {known}")]
    Policy { name: String, known: String },
    #[error(transparent)]
    Order(foreread_oracle::OracleError),
    #[error(transparent)]
    Plan(foreread_planner::PlanError),
}
