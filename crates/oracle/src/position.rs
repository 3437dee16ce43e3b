//! The progress of a run: the whole state that a loader saves.

use foreread_types::Fingerprint;
use serde::{Deserialize, Serialize};

/// The progress of a run, for all ranks together and independent of their number. Everything before
/// `consumed` in this pass has been read, and every earlier pass.
///
/// It is saved as a map with a version. The fingerprint is text:
///
/// ```
/// use foreread_oracle::Position;
/// use foreread_types::Fingerprint;
/// # fn main() -> Result<(), serde_json::Error> {
/// let position = Position { schedule: Fingerprint(0xabc), epoch: 3, phase: 0, consumed: 512 };
/// let text = concat!(
///     r#"{"version":1,"schedule":"00000000000000000000000000000abc","#,
///     r#""epoch":3,"phase":0,"consumed":512}"#
/// );
/// assert_eq!(serde_json::to_string(&position)?, text);
/// assert_eq!(serde_json::from_str::<Position>(text)?, position);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "SavedPosition", try_from = "SavedPosition")]
pub struct Position {
    /// The fingerprint of the schedule: [`Schedule::fingerprint`](crate::Schedule::fingerprint).
    pub schedule: Fingerprint,
    /// The epoch, counted from 0. At the end of a run, the number of epochs.
    pub epoch: u64,
    /// The phase in that epoch, counted from 0.
    pub phase: u32,
    /// Samples of that pass's global order that all ranks together have consumed.
    pub consumed: u64,
}

/// The version of the saved form. Raised with every change that an older release would misread.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct SavedPosition {
    version: u32,
    schedule: String,
    epoch: u64,
    phase: u32,
    consumed: u64,
}

impl From<Position> for SavedPosition {
    fn from(position: Position) -> Self {
        let Position { schedule, epoch, phase, consumed } = position;
        Self { version: VERSION, schedule: schedule.to_string(), epoch, phase, consumed }
    }
}

impl TryFrom<SavedPosition> for Position {
    type Error = String;

    fn try_from(saved: SavedPosition) -> Result<Self, Self::Error> {
        if saved.version != VERSION {
            return Err(format!(
                "saved position has version {}, expected {VERSION}: use the release that wrote it",
                saved.version
            ));
        }
        let schedule = saved.schedule.parse().map_err(|error| {
            format!("saved position has schedule {:?}: {error}. The state is damaged", saved.schedule)
        })?;
        Ok(Self { schedule, epoch: saved.epoch, phase: saved.phase, consumed: saved.consumed })
    }
}
