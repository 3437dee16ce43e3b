//! A job: the common settings of all ranks, and the start of one of them.

use std::sync::Arc;

use foreread::ranks::{Meeting, Meetings};
use foreread::{Builder, Config, Loader, Memory, State};
use foreread_host::JobHost;
use foreread_oracle::{Phase, PhaseKind, Run, Schedule};
use foreread_peer_testing::SimulatedNetwork;
use foreread_tier_testing::FakeOrigin;
use foreread_types::{DatasetId, Rank, SampleId};
use tokio::runtime::{Handle, Runtime};

use crate::fakes::Fakes;

/// The URL of the dataset.
pub const URL: &str = "fake://train";

/// A delivered sample, with its epoch.
pub type Delivered = (u64, SampleId);

/// The ranks of a job: each has its own host, `n0`, `n1` ...
#[derive(Clone, Debug)]
pub struct Job {
    pub network: SimulatedNetwork,
    pub origin: FakeOrigin,
    /// Rank 0's settings. Other ranks differ in the rank and in `memory`.
    pub config: Config,
    /// Per rank, in bytes.
    pub memory: Vec<u64>,
}

/// The name of a rank's host.
pub fn host(rank: u32) -> String {
    format!("n{rank}")
}

impl Job {
    pub fn ranks(&self) -> u32 {
        self.config.rank.ranks
    }

    fn of_rank(&self, rank: u32) -> Config {
        let mut config = self.config.clone();
        (config.rank.rank, config.memory) = (rank, Memory::Bytes(self.memory[rank as usize]));
        config
    }

    /// One rank, as started by its launcher.
    pub fn builder(&self, rank: u32) -> Builder {
        self.builder_in(&Meetings::new(), rank)
    }

    /// The next loader of a rank's process.
    pub fn builder_in(&self, meetings: &Meetings, rank: u32) -> Builder {
        self.builder_over(Fakes::default().with(URL, Arc::new(self.origin.clone())), meetings, rank)
    }

    /// The same over other stores.
    pub fn builder_over(&self, fakes: Fakes, meetings: &Meetings, rank: u32) -> Builder {
        let (config, ranks) = (self.of_rank(rank), self.ranks());
        let environment = |name: &str| match name {
            "RANK" => Some(rank.to_string()),
            "WORLD_SIZE" => Some(ranks.to_string()),
            "TORCHELASTIC_RUN_ID" => Some(format!("test-{}", std::process::id())),
            "FOREREAD_MEET" => Some(format!("{}:29000", host(0))),
            "FOREREAD_TOKEN" => Some("9a1c3e5f70b2d4866a8c0e1f3b5d7092".to_owned()),
            _ => None,
        };
        let meeting = Meeting::of(&config, &environment).unwrap();
        let builder = Loader::builder_with(URL, config).registry(fakes.registry()).runtime(Handle::current());
        match meeting {
            Some(meeting) => {
                let meeting = meetings.numbered(meeting);
                let meeting = meeting.host(JobHost::simulated()).node(host(rank));
                builder.peers(meeting.network(self.network.host(host(rank))))
            }
            // A single rank needs no rendezvous.
            None => builder,
        }
    }

    /// Starts all ranks from `state`.
    pub async fn start(&self, state: Option<&State>) -> Vec<Loader> {
        self.start_in(&Meetings::new(), state).await
    }

    /// Starts the next loader of each process.
    pub async fn start_in(&self, meetings: &Meetings, state: Option<&State>) -> Vec<Loader> {
        self.start_each(state, |rank| self.builder_in(meetings, rank)).await
    }

    /// Starts the loader of each rank by its builder.
    pub async fn start_each(&self, state: Option<&State>, builder: impl Fn(u32) -> Builder) -> Vec<Loader> {
        let starting: Vec<_> = (0..self.ranks())
            .map(|rank| {
                let mut builder = builder(rank);
                if let Some(state) = state.filter(|_| rank == 0) {
                    builder = builder.resume(state.clone());
                }
                tokio::spawn(builder.start_async())
            })
            .collect();
        let mut loaders = Vec::new();
        for starting in starting {
            loaders.push(starting.await.unwrap().unwrap());
        }
        loaders
    }

    /// The samples that a rank must deliver, from the arithmetic alone.
    pub fn expected(&self, rank: u32) -> Vec<Delivered> {
        self.expected_of(self.origin.samples(), rank)
    }

    /// The same for this number of samples.
    pub fn expected_of(&self, samples: u64, rank: u32) -> Vec<Delivered> {
        let Config { sampler, seed, epochs, deal, .. } = self.config;
        let phase = Phase {
            kind: PhaseKind::Train,
            dataset: DatasetId(0),
            sampler: foreread::order::sampler(sampler, samples, seed).unwrap(),
            batch_size: Some(self.config.batch_size),
            drop_last: self.config.drop_last,
        };
        let schedule = Arc::new(Schedule::new(epochs, vec![phase]).unwrap());
        let run = Run::new(schedule, deal, self.ranks(), Rank(rank)).unwrap();
        let of_pass = |pass: foreread_oracle::Pass| {
            let stream = run.stream(&pass).unwrap();
            (0..stream.len()).map(move |at| (pass.epoch, stream.at(at))).collect::<Vec<_>>()
        };
        run.passes().flat_map(of_pass).collect()
    }
}

/// One thread, and a clock that stops while any task can run.
pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}
