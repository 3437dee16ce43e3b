//! Several ranks on one node, each a process: origin bytes compared with the lower bound, and the
//! duration of five epochs. Also the rate of samples from peers' memory, and the CPU cost of the
//! transfer between two ranks.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use foreread::ranks::Meeting;
use foreread::{Config, Disk, Loader, Memory, RankOf};
use foreread_benches::table::{Figure, Goal};
use foreread_benches::usage::Usage;
use foreread_benches::{median, subprocess};
use foreread_peer::{
    Address, Identity, Nonce, PeerClientFactory, PeerCounters, PeerServer, RunId, ServerLimits,
    SystemTransport, Token, Transport, WireProtection,
};
use foreread_tier::{
    ArenaBuffers, Object, OpenContext as TierContext, PeerReplies, PeerReply, PeerRequest, PeerService,
    ReadRequest, Span,
};
use foreread_tier_testing::ReadAll;
use foreread_types::{DatasetId, Rank, SampleId, SampleKey, Tick};
use futures::StreamExt;
use serde::{Deserialize, Serialize};

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 100_000_000;
const EPOCHS: u64 = 5;

/// Ranks, and MiB of memory per rank.
const LIMITED_RUNS: [(u32, u64); 5] = [(2, 1024), (2, 240), (4, 1024), (4, 120), (4, 60)];

/// Ranks, MiB of memory per rank, and MiB of the disk that they share.
const DISK_RUNS: [(u32, u64, u64); 2] = [(4, 20, 1024), (4, 20, 200)];

/// Rounds of the measurements that depend on the machine.
const ROUNDS: usize = 3;

/// The measurement of one rank.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RankMeasurement {
    origin: f64,
    /// Seconds from the request for the first batch to the last batch.
    pub(crate) seconds: f64,
    /// Seconds of the last epoch.
    last: f64,
    samples: f64,
    cpu: f64,
    /// Bytes from other nodes.
    pub(crate) received_bytes: f64,
}

/// Runs the ranks and returns the measurement of each. `disk` is the size of an empty disk that
/// they share, 0 for none.
fn run(directory: &Path, ranks: u32, (memory, disk): (u64, u64), limit: u64) -> Result<Vec<RankMeasurement>> {
    let place = tempfile::tempdir()?;
    subprocess::run_ranks(ranks, |command| {
        let numbers = [memory, limit, disk].map(|number| number.to_string());
        command.args(["ranks", "run"]).arg(directory).args(numbers).arg(place.path());
    })
}

