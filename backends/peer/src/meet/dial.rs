//! How another rank finds rank 0 and proves itself to it.
//!
//! Each attempt begins from what is true now: a notice is read again, because the one that is there may be an earlier
//! run's; of several addresses each is tried, because another program may have one of them, or nobody is there any more.
//! What an end says that has not proved itself (another token, another version) is shown and passed over: anybody can say it.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use foreread_types::Rank;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, timeout};

use super::ground::is_anywhere;
use super::node::node_id;
use super::notice::{Notice, PrivateDirectory};
use super::{MeetError, MeetErrorKind};
use crate::{Address, Connection, Identity, Network, Token, WireError, WireErrorKind};

/// How long rank 0 may take to answer at one address: it may be answering a thousand others.
const ANSWER: Duration = Duration::from_secs(5);

/// How long one address has before the next is tried beside it.
const HEAD_START: Duration = Duration::from_millis(250);

/// How often a notice is read again while its addresses are tried.
const REREAD: Duration = Duration::from_secs(1);

/// How long rank 0 is looked for on this node alone, where ranks are said to be on one.
const NODE_ONLY: Duration = Duration::from_secs(5);

/// Waits between attempts: the first, the longest before the start, and the longest during the run, which does not depend on
/// rank 0: a thousand ranks are not to look into a shared directory each second for days.
const PAUSES: (Duration, Duration, Duration) =
    (Duration::from_millis(20), Duration::from_secs(1), Duration::from_secs(60));

/// Attempts after which the wait of a second is doubled during the run.
const DOUBLED_AFTER: u32 = 8;

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
    network: Arc<dyn Network>,
    pub place: Place,
    /// Tried, too, where it is not found for [`NODE_ONLY`].
    fallback: Vec<Address>,
    pub rank: Rank,
    job: u64,
    loader: u16,
    /// What the user gave, or what all ranks know.
    token: Option<Token>,
    began: Instant,
    /// Where rank 0's process said that this loader is.
    redirected: Vec<Address>,
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

impl Dial {
    pub(super) fn new(
        network: Arc<dyn Network>,
        place: Place,
        rank: Rank,
        job: u64,
        loader: u16,
        token: Option<Token>,
        fallback: Vec<Address>,
    ) -> Self {
        let (redirected, began) = (Vec::new(), Instant::now());
        Self { network, place, fallback, rank, job, loader, token, began, redirected }
    }

    /// Rank 0's process, reached at `at`, has this loader at these addresses.
    pub(super) fn redirected(&mut self, at: &Address, addresses: Vec<Address>) {
        let reached = |address: Address| match (address, at) {
            (Address::Tcp(host, port), Address::Tcp(known, _)) if is_anywhere(&host) => {
                Address::tcp(known.clone(), port)
            }
            (Address::Tcp(host, port), Address::Local(_)) if is_anywhere(&host) => {
                Address::tcp("localhost", port)
            }
            (address, _) => address,
        };
        self.redirected = addresses.into_iter().map(reached).collect();
    }

    /// What rank 0 wrote for the others, if it did.
    async fn notice(&self) -> Result<Option<Notice>, Miss> {
        let Place::Notice(directory) = &self.place else { return Ok(None) };
        let (directory, loader) = (directory.clone(), self.loader);
        match tokio::task::spawn_blocking(move || directory.notice(loader)).await {
            Ok(Err(error)) if error.kind() == MeetErrorKind::Network => {
                Err(Miss::NotYet(Some(error.to_string())))
            }
            Ok(notice) => notice.map_err(Miss::Never),
            Err(_) => Err(Miss::NotYet(None)),
        }
    }

    /// One attempt.
    pub(super) async fn attempt(&self) -> Result<Found, Miss> {
        let Place::Addresses(all) = &self.place else { return self.by_notice().await };
        let Some(token) = self.token.clone() else { return Err(Miss::NotYet(None)) };
        let mut addresses: Vec<_> = self.redirected.iter().chain(all).cloned().collect();
        if self.began.elapsed() >= NODE_ONLY {
            addresses.extend(self.fallback.iter().cloned());
        }
        self.race(addresses, token).await
    }

