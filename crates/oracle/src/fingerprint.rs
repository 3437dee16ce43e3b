//! Fingerprints of samplers and schedules.

use foreread_types::Fingerprint;
use xxhash_rust::xxh3::Xxh3;

/// Hashes the fields of a value into a [`Fingerprint`].
///
/// Each field is written with a fixed width or with its length before it. So two different field
/// lists never write the same bytes. The digest is XXH3 with 128 bits, the same on every platform
/// and in every release.
///
/// ```
/// use foreread_oracle::Fingerprinter;
/// let print = |seed| Fingerprinter::new("my sampler 1").number(1000).number(seed).finish();
/// assert_eq!(print(7), print(7));
/// assert_ne!(print(7), print(8));
/// ```
#[derive(Clone)]
pub struct Fingerprinter {
    state: Xxh3,
}

impl Fingerprinter {
    /// Starts a fingerprint. `name` separates types and ends in a version, which is raised with any
    /// change of meaning.
    pub fn new(name: &str) -> Self {
        Self { state: Xxh3::new() }.text(name)
    }

    /// Adds a number.
    #[must_use]
    pub fn number(mut self, value: u64) -> Self {
        self.state.update(&value.to_le_bytes());
        self
    }

    /// Adds a list of numbers.
    #[must_use]
    pub fn numbers(mut self, values: impl ExactSizeIterator<Item = u64>) -> Self {
        self = self.number(values.len() as u64);
        for value in values {
            self.state.update(&value.to_le_bytes());
        }
        self
    }

    /// Adds a text.
    #[must_use]
    pub fn text(mut self, text: &str) -> Self {
        self = self.number(text.len() as u64);
        self.state.update(text.as_bytes());
        self
    }

    /// Adds another value's fingerprint.
    #[must_use]
    pub fn part(mut self, part: Fingerprint) -> Self {
        self.state.update(&part.0.to_le_bytes());
        self
    }

    /// The fingerprint of all added fields.
    pub fn finish(&self) -> Fingerprint {
        Fingerprint(self.state.digest128())
    }
}

impl std::fmt::Debug for Fingerprinter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fingerprinter({})", self.finish())
    }
}
