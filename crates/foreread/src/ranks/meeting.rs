//! The rendezvous of a run's ranks, from the launcher's environment or from the user.
//!
//! Nothing connects here. Contradictory settings are therefore reported before anything is opened.
//!
//! A process with several loaders has several rendezvous at one address, some of them concurrent.
//! The loader's number identifies each: the n-th loader of one rank joins the n-th of every other
//! rank. Collectives of `torch.distributed` follow the same rule. The price: all ranks must create
//! their loaders in the same order. The comparison at the rendezvous reports a violation.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foreread_host::JobHost;
use foreread_open::error::{Error, ErrorKind, Result};
use foreread_peer::meet::{
    INTERFACE, Launched, LauncherEnv, LoaderDirectory, MeetError, RendezvousProgress, RendezvousSettings,
    given_token,
};
use foreread_peer::{ServerLimits, Token, Transport};
use foreread_tier::lock;
use foreread_types::{Rank, RankOf};

use super::wire;
use crate::config::Config;

/// The most bytes that are read from the origin for other ranks or wait to be sent to them.
const SERVING: u64 = 64 << 20;

/// The error of a rendezvous that failed.
pub(super) fn not_met(error: impl Into<MeetError>) -> Error {
    Error::new(ErrorKind::Ranks, error.into().to_string())
}

/// The address and the terms of the rendezvous of a run's ranks, for
/// [`Builder::peers`](crate::Builder::peers). The [module](super) has an example.
///
/// Nothing connects before the run is prepared.
pub struct Meeting {
    pub(super) settings: RendezvousSettings,
    /// Starts the cache that the ranks of a node share.
    pub(super) host: JobHost,
}

impl std::fmt::Debug for Meeting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meeting").field("launched", &self.settings.launched).finish_non_exhaustive()
    }
}

impl Meeting {
    /// The warning for several ranks without a rendezvous.
    pub const ADVICE: &str = "ranks do not share their caches: no rendezvous is set; set FOREREAD_MEET to \
                              rank 0's host:port and FOREREAD_TOKEN to the output of `foreread token`, or \
                              FOREREAD_MEET to a directory that all ranks can access";

    /// The rendezvous from the launcher: torchrun, SLURM, Open MPI, MPICH, or `FOREREAD_MEET` with
    /// rank and world size. `None` for a single rank, or without an address. `environment` returns
    /// a variable's value.
    ///
    /// # Errors
    /// If the variables contradict each other, or the ranks' secret is missing and cannot be
    /// generated.
    pub fn of(config: &Config, environment: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let RankOf { rank, ranks } = config.rank;
        if ranks < 2 {
            return Ok(None);
        }
        // Lightning's own launcher sets the world size, but of the rank only the local one. The
        // program knows the rank from torch.distributed. Its rank completes the pair.
        let of_all = environment("WORLD_SIZE").is_some_and(|size| size.trim() == ranks.to_string());
        let completed =
            |name: &str| environment(name).or_else(|| (name == "RANK" && of_all).then(|| rank.to_string()));
        let surroundings = LauncherEnv::of_this_process(&completed);
        let rank = Rank(rank);
        let launched = Launched::by(&surroundings)
            .map_err(not_met)?
            .filter(|launched| (launched.rank, launched.world_size) == (rank, ranks));
        let launched = match launched {
            Some(launched) => launched,
            None => Launched::explicit(rank, ranks, &surroundings).map_err(not_met)?,
        };
        if launched.rendezvous.is_none() {
            return Ok(None);
        }
        let wire = wire::given(environment)?;
        let settings = RendezvousSettings {
            token: given_token(&surroundings).map_err(not_met)?,
            serving: ServerLimits { budget: SERVING, wire, ..ServerLimits::default() },
            interface: surroundings.get(INTERFACE),
            ..RendezvousSettings::new(launched, env!("CARGO_PKG_VERSION"))
        };
        Ok(Some(Self { settings, host: JobHost::default() }))
    }

    /// Sets the text that ranks on one node have in common, in place of the machine. For tests,
    /// which have several nodes in one process.
    #[doc(hidden)]
    #[must_use]
    pub fn node(mut self, node: impl Into<String>) -> Self {
        self.settings.node = node.into();
        self
    }

    /// Whether the rendezvous cannot pass a secret to the job's user alone, and no secret was set.
    pub fn needs_token(&self) -> bool {
        self.settings.launched.needs_token() && self.settings.token.is_none()
    }

    /// Sets the job's secret, unless the environment has one. All ranks need the same.
    #[must_use]
    pub fn token(mut self, token: Option<Token>) -> Self {
        self.settings.token = self.settings.token.or(token);
        self
    }