    /// One attempt at the addresses of the notice, for as long as that stays: one that an earlier run left names hosts that
    /// do not answer, and its successor must not wait for them.
    async fn by_notice(&self) -> Result<Found, Miss> {
        let Some(notice) = self.notice().await? else { return Err(Miss::NotYet(None)) };
        let near = notice.node == node_id();
        let parsed = notice.addresses.iter().filter_map(|address| address.parse().ok());
        let addresses = parsed.filter(|at| near || matches!(at, Address::Tcp(..))).collect();
        let made = notice.token.as_ref().and_then(|token| Token::new(token).ok());
        let Some(token) = self.token.clone().or(made) else {
            let why = "rank 0 was given a token (FOREREAD_TOKEN), and this rank was not";
            return Err(Miss::NotYet(Some(why.to_owned())));
        };
        let mut found = pin!(self.race(addresses, token));
        loop {
            if let Ok(found) = timeout(REREAD, &mut found).await {
                return found;
            }
            if self.notice().await?.is_none_or(|now| now.instance != notice.instance) {
                return Err(Miss::NotYet(None));
            }
        }
    }

    /// The first of some addresses at which rank 0 answers. Each gets a head start before the next, and the slowest holds up
    /// no other.
    async fn race(&self, addresses: Vec<Address>, token: Token) -> Result<Found, Miss> {
        let identity = &Identity { rank: self.rank, job: self.job, token };
        let open = |at: Address| async move {
            let opened = Connection::open(&*self.network, &at, identity, Some(Rank(0)), ANSWER).await;
            (at, opened)
        };
        let (mut waiting, mut tried) = (VecDeque::from(addresses), FuturesUnordered::new());
        let (mut why, mut other_token): (Option<WireError>, _) = (None, None);
        loop {
            if let Some(next) = waiting.pop_front() {
                tried.push(open(next));
            }
            // The last ones are waited for until they fail.
            let head_start = if waiting.is_empty() { ANSWER * 2 } else { HEAD_START };
            let Ok(answered) = timeout(head_start, tried.next()).await else { continue };
            match answered {
                None => break,
                Some((at, Ok((connection, _)))) => {
                    return Ok(Found { connection, at, identity: identity.clone() });
                }
                // Another job's rank 0 may be there, and this one's at the next.
                Some((at, Err(error))) if error.kind() == WireErrorKind::OtherToken => other_token = Some(at),
                Some((_, Err(error))) => {
                    if why.as_ref().is_none_or(|why| telling(why) < telling(&error)) {
                        why = Some(error);
                    }
                }
            }
        }
        Err(other_token.map_or(Miss::NotYet(why.map(|why| why.to_string())), Miss::OtherToken))
    }

    /// How long to wait after so many attempts in vain: longer each time, and for each rank a little other. `runs` where the
    /// ranks have started.
    pub(super) fn pause(&self, attempts: u32, runs: bool) -> Duration {
        let doubled = (PAUSES.0 * (1 << attempts.min(6))).min(PAUSES.1);
        let slower = if runs { attempts / DOUBLED_AFTER } else { 0 };
        let longest = (doubled * (1 << slower.min(6))).min(PAUSES.2);
        let part =
            u64::from(self.rank.0).wrapping_mul(0x9e37_79b9).wrapping_add(u64::from(attempts) * 977) % 512;
        // Up to 80 ms more, or as much as a twelfth.
        longest + (PAUSES.0 * (part as u32) / 128).max(longest / 12 * (part as u32) / 512)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_0_that_is_gone_is_looked_for_once_a_minute_in_the_end() {
        let place = Place::Addresses(Vec::new());
        let dial =
            |rank| Dial::new(Arc::new(crate::System), place.clone(), Rank(rank), 1, 0, None, Vec::new());
        let second = Duration::from_secs(1);
        assert!(dial(3).pause(1, true) < second / 5);
        assert!((7..1000).all(|attempts| dial(3).pause(attempts, false) < second * 2));
        assert!(dial(3).pause(7, true) < second * 2);
        assert!((second * 60..second * 66).contains(&dial(3).pause(100, true)));
        // Not all at once.
        assert_ne!(dial(3).pause(100, true), dial(4).pause(100, true));
    }
}
