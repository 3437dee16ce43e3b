//! Where ranks meet: what their launcher says, and what a user says instead.
//!
//! Nothing is connected here, so that what contradicts itself is said before anything is opened.
//!
//! A process that makes several loaders comes to several meetings at one place, some of them side
//! by side. They are told apart by their loader's number: the n-th of one rank is the n-th of all,
//! as it is with collectives of `torch.distributed`. The price is that all ranks make their loaders
//! in the same order; where they do not, what they compare when they meet says so.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use foreread_launcher::{LaunchError, Rendezvous};
use foreread_peer::meet::{
    INTERFACE, Launched, LauncherEnv, LoaderDirectory, MeetError, RendezvousProgress, given_token,
};
use foreread_peer::{SystemTransport, Token, Transport, WireProtection};
use foreread_types::Rank;

use super::wire;
use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};

/// How long ranks wait for each other before they give up; what takes long and is seen to go on
/// does not count.
const DEADLINE: Duration = Duration::from_secs(300);

impl From<MeetError> for Error {
    fn from(error: MeetError) -> Self {
        Self::new(ErrorKind::Ranks, error.to_string())
    }
}

impl From<LaunchError> for Error {
    fn from(error: LaunchError) -> Self {
        MeetError::from(error).into()
    }
}

/// Where and how the ranks of a run find each other.
pub struct Meeting {
    pub(super) launched: Launched,
    pub(super) number: u16,
    /// Where the process's loaders are met, which all of them share.
    pub(super) board: Arc<LoaderDirectory>,
    pub(super) token: Option<Token>,
    pub(super) network: Arc<dyn Transport>,
    pub(super) wire: WireProtection,
    /// The network interfaces that other nodes use.
    pub(super) interface: Option<String>,
    pub(super) deadline: Duration,
    pub(super) progress: Box<dyn FnMut(&RendezvousProgress) + Send + Sync>,
}

impl std::fmt::Debug for Meeting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meeting").field("launched", &self.launched).finish_non_exhaustive()
    }
}

impl Meeting {
    /// What to say where there are several ranks, and nothing says where they could meet.
    pub const ADVICE: &str = "ranks read for themselves: nothing says where they could meet; set \
                              FOREREAD_MEET to rank 0's \
                              host:port and FOREREAD_TOKEN to what `foreread token` prints, or FOREREAD_MEET \
                              to a directory \
                              that all ranks see";

    /// What the launcher says (torchrun, SLURM, Open MPI, MPICH, or `FOREREAD_MEET` with rank and
    /// world size); none where there is only one rank, or nothing says where ranks could meet.
    /// `environment` gives a variable's value.
    ///
    /// # Errors
    /// If what is said contradicts itself, or the ranks' secret is missing where it cannot be made.
    pub fn of(config: &Config, environment: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        if config.world_size < 2 {
            return Ok(None);
        }
        let (rank, world_size) = (Rank(config.rank), config.world_size);
        // Lightning's own launcher says how many ranks there are, and of the rank only which it is
        // on its node: whoever knows it (torch.distributed) has said it, and that completes the
        // pair.
        let of_all = environment("WORLD_SIZE").is_some_and(|size| size.trim() == world_size.to_string());
        let completed = |name: &str| {
            environment(name).or_else(|| (name == "RANK" && of_all).then(|| config.rank.to_string()))
        };
        let surroundings = LauncherEnv::of_this_process(&completed);
        let launched = Launched::by(&surroundings)?
            .filter(|launched| (launched.rank, launched.world_size) == (rank, world_size));
        let launched = match launched {
            Some(launched) => launched,
            None => Launched::explicit(rank, world_size, &surroundings)?,
        };
        if launched.rendezvous.is_none() {
            return Ok(None);
        }
        let token = given_token(&surroundings)?;
        let (network, wire) = (Arc::new(SystemTransport), wire::given(environment)?);
        let interface = surroundings.get(INTERFACE);
        let (number, board, progress) = (0, Arc::default(), Box::new(|_: &RendezvousProgress| ()));
        let deadline = DEADLINE;
        Ok(Some(Self { launched, number, board, token, network, wire, interface, deadline, progress }))
    }

    /// Whether ranks meet where no secret can be passed to the job's user alone, and none was
    /// given.
    pub fn needs_token(&self) -> bool {
        let open = matches!(self.launched.rendezvous, Some(Rendezvous::Host { .. } | Rendezvous::List(_)));
        open && self.token.is_none()
    }

    /// The same with the job's secret, where the environment has none. What the environment has is
    /// kept.
    #[must_use]
    pub fn token(self, token: Option<Token>) -> Self {
        Self { token: self.token.or(token), ..self }
    }

    /// The same with another deadline for the ranks to come.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// The same over another network than the machine's sockets.
    #[must_use]
    pub fn network(self, network: Arc<dyn Transport>) -> Self {
        Self { network, ..self }
    }