    /// Has the cache of this rank's node started by this, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn host(self, host: JobHost) -> Self {
        Self { host, ..self }
    }

    /// Sets the timeout of the rendezvous. Default: 5 minutes. A long operation that
    /// reports progress does not count towards it.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = deadline;
        self
    }

    /// Replaces the machine's sockets by another network.
    #[must_use]
    pub fn network(mut self, network: Arc<dyn Transport>) -> Self {
        self.settings.network = network;
        self
    }

    /// Sets a callback that gets the state of the wait about once a second.
    #[must_use]
    pub fn progress(mut self, progress: impl FnMut(&RendezvousProgress) + Send + Sync + 'static) -> Self {
        self.settings.progress = Box::new(progress);
        self
    }
}

/// The number of rendezvous of this process, per rank and address. A program that creates loaders
/// one after another keeps one of these for its whole life.
#[derive(Debug, Default)]
pub struct Meetings(Mutex<BTreeMap<(u32, String), MeetingCount>>);

/// The loaders of one rank at one address.
#[derive(Debug, Default)]
struct MeetingCount {
    made: u16,
    board: Arc<LoaderDirectory>,
}

impl Meetings {
    /// A counter without any rendezvous.
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// Gives `meeting` the next number of its rank and address.
    #[must_use]
    pub fn numbered(&self, mut meeting: Meeting) -> Meeting {
        let launched = &meeting.settings.launched;
        let place = format!("{:?}", launched.rendezvous);
        let mut counts = lock(&self.0);
        let loaders = counts.entry((launched.rank.0, place)).or_default();
        (meeting.settings.loader, meeting.settings.board) = (loaders.made, Arc::clone(&loaders.board));
        // The number wraps around: a loader from 65,536 loaders ago has ended.
        loaders.made = loaders.made.wrapping_add(1);
        meeting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rendezvous of rank 1 of 2 in this environment.
    fn meeting(environment: &[(&str, &str)]) -> Result<Option<Meeting>> {
        let config = Config { rank: RankOf { rank: 1, ranks: 2 }, ..Config::default() };
        let get =
            |name: &str| environment.iter().find(|(is, _)| *is == name).map(|(_, value)| (*value).to_owned());
        Meeting::of(&config, &get)
    }

    #[test]
    fn rank_of_the_program_completes_lightnings_variables() {
        let lightning = [
            ("WORLD_SIZE", "2"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", "29500"),
        ];
        let found = meeting(&lightning).unwrap().unwrap().settings.launched;
        assert_eq!((found.rank, found.world_size, found.local_rank), (Rank(1), 2, Some(1)));
        let torchrun: Vec<_> = lightning.into_iter().chain([("RANK", "1")]).collect();
        assert_eq!(found, meeting(&torchrun).unwrap().unwrap().settings.launched);
    }

    #[test]
    fn meetings_are_counted_for_each_rank_and_place() {
        let at = |rank, host: &str| {
            let config = Config { rank: RankOf { rank, ranks: 2 }, ..Config::default() };
            let get = |name: &str| match name {
                "FOREREAD_MEET" => Some(format!("{host}:7000")),
                "FOREREAD_TOKEN" => Some("b7e1c95a03f64d2893ab5c17e0d68f42".to_owned()),
                _ => None,
            };
            Meeting::of(&config, &get).unwrap().unwrap()
        };
        let meetings = Meetings::new();
        let number = |rank, host| meetings.numbered(at(rank, host)).settings.loader;
        assert_eq!((number(0, "a"), number(0, "a"), number(0, "a")), (0, 1, 2));
        // Threads may act as ranks, and another loader may have another address.
        assert_eq!((number(1, "a"), number(0, "b"), number(1, "a"), number(0, "a")), (0, 0, 1, 3));
    }

    #[test]
    // semantics: RANK-33
    fn token_is_needed_at_a_host_and_environment_takes_precedence() {
        const STRONG: &str = "b7e1c95a03f64d2893ab5c17e0d68f42";
        let ranks = [("RANK", "1"), ("WORLD_SIZE", "2")];
        let at = |more: &[(&str, &str)]| meeting(&[&ranks[..], more].concat()).unwrap().unwrap();
        let host = ("FOREREAD_MEET", "a:7000");
        assert!(at(&[host]).needs_token());
        assert!(at(&[("FOREREAD_MEET", "a:7000,b:7000")]).needs_token());
        assert!(!at(&[host, ("FOREREAD_TOKEN", STRONG)]).needs_token());
        // A directory passes the secret in a file.
        assert!(!at(&[("FOREREAD_MEET", "/tmp")]).needs_token());
        let other = || Some(Token::new("4c0d92f7ba8e4167a35e19d2c680fb73").unwrap());
        assert!(!at(&[host]).token(other()).needs_token());
        let given = at(&[host, ("FOREREAD_TOKEN", STRONG)]).token(other());
        assert_eq!(given.settings.token.unwrap().expose(), STRONG.as_bytes());
    }

    #[test]
    fn world_size_without_a_rank_is_an_error() {
        let error = meeting(&[("WORLD_SIZE", "4"), ("MASTER_ADDR", "127.0.0.1")]).unwrap_err().to_string();
        assert!(error.contains("WORLD_SIZE is set and RANK is not"), "{error}");
    }
}
