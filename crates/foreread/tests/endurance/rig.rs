//! A backend for `fake://` URLs, and the numbers that tests draw.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use async_trait::async_trait;
use foreread::Registry;
use foreread::tier::{Backend, Context, ErrorKind, OpenOptions, OriginTier, TierError};

/// Opens the stores that a test made, by URL.
#[derive(Debug, Default)]
pub struct Fakes(BTreeMap<String, Arc<dyn OriginTier>>);

impl Fakes {
    /// The same with one store more.
    pub fn with(mut self, url: &str, origin: Arc<dyn OriginTier>) -> Self {
        self.0.insert(url.to_owned(), origin);
        self
    }

    pub fn registry(self) -> Registry {
        Registry::empty().register(self)
    }
}

#[async_trait]
impl Backend for Fakes {
    fn schemes(&self) -> &[&str] {
        &["fake"]
    }

    async fn open(
        &self,
        url: &str,
        _options: &OpenOptions,
        _context: &Context,
    ) -> Result<Arc<dyn OriginTier>, TierError> {
        let missing = || TierError::new(ErrorKind::NotFound, "fake").with_object(url);
        self.0.get(url).cloned().ok_or_else(missing)
    }
}

/// `SplitMix64`.
pub struct Draw {
    pub seed: u64,
    state: u64,
}

impl Draw {
    /// From the seed of this run of the tests, which is printed.
    pub fn new() -> Self {
        let seed = std::env::var("FOREREAD_TEST_SEED").ok().map_or_else(
            || UNIX_EPOCH.elapsed().unwrap().as_micros() as u64 % 1_000_000_000,
            |seed| seed.parse().expect("FOREREAD_TEST_SEED is a number"),
        );
        println!("FOREREAD_TEST_SEED={seed}");
        Self { seed, state: seed }
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}
