//! What can be wrong with a scenario or with a policy's name.
//!
//! The error is opaque: callers match on [`SimulateError::kind`] and print the message, which is one line that names the
//! field, the cause and the remedy. A policy that refuses a scenario is no error: that is a result of the simulation.

/// A scenario that cannot be simulated, or a policy that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct SimulateError(#[from] Reason);

/// What kind of thing was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SimulateErrorKind {
    /// The text is not TOML.
    Syntax,
    /// A field is missing, unknown, or has a value that makes no sense.
    Field,
    /// There is no policy of that name.
    Policy,
    /// The run does not fit this machine.
    TooLarge,
}

impl SimulateError {
    /// What kind of thing was wrong; match on this, not on the text.
    pub fn kind(&self) -> SimulateErrorKind {
        match &self.0 {
            Reason::Syntax { .. } => SimulateErrorKind::Syntax,
            Reason::Field { .. } => SimulateErrorKind::Field,
            Reason::Policy { .. } => SimulateErrorKind::Policy,
            Reason::Order(_) => SimulateErrorKind::TooLarge,
        }
    }

    /// A field and what is wrong with it.
    pub(crate) fn field(path: impl Into<String>, problem: impl Into<String>) -> Self {
        Reason::Field { path: path.into(), problem: problem.into() }.into()
    }
}

impl From<foreread_oracle::OracleError> for SimulateError {
    fn from(error: foreread_oracle::OracleError) -> Self {
        Self(Reason::Order(error))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Reason {
    #[error("line {line} is not TOML: {problem}")]
    Syntax { line: usize, problem: String },
    #[error("{path}: {problem}")]
    Field { path: String, problem: String },
    #[error("there is no policy `{name}`; there are: {known}")]
    Policy { name: String, known: String },
    #[error(transparent)]
    Order(foreread_oracle::OracleError),
}
