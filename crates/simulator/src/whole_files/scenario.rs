//! The scenario of whole files: the table `[files]` of a TOML file.

use serde::Serialize;

use crate::error::SimulateError;
use crate::named::named;
use crate::scenario_fields::ScenarioFields;
use crate::workload::MB;

/// The most opens in a run. Each takes 4 bytes of memory.
const MAX_OPENS: u64 = 1 << 26;

/// The most MB of one file.
const MAX_MB: f64 = 1e9;

/// The most seconds of a run: 3,000 years.
const MAX_SECONDS: f64 = 1e11;

named! {
    /// The order in which a program opens its files.
    pub enum FileOrder is a "order" {
        /// A new permutation in every epoch, which the cache does not know.
        Unknown "unknown",
        /// A new permutation in every epoch, which is announced to the cache.
        Known "known",
        /// The same permutation in every epoch. The cache is not informed.
        Equal "equal",
    }
}

/// A validated scenario of a program that opens each of its files once per epoch.
///
/// ```
/// use foreread_simulator::{FileOrder, FilesScenario};
/// let text = "[files]\nfiles = 1000\nmean = 0.1\ncache = 0.5\nepochs = 3\nseconds = 600";
/// let scenario = FilesScenario::from_toml(text).unwrap();
/// assert_eq!((scenario.order, scenario.writes_per_day), (FileOrder::Unknown, None));
/// let error = FilesScenario::from_toml("[files]\nfiles = 0").unwrap_err();
/// assert_eq!(error.to_string(), "files.files: must be at least 1, found 0");
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FilesScenario {
    /// The name in reports.
    #[serde(rename = "scenario")]
    pub name: String,
    /// The number of files.
    pub files: u32,
    /// The bytes of each file.
    #[serde(rename = "file_bytes")]
    pub bytes: u64,
    /// The part of the files that the cache holds, from 0 to 1.
    pub cache: f64,
    /// The order of opens.
    pub order: FileOrder,
    /// Epochs, at least 2. The first one fills the cache and does not count in means.
    pub epochs: u32,
    /// The seconds of an epoch.
    pub seconds: f64,
    /// After the first fill, at most this part of the cache is written in a day. `None`: no limit.
    pub writes_per_day: Option<f64>,
    /// The seed of the orders.
    pub seed: u64,
}

impl FilesScenario {
    /// Parses the text of a scenario file.
    ///
    /// # Errors
    /// One line that names the field, as for [`Scenario`](crate::Scenario).
    pub fn from_toml(text: &str) -> Result<Self, SimulateError> {
        let table = crate::scenario_fields::parse(text)?;
        let file = ScenarioFields::new(&table);
        let name = file.text("name", "scenario")?;
        let seed = file.whole_or("seed", "a seed", 0)?;
        let fields = file.table("files", "a table [files]")?;
        let most = u64::from(u32::MAX >> 1);
        let files = fields.whole("files", "the number of files", 1, most)? as u32;
        let mean = fields.positive("mean", "the mean of their sizes in MB")?;
        if mean > MAX_MB {
            return Err(fields.error("mean", format!("must be at most {MAX_MB:.0} MB, found {mean}")));
        }
        let bytes = ((mean * MB).round() as u64).max(1);
        let cache = fields.at_most_1("cache", fields.positive("cache", "the part of the files in cache")?)?;
        let epochs = fields.whole("epochs", "the number of epochs", 2, most)? as u32;
        let seconds = fields.positive("seconds", "the seconds of an epoch")?;
        let order = fields.text("order", FileOrder::Unknown.name())?;
        let order = order.parse().map_err(|_| {
            let known = FileOrder::ALL.map(FileOrder::name).join(" ");
            fields.error("order", format!("expected one of {known}, found {order}"))
        })?;
        let writes_per_day = if fields.has("writes_per_day") {
            Some(fields.not_negative("writes_per_day", "the part of the cache that is written in a day")?)
        } else {
            None
        };
        fields.reject_unknown()?;
        file.reject_unknown()?;
        if u64::from(files) * u64::from(epochs) > MAX_OPENS {
            let problem = format!("times files.files must be at most {MAX_OPENS} opens, found {epochs}");
            return Err(fields.error("epochs", problem));
        }
        if seconds * f64::from(epochs) > MAX_SECONDS {
            let problem = format!("times files.epochs must be at most {MAX_SECONDS:.0}, found {seconds}");
            return Err(fields.error("seconds", problem));
        }
        Ok(Self { name, seed, files, bytes, cache, order, epochs, seconds, writes_per_day })
    }

    /// The files that the cache holds.
    pub(super) fn capacity(&self) -> u32 {
        (self.cache * f64::from(self.files)).round() as u32
    }
}