pub fn figures(directory: &Path) -> Result<Vec<Figure>> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let files =
            if path.is_dir() { std::fs::read_dir(path)?.collect::<Result<Vec<_>, _>>()? } else { Vec::new() };
        for file in files {
            bytes += file.metadata()?.len();
        }
    }
    let sum = |found: &[RankMeasurement], of: fn(&RankMeasurement) -> f64| found.iter().map(of).sum::<f64>();
    let most =
        |found: &[RankMeasurement], of: fn(&RankMeasurement) -> f64| found.iter().map(of).fold(0.0, f64::max);
    let mut figures = Vec::new();
    for (ranks, memory) in LIMITED_RUNS {
        let found = run(directory, ranks, (memory * MIB, 0), LIMIT / u64::from(ranks))?;
        let lower_bound = bytes + (EPOCHS - 1) * bytes.saturating_sub(u64::from(ranks) * memory * MIB);
        let about = format!("{ranks} ranks, {memory} MiB each, 100 MB/s in total");
        let what = format!("{about}: origin bytes / lower bound");
        let over = sum(&found, |found| found.origin) / lower_bound as f64;
        figures.push(Figure::new(what, Goal::AtMost(1.01), over, "times"));
        let target = if (ranks, memory) == (4, 120) { Goal::AtMost(5.2) } else { Goal::None };
        let took = most(&found, |found| found.seconds);
        figures.push(Figure::new(format!("{about}: five epochs"), target, took, "s"));
    }
    for (ranks, memory, disk) in DISK_RUNS {
        let found = run(directory, ranks, (memory * MIB, disk * MIB), LIMIT / u64::from(ranks))?;
        let capacity = (u64::from(ranks) * memory + disk) * MIB;
        let lower_bound = bytes + (EPOCHS - 1) * bytes.saturating_sub(capacity);
        let about = format!("{ranks} ranks, {memory} MiB each, a disk of {disk} MiB, 100 MB/s");
        let over = sum(&found, |found| found.origin) / lower_bound as f64;
        let what = format!("{about}: origin bytes / lower bound");
        figures.push(Figure::new(what, Goal::AtMost(1.05), over, "times"));
        let (took, last) = (most(&found, |found| found.seconds), most(&found, |found| found.last));
        figures.push(Figure::new(format!("{about}: five epochs"), Goal::None, took, "s"));
        figures.push(Figure::new(format!("{about}: last epoch"), Goal::None, last, "s"));
    }
    for memory in [1024, 120] {
        let (mut rates, mut cpu) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let found = run(directory, 4, (memory * MIB, 0), 0)?;
            let samples = sum(&found, |found| found.samples);
            rates.push(samples / most(&found, |found| found.last));
            cpu.push(sum(&found, |found| found.cpu) * 1e6 / (samples * EPOCHS as f64));
        }
        let about = format!("4 ranks, no limit, {memory} MiB each");
        let target = if memory == 1024 { Goal::AtLeast(40_000.0) } else { Goal::None };
        let what = format!("{about}: last epoch, all ranks");
        figures.push(Figure::new(what, target, median(rates), "samples/s"));
        let what = format!("{about}: CPU per sample, five epochs");
        figures.push(Figure::new(what, Goal::None, median(cpu), "us/sample"));
    }
    for (kind, what) in [("unix", "a Unix socket"), ("tcp", "TCP on loopback")] {
        let wires = [WireProtection::Authenticated, WireProtection::Sealed, WireProtection::Checksummed];
        let wires = if kind == "unix" { &wires[2..] } else { &wires[..] };
        // In turns, so that other load affects all alike.
        let mut cpu = vec![Vec::new(); wires.len()];
        for _ in 0..ROUNDS {
            for (wire, cpu) in wires.iter().zip(&mut cpu) {
                cpu.push(subprocess::run::<f64>(&[&"ranks", &"wire", &kind, &wire.to_string()])?);
            }
        }
        let mut plain = Vec::new();
        for _ in 0..ROUNDS {
            plain.push(subprocess::run::<f64>(&[&"ranks", &"wire", &format!("plain-{kind}")])?);
        }
        let note = format!("bare sockets, one buffer, no checksums: {:.1}", median(plain));
        for (wire, cpu) in wires.iter().zip(cpu) {
            let what = format!("110 KB between two ranks over {what}, {wire}, CPU of both ends");
            let target = if *wire == WireProtection::Sealed { Goal::None } else { Goal::AtMost(25.0) };
            figures.push(Figure::new(what, target, median(cpu), "us/sample").note(note.clone()));
        }
    }
    Ok(figures)
}

pub fn part(args: &[String]) -> Result<()> {
    match args {
        [what, directory, memory, limit, disk, place] if what == "run" => {
            rank(directory, memory.parse()?, limit.parse()?, disk_of(place, disk.parse()?))
        }
        [what, kind] if what == "wire" && kind.starts_with("plain") => plain(kind),
        [what, kind, protection] if what == "wire" => wire(kind, protection.parse()?),
        _ => anyhow::bail!("unknown part {args:?}"),
    }
}

fn disk_of(directory: &str, bytes: u64) -> Option<Disk> {
    (bytes > 0).then(|| Disk { directory: directory.into(), bytes, shared: false })
}

fn rank(directory: &str, memory: u64, limit: u64, disk: Option<Disk>) -> Result<()> {
    let variable = |name: &str| std::env::var(name).ok();
    let number =
        |name: &str| variable(name).with_context(|| format!("no {name}"))?.parse().context("not a number");
    let mut config = Config::default();
    config.rank = RankOf { rank: number("RANK")?, ranks: number("WORLD_SIZE")? };
    (config.batch_size, config.epochs, config.look_ahead) = (32, EPOCHS, 16 * MIB);
    config.memory = Memory::Bytes(memory);
    config.disk.extend(disk);
    config.origin_limit = (limit > 0).then_some(limit);
    let meeting = Meeting::of(&config, &variable)?.context("no rendezvous is configured")?;
    let loader = Loader::builder_with(directory, config).peers(meeting).start()?;
    let start = Instant::now();
    let before = Usage::since(start);
    for batch in &loader {
        drop(batch?);
    }
    let used = Usage::since(start) - before;
    loader.leave(Duration::from_secs(60))?;
    let report = loader.report();
    let last = report.epochs.last().context("the report has no epochs")?;
    subprocess::print_result(&RankMeasurement {
        origin: report.origin_bytes as f64,
        seconds: used.seconds,
        last: last.seconds,
        samples: last.samples as f64,
        cpu: used.cpu,
        received_bytes: report.peers.map_or(0.0, |peers| peers.received_bytes as f64),
    })
}

/// A source of samples in memory for the peer server.
#[derive(Debug)]
struct MemorySource(Vec<Bytes>);

const LENGTH: usize = 110_000;
const SAMPLES_IN_MEMORY: u64 = 500;
const BATCH: usize = 64;
const READS_PER_ROUND: u64 = 20_000;

