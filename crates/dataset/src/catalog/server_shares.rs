//! How the samples of a catalog are spread over storage servers.
//!
//! On a file system with several servers, each sample's server is read when the dataset is indexed.
//! Reports, warnings and the bounds on silent reads use it. See the
//! [column](crate::catalog_file::server_column).

use std::collections::BTreeMap;

use foreread_tier::StorageServer;
use foreread_types::SampleId;
use xxhash_rust::xxh3::Xxh3;

use crate::Catalog;
use crate::catalog_file::server_column::UNKNOWN;

impl Catalog {
    /// The fingerprint of the samples' servers, which [`fingerprint`](Self::fingerprint) leaves
    /// out. `None` if the catalog names no servers.
    pub fn server_fingerprint(&self) -> Option<u64> {
        if !self.has_servers() {
            return None;
        }
        let mut print = Xxh3::new();
        for id in (0..self.len()).map(SampleId) {
            print.update(&self.server_value(id).unwrap_or(UNKNOWN).to_le_bytes());
        }
        Some(print.digest())
    }
}

/// The samples and bytes of one storage server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerShare {
    /// Samples whose first byte it holds.
    pub samples: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl ServerShare {
    fn add(&mut self, bytes: u64) {
        self.samples += 1;
        self.bytes += bytes;
    }
}

/// How a dataset's samples are spread over the servers of its storage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerShares {
    /// The share of each server.
    pub servers: BTreeMap<StorageServer, ServerShare>,
    /// Samples of unknown servers.
    pub unknown: ServerShare,
    /// Samples that were released to an archive.
    pub released: ServerShare,
    /// The number of objects, each of which is opened and closed once an epoch.
    pub objects: u64,
}

impl ServerShares {
    /// The shares of a catalog's samples. `None` if the catalog names no servers.
    pub fn of(catalog: &Catalog) -> Option<Self> {
        if !catalog.has_servers() {
            return None;
        }
        let mut shares = Self { objects: catalog.objects(), ..Self::default() };
        for id in (0..catalog.len()).map(SampleId) {
            let share = match (catalog.is_released(id), catalog.server(id)) {
                (true, _) => &mut shares.released,
                (false, Some(server)) => shares.servers.entry(server).or_default(),
                (false, None) => &mut shares.unknown,
            };
            share.add(catalog.sizes().bytes(id));
        }
        Some(shares)
    }

    /// The data server with the most bytes, and its bytes relative to the mean of all data servers.
    /// `None` without data servers.
    pub fn imbalance(&self) -> Option<(StorageServer, f64)> {
        let data = || self.servers.iter().filter(|(server, _)| matches!(server, StorageServer::Data(_)));
        let total: u64 = data().map(|(_, share)| share.bytes).sum();
        let (server, most) =
            data().max_by_key(|(server, share)| (share.bytes, std::cmp::Reverse(**server)))?;
        let mean = total as f64 / data().count() as f64;
        (mean > 0.0).then(|| (*server, most.bytes as f64 / mean))
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::Arc;

    use foreread_tier::{Object, ObjectLayout, Version};

    use super::*;
    use crate::build::SampleOrder;

    #[derive(Debug)]
    struct OnServer(Option<StorageServer>, bool);

    impl ObjectLayout for OnServer {
        fn server(&self, _: u64) -> Option<StorageServer> {
            self.0
        }

        fn run(&self, _: u64) -> Option<Range<u64>> {
            None
        }

        fn is_released(&self) -> bool {
            self.1
        }
    }

    #[test]
    // semantics: HPC-6, HPC-12
    fn servers_have_a_fingerprint_that_catalogs_leave_out() {
        let on = |index| OnServer(Some(StorageServer::Data(index)), false);
        let catalog = |layouts: Vec<OnServer>| {
            let paths: Vec<Arc<str>> = (0..layouts.len()).map(|number| number.to_string().into()).collect();
            let object = |path: &Arc<str>| Object {
                path: Arc::clone(path),
                size: 1,
                version: Some(Version::ETag("1".into())),
            };
            let objects: Vec<Object> = paths.iter().map(object).collect();
            let boxed = layouts.into_iter().map(|layout| Box::new(layout) as Box<dyn ObjectLayout>);
            Catalog::of_files(
                "/data",
                crate::build::header::IndexNotes::default(),
                objects,
                SampleOrder::default(),
                &paths.into_iter().zip(boxed).collect(),
            )
            .unwrap()
        };
        let usual = catalog(vec![on(1), on(2)]);
        let print = usual.server_fingerprint().unwrap();
        assert_eq!(catalog(vec![on(1), on(2)]).server_fingerprint(), Some(print));
        for other in [
            vec![on(2), on(1)],
            vec![on(1), OnServer(Some(StorageServer::Metadata), false)],
            vec![on(1), OnServer(None, false)],
            vec![on(1), OnServer(None, true)],
        ] {
            let other = catalog(other);
            assert_eq!(other.fingerprint(), usual.fingerprint());
            assert_ne!(other.server_fingerprint().unwrap(), print);
        }
        let without = Catalog::from_objects("/data", [Object { path: "0".into(), size: 1, version: None }]);
        assert_eq!(without.unwrap().server_fingerprint(), None);
    }

    #[test]
    fn imbalance_is_that_of_data_servers() {
        let mut shares = ServerShares::default();
        assert_eq!(shares.imbalance(), None);
        for (server, bytes) in
            [(StorageServer::Data(3), 300), (StorageServer::Data(7), 100), (StorageServer::Metadata, 10_000)]
        {
            shares.servers.insert(server, ServerShare { samples: 1, bytes });
        }
        assert_eq!(shares.imbalance(), Some((StorageServer::Data(3), 1.5)));
    }
}
