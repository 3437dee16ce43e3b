//! How a dataset is spread over the servers of its file system, as text and JSON, with advice.

use std::fmt;

use foreread::dataset::{ServerShare, ServerShares};
use foreread::size::ByteSize;
use foreread::{Catalog, Format};
use foreread_types::setting;
use serde::Serialize;

/// Servers that the text lists. The JSON report has all.
const LISTED: usize = 8;

/// An imbalance from which on it is reported as slow.
const UNEVEN: f64 = 1.5;

/// Files below this mean size are better packed, from [`MANY_FILES`] on.
const SMALL_FILE: u64 = 1 << 20;
const MANY_FILES: u64 = 10_000;

/// The length of a shard in the advice.
const SHARD: u64 = 256 << 20;

/// Fewer data servers than this limit a run of several nodes.
const FEW_SERVERS: usize = 4;

/// The servers of a dataset.
#[derive(Clone, Debug, Serialize)]
pub struct ServerReport {
    /// All servers, the one with the most bytes first.
    servers: Vec<ServerLine>,
    unknown_samples: u64,
    unknown_bytes: u64,
    released_samples: u64,
    released_bytes: u64,
    /// The bytes of the fullest data server relative to the mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    imbalance: Option<f64>,
    objects: u64,
    /// An open and a close of each object.
    metadata_requests: u64,
    /// Whether the objects are shards, which stay open.
    is_packed: bool,
    advice: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
struct ServerLine {
    server: String,
    samples: u64,
    bytes: u64,
}

impl ServerReport {
    /// The report of a catalog. `None` if it names no servers.
    pub fn of(catalog: &Catalog) -> Option<Self> {
        let shares = ServerShares::of(catalog)?;
        let is_packed = catalog.format() != Format::Files;
        Some(Self::new(&shares, is_packed, catalog.total_bytes()))
    }

    fn new(shares: &ServerShares, is_packed: bool, bytes: u64) -> Self {
        let line = |(server, share): (_, &ServerShare)| ServerLine {
            server: format!("{server}"),
            samples: share.samples,
            bytes: share.bytes,
        };
        let mut servers: Vec<ServerLine> =
            shares.servers.iter().map(|(server, share)| line((*server, share))).collect();
        servers.sort_by_key(|server| std::cmp::Reverse(server.bytes));
        Self {
            servers,
            unknown_samples: shares.unknown.samples,
            unknown_bytes: shares.unknown.bytes,
            released_samples: shares.released.samples,
            released_bytes: shares.released.bytes,
            imbalance: shares.imbalance().map(|(_, imbalance)| imbalance),
            objects: shares.objects,
            metadata_requests: 2 * shares.objects,
            is_packed,
            advice: advice(shares, is_packed, bytes),
        }
    }
}

/// Advice that would make the dataset faster to read.
fn advice(shares: &ServerShares, is_packed: bool, bytes: u64) -> Vec<String> {
    let mut advice = Vec::new();
    let objects = shares.objects;
    if !is_packed && objects >= MANY_FILES && bytes / objects < SMALL_FILE {
        let shards = bytes.div_ceil(SHARD).max(1);
        advice.push(format!(
            "pack the files: {shards} tar shard{} of {} need{} {} metadata requests per run, the files {} \
             per epoch",
            if shards == 1 { "" } else { "s" },
            ByteSize(SHARD),
            if shards == 1 { "s" } else { "" },
            2 * shards,
            2 * objects
        ));
    }
    let data = shares
        .servers
        .keys()
        .filter(|server| matches!(server, foreread::backend::StorageServer::Data(_)))
        .count();
    match shares.imbalance() {
        Some((server, imbalance)) if imbalance >= UNEVEN => advice.push(format!(
            "{server} holds {imbalance:.1} times the mean: spread the files again, for example by `lfs \
             migrate -c 1 FILE` (the new OST is chosen by free space)"
        )),
        _ => {}
    }
    if is_packed && (1..FEW_SERVERS).contains(&data) && bytes > SHARD {
        advice.push(format!(
            "only {data} OST{} hold the data: write the shards again after `lfs setstripe -c 4 -S 4M DIR`",
            if data == 1 { "" } else { "s" }
        ));
    }
    advice
}

impl fmt::Display for ServerReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total: u64 = self.servers.iter().map(|server| server.bytes).sum();
        let even = self
            .imbalance
            .map_or_else(String::new, |most| format!("; the fullest OST has {most:.2} times the mean"));
        writeln!(out, "servers: {} hold {}{even}", self.servers.len(), ByteSize(total))?;
        for server in self.servers.iter().take(LISTED) {
            writeln!(
                out,
                "  {:<9}{:>10} samples{:>12}",
                server.server,
                server.samples,
                ByteSize(server.bytes).to_string()
            )?;
        }
        if self.servers.len() > LISTED {
            writeln!(out, "  and {} more, each with less", self.servers.len() - LISTED)?;
        }
        if self.unknown_samples > 0 {
            writeln!(
                out,
                "  unknown  {:>10} samples{:>12}",
                self.unknown_samples,
                ByteSize(self.unknown_bytes).to_string()
            )?;
        }
        if self.released_samples > 0 {
            writeln!(
                out,
                "released to an archive: {} samples, {}; restore them with `lfs hsm_restore FILE`, or load \
                 with {}",
                self.released_samples,
                ByteSize(self.released_bytes),
                setting("recall")
            )?;
        }
        let what = if self.is_packed { "shard, once per run" } else { "file, in each epoch that reads it" };
        writeln!(out, "metadata: {} requests, an open and a close of each {what}", self.metadata_requests)?;
        self.advice.iter().try_for_each(|advice| writeln!(out, "advice: {advice}"))
    }
}

#[cfg(test)]
mod tests {
    use foreread::backend::StorageServer;

    use super::*;

    fn shares(objects: u64, servers: &[(u32, u64)]) -> ServerShares {
        let mut shares = ServerShares::default();
        shares.objects = objects;
        for &(index, bytes) in servers {
            shares.servers.insert(StorageServer::Data(index), ServerShare { samples: 10, bytes });
        }
        shares
    }

    #[test]
    fn uneven_servers_are_listed_with_advice() {
        let report =
            ServerReport::new(&shares(64, &[(3, 1 << 20), (7, 6 << 20), (9, 2 << 20)]), true, 9 << 20);
        let text = report.to_string();
        assert!(
            text.starts_with("servers: 3 hold 9.0 MiB; the fullest OST has 2.00 times the mean\n  OST 7 "),
            "{text}"
        );
        assert!(
            text.contains("metadata: 128 requests, an open and a close of each shard, once per run\n"),
            "{text}"
        );
        assert!(text.contains("advice: OST 7 holds 2.0 times the mean"), "{text}");
    }

    #[test]
    fn many_small_files_are_to_be_packed() {
        let even = &shares(20_000, &[(0, 1 << 30), (1, 1 << 30)]);
        let text = ServerReport::new(even, false, 2 << 30).to_string();
        assert!(
            text.contains("pack the files: 8 tar shards of 256.0 MiB need 16 metadata requests"),
            "{text}"
        );
        assert!(!text.contains("times the mean:"), "{text}");
        let few = &shares(100, &[(0, 1 << 30), (1, 1 << 30)]);
        assert!(!ServerReport::new(few, false, 2 << 30).to_string().contains("advice"));
    }
}