impl PeerService for MemorySource {
    fn serve(&self, _: Rank, requests: Vec<PeerRequest>) -> PeerReplies {
        let answer = |request: PeerRequest| {
            let bytes = self.0[request.key.id.0 as usize].clone();
            PeerReply::Done { tag: request.tag, result: Ok(bytes) }
        };
        futures::stream::iter(requests.into_iter().map(answer).collect::<Vec<_>>()).boxed()
    }
}

/// The lower bound of a transfer between two processes of a node. One thread writes samples into a
/// socket, another reads them into one reused buffer. There are no requests, checksums or new
/// buffers. Prints the CPU microseconds of both threads per sample.
fn plain(kind: &str) -> Result<()> {
    let kept: Vec<Vec<u8>> = (0..SAMPLES_IN_MEMORY).map(|id| vec![id as u8; LENGTH]).collect();
    let transfer = |mut into: Box<dyn Write + Send>, mut from: Box<dyn Read + Send>| -> Result<f64> {
        let start = Instant::now();
        let before = Usage::since(start);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut buffer = vec![0; LENGTH];
                while from.read_exact(&mut buffer).is_ok() {}
            });
            for at in 0..READS_PER_ROUND {
                into.write_all(&kept[(at % SAMPLES_IN_MEMORY) as usize])?;
            }
            drop(into);
            anyhow::Ok(())
        })?;
        Ok((Usage::since(start) - before).cpu * 1e6 / READS_PER_ROUND as f64)
    };
    let cpu = if kind == "plain-unix" {
        let (one, other) = std::os::unix::net::UnixStream::pair()?;
        transfer(Box::new(one), Box::new(other))?
    } else {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let one = std::net::TcpStream::connect(listener.local_addr()?)?;
        transfer(Box::new(one), Box::new(listener.accept()?.0))?
    };
    subprocess::print_result(&cpu)
}

/// Prints the CPU microseconds of both ends per sample. The client requests batches of 64, two in
/// flight.
fn wire(kind: &str, wire: WireProtection) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let directory = tempfile::tempdir()?;
    let address = match kind {
        "unix" => Address::local(directory.path().to_string_lossy()),
        _ => Address::Tcp("127.0.0.1".to_owned(), 0),
    };
    let identity = |rank| -> Result<Identity> {
        Ok(Identity { rank: Rank(rank), job: 1, token: Token::new("b7e1c95a03f64d2893ab5c17e0d68f42")? })
    };
    let source: Arc<dyn PeerService> =
        Arc::new(MemorySource((0..SAMPLES_IN_MEMORY).map(|id| vec![id as u8; LENGTH].into()).collect()));
    let (server, tier) = runtime.block_on(async {
        let network: Arc<dyn Transport> = Arc::new(SystemTransport);
        let listener = network.listen(&address).await?;
        let counters = Arc::new(PeerCounters::default());
        let server = PeerServer::start(
            runtime.handle(),
            identity(0)?,
            vec![listener],
            ServerLimits { wire, ..ServerLimits::default() },
            Arc::clone(&counters),
        );
        let run = RunId::new(Nonce::default(), &[]);
        server.enter(run);
        let weak: Weak<dyn PeerService> = Arc::downgrade(&source);
        server.serve(weak);
        let context = TierContext {
            buffers: Arc::new(ArenaBuffers::default()),
            runtime: runtime.handle().clone(),
            seed: 1,
        };
        let asker = PeerClientFactory::new(identity(1)?, run, network, &context, counters).with_wire(wire);
        let tier = asker.remote(Rank(0), server.addresses().to_vec());
        anyhow::Ok((server, tier))
    })?;
    let ask = |first: u64| {
        let request = |at: u64| {
            ReadRequest::new(
                SampleKey::new(DatasetId(0), SampleId((first + at) % SAMPLES_IN_MEMORY)),
                Object { path: "sample".into(), size: LENGTH as u64, version: None },
                Span::Whole,
                Tick(first + at),
            )
        };
        tier.read_all((0..BATCH as u64).map(request).collect())
    };
    let round = |samples: u64| -> Result<()> {
        runtime.block_on(async {
            let firsts = (0..samples).step_by(BATCH).map(ask);
            let mut answers = futures::stream::iter(firsts).flatten_unordered(2);
            while let Some(answer) = answers.next().await {
                answer.result?;
            }
            Ok(())
        })
    };
    round(READS_PER_ROUND / 10)?;
    let start = Instant::now();
    let before = Usage::since(start);
    round(READS_PER_ROUND)?;
    let used = Usage::since(start) - before;
    drop(server);
    subprocess::print_result(&(used.cpu * 1e6 / READS_PER_ROUND as f64))
}