    /// The same, telling `progress` about once a second what is being waited for.
    #[must_use]
    pub fn progress(self, progress: impl FnMut(&RendezvousProgress) + Send + Sync + 'static) -> Self {
        Self { progress: Box::new(progress), ..self }
    }
}

/// How many meetings this process has come to, as each rank and at each place. A program that makes
/// loaders one after another keeps one of these for as long as it runs.
#[derive(Debug, Default)]
pub struct Meetings(Mutex<BTreeMap<(u32, String), MeetingCount>>);

/// The loaders of a rank at a place.
#[derive(Debug, Default)]
struct MeetingCount {
    made: u16,
    board: Arc<LoaderDirectory>,
}

impl Meetings {
    /// None so far.
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// The meeting as the next one of its rank at its place.
    #[must_use]
    pub fn numbered(&self, meeting: Meeting) -> Meeting {
        let launched = &meeting.launched;
        let place = format!("{:?}", launched.rendezvous);
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let loaders = counts.entry((launched.rank.0, place)).or_default();
        let (number, board) = (loaders.made, Arc::clone(&loaders.board));
        // Those of 65,536 loaders ago have ended.
        loaders.made = number.wrapping_add(1);
        drop(counts);
        Meeting { number, board, ..meeting }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of where rank 1 of 2 meets, in this environment.
    fn meeting(environment: &[(&str, &str)]) -> Result<Option<Meeting>> {
        let config = Config { rank: 1, world_size: 2, ..Config::default() };
        let get =
            |name: &str| environment.iter().find(|(is, _)| *is == name).map(|(_, value)| (*value).to_owned());
        Meeting::of(&config, &get)
    }

    #[test]
    fn a_rank_that_the_program_knows_completes_what_lightning_says() {
        let lightning = [
            ("WORLD_SIZE", "2"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", "29500"),
        ];
        let found = meeting(&lightning).unwrap().unwrap().launched;
        assert_eq!((found.rank, found.world_size, found.local_rank), (Rank(1), 2, Some(1)));
        let torchrun: Vec<_> = lightning.into_iter().chain([("RANK", "1")]).collect();
        assert_eq!(found, meeting(&torchrun).unwrap().unwrap().launched);
    }

    #[test]
    fn meetings_are_counted_for_each_rank_and_place() {
        let at = |rank, host: &str| {
            let config = Config { rank, world_size: 2, ..Config::default() };
            let get = |name: &str| match name {
                "FOREREAD_MEET" => Some(format!("{host}:7000")),
                "FOREREAD_TOKEN" => Some("b7e1c95a03f64d2893ab5c17e0d68f42".to_owned()),
                _ => None,
            };
            Meeting::of(&config, &get).unwrap().unwrap()
        };
        let meetings = Meetings::new();
        let number = |rank, host| meetings.numbered(at(rank, host)).number;
        assert_eq!((number(0, "a"), number(0, "a"), number(0, "a")), (0, 1, 2));
        // Threads may play ranks, and another place may be named for another loader.
        assert_eq!((number(1, "a"), number(0, "b"), number(1, "a"), number(0, "a")), (0, 0, 1, 3));
    }

    #[test]
    // semantics: RANK-33
    fn token_is_needed_at_a_host_and_that_of_the_environment_counts() {
        const STRONG: &str = "b7e1c95a03f64d2893ab5c17e0d68f42";
        let ranks = [("RANK", "1"), ("WORLD_SIZE", "2")];
        let at = |more: &[(&str, &str)]| meeting(&[&ranks[..], more].concat()).unwrap().unwrap();
        let host = ("FOREREAD_MEET", "a:7000");
        assert!(at(&[host]).needs_token());
        assert!(at(&[("FOREREAD_MEET", "a:7000,b:7000")]).needs_token());
        assert!(!at(&[host, ("FOREREAD_TOKEN", STRONG)]).needs_token());
        // There the secret is passed in a file.
        assert!(!at(&[("FOREREAD_MEET", "/tmp")]).needs_token());
        let other = || Some(Token::new("4c0d92f7ba8e4167a35e19d2c680fb73").unwrap());
        assert!(!at(&[host]).token(other()).needs_token());
        let given = at(&[host, ("FOREREAD_TOKEN", STRONG)]).token(other());
        assert_eq!(given.token.unwrap().expose(), STRONG.as_bytes());
    }

    #[test]
    fn another_world_size_than_the_programs_is_still_half_of_a_pair() {
        let error = meeting(&[("WORLD_SIZE", "4"), ("MASTER_ADDR", "127.0.0.1")]).unwrap_err().to_string();
        assert!(error.contains("WORLD_SIZE is set and RANK is not"), "{error}");
    }
}
