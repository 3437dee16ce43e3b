//! How another rank finds rank 0 and proves itself to it.
//!
//! Each attempt begins from what is true now: a notice is read again, because the one that is there may be an earlier
//! run's; of several ports each is tried, because another program may have one of them, or another meeting of this job.
//! What an end says that has not proved itself (another token, another version) is shown and passed over: anybody can say it.

use std::sync::Arc;
use std::time::Duration;

use foreread_types::Rank;

use super::MeetError;
use super::node::node_id;
use super::secret::PrivateDirectory;
use crate::{Address, Connection, Identity, Network, Token, WireError, WireErrorKind};

/// How long rank 0 may take to answer at one address: it may be answering a thousand others.
const ANSWER: Duration = Duration::from_secs(5);

/// Waits between attempts: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Where rank 0 is to be found.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// It wrote it there.
    Notice(PrivateDirectory),
    /// At one of these.
    Addresses(Vec<Address>),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Notice(directory) => directory.path().display().fmt(f),
            Self::Addresses(all) => match &all[..] {
                [first, .., Address::Tcp(_, last)] => write!(f, "{first}-{last}"),
                [one, ..] => one.fmt(f),
                [] => f.write_str("nowhere"),
            },
        }
    }
}

/// Finds rank 0.
#[derive(Clone, Debug)]
pub(super) struct Dial {
    pub network: Arc<dyn Network>,
    pub place: Place,
    pub rank: Rank,
    pub job: u64,
    pub meeting: u16,
    /// What the user gave.
    pub token: Option<Token>,
}

/// Rank 0, found.
#[derive(Debug)]
pub(super) struct Found {
    pub connection: Connection,
    pub at: Address,
    pub identity: Identity,
}

/// Why it was not.
#[derive(Debug)]
pub(super) enum Miss {
    /// It may be found later; what stood in the way, where it was more than that nobody is there.
    NotYet(Option<String>),
    /// Who answers there has another token.
    OtherToken(Address),
    /// It will not be.
    Never(MeetError),
}

/// Of several reasons, which says more: that of an end which answered, and above all that it has another version.
fn telling(why: &WireError) -> u8 {
    match why.kind() {
        WireErrorKind::Gone => 0,
        WireErrorKind::OtherVersion => 2,
        _ => 1,
    }
}

/// What a meeting of a process's n-th loader names as its job, so that the wrong one is refused.
pub(super) fn job_of(job: u64, meeting: u16) -> u64 {
    job.wrapping_add(u64::from(meeting))
}

impl Dial {
    /// One attempt.
    pub(super) async fn attempt(&self) -> Result<Found, Miss> {
        let (addresses, token) = match &self.place {
            Place::Addresses(all) => (all.clone(), self.token.clone()),
            Place::Notice(directory) => {
                let (directory, meeting) = (directory.clone(), self.meeting);
                let read = tokio::task::spawn_blocking(move || directory.notice(meeting)).await;
                let Ok(notice) = read else { return Err(Miss::NotYet(None)) };
                let Some(notice) = notice.map_err(Miss::Never)? else { return Err(Miss::NotYet(None)) };
                let near = notice.node == node_id();
                let parsed = notice.addresses.iter().filter_map(|address| address.parse().ok());
                let parsed = parsed.filter(|at| near || matches!(at, Address::Tcp(..))).collect();
                let made = notice.token.and_then(|token| Token::new(token).ok());
                (parsed, self.token.clone().or(made))
            }
        };
        let Some(token) = token else {
            let why = "rank 0 was given a token (FOREREAD_TOKEN), and this rank was not";
            return Err(Miss::NotYet(Some(why.to_owned())));
        };
        let identity = Identity { rank: self.rank, job: job_of(self.job, self.meeting), token };
        let (mut why, mut other_token): (Option<WireError>, _) = (None, None);
        for at in addresses {
            match Connection::open(&*self.network, &at, &identity, Some(Rank(0)), ANSWER).await {
                Ok((connection, _)) => {
                    return Ok(Found { connection, at, identity });
                }
                // Another job's rank 0 may be there, and this one's at the next.
                Err(error) if error.kind() == WireErrorKind::OtherToken => other_token = Some(at),
                Err(error) => {
                    if why.as_ref().is_none_or(|why| telling(why) < telling(&error)) {
                        why = Some(error);
                    }
                }
            }
        }
        Err(other_token.map_or(Miss::NotYet(why.map(|why| why.to_string())), Miss::OtherToken))
    }

    /// How long to wait after so many attempts in vain: longer each time, and for each rank a little other.
    pub(super) fn pause(&self, attempts: u32) -> Duration {
        let doubled = PAUSES.0 * (1 << attempts.min(6));
        let part =
            u64::from(self.rank.0).wrapping_mul(0x9e37_79b9).wrapping_add(u64::from(attempts) * 977) % 512;
        doubled.min(PAUSES.1) + PAUSES.0 * (part as u32) / 128
    }
}
