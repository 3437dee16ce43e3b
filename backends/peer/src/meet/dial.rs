//! Finds rank 0, connects to it and authenticates.
//!
//! Each attempt starts over. A notice is read again, because an earlier run may have left the last
//! one. All addresses are tried, because another program may listen at some of them. Replies of
//! unauthenticated peers (another token, another version) are reported and otherwise ignored,
//! because they may be forged.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use foreread_connection::{Address, ControlConnection, Identity, Token, Transport, WireError, WireErrorKind};
use foreread_types::Rank;
use tokio::time::{Instant, timeout};

use super::interfaces::is_anywhere;
use super::node::node_id;
use super::notice::{PrivateDirectory, Rank0Notice};
use super::{MeetError, MeetErrorKind};
use crate::first_of::first_of;

/// Timeout of connect and handshake at one address. Rank 0 may be busy with a thousand other ranks.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Delay before the next address is tried concurrently.
const CONNECT_STAGGER: Duration = Duration::from_millis(250);

/// How often a notice is read again while its addresses are tried.
const NOTICE_REREAD_INTERVAL: Duration = Duration::from_secs(1);

/// How long only this node is searched for rank 0, if the ranks should be on one node.
const FALLBACK_DELAY: Duration = Duration::from_secs(5);

/// Retry delays: the first, the longest before the start, and the longest during the run. The run
/// does not depend on rank 0, and a thousand ranks should not list a shared directory each second
/// for days.
const RETRY_DELAYS: (Duration, Duration, Duration) =
    (Duration::from_millis(20), Duration::from_secs(1), Duration::from_secs(60));

/// Retries after which the longest delay is doubled during the run.
const SLOWER_AFTER_ATTEMPTS: u32 = 8;

/// Where to look for rank 0.
#[derive(Clone, Debug)]
pub(super) enum Rank0Location {
    /// In a notice in this directory.
    Notice(PrivateDirectory),
    /// At these addresses.
    Addresses(Vec<Address>),
}

impl std::fmt::Display for Rank0Location {
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

/// Finds rank 0 and connects to it.
#[derive(Clone, Debug)]
pub(super) struct Rank0Dialer {
    network: Arc<dyn Transport>,
    pub place: Rank0Location,
    /// Also tried after [`FALLBACK_DELAY`].
    fallback: Vec<Address>,
    pub rank: Rank,
    job: u64,
    loader: u16,
    /// The user's token, or the token that all ranks of a node derive.
    token: Option<Token>,
    began: Instant,
    /// The addresses to which rank 0's process has redirected this loader.
    redirected: Vec<Address>,
}

/// An authenticated connection to rank 0.
pub(super) struct Rank0Connection {
    pub connection: ControlConnection,
    pub at: Address,
    pub identity: Identity,
}

/// Why an attempt failed.
#[derive(Debug)]
pub(super) enum DialError {
    /// A later attempt may succeed. With the reason, unless no process listens there.
    NotYet(Option<String>),
    /// The process at this address has another token.
    OtherToken(Address),
    /// No later attempt can succeed.
    Fatal(MeetError),
}

/// Ranks errors for messages: a refused connection is the least informative, another version the
/// most.
fn informativeness(why: &WireError) -> u8 {
    match why.kind() {
        WireErrorKind::Disconnected => 0,
        WireErrorKind::OtherVersion => 2,
        _ => 1,
    }
}

impl Rank0Dialer {
    pub(super) fn new(
        network: Arc<dyn Transport>,
        place: Rank0Location,
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

    /// Rank 0's notice, if there is one.
    async fn notice(&self) -> Result<Option<Rank0Notice>, DialError> {
        let Rank0Location::Notice(directory) = &self.place else { return Ok(None) };
        let (directory, loader) = (directory.clone(), self.loader);
        match tokio::task::spawn_blocking(move || directory.notice(loader)).await {
            Ok(Err(error)) if error.kind() == MeetErrorKind::Network => {
                Err(DialError::NotYet(Some(error.to_string())))
            }
            Ok(notice) => notice.map_err(DialError::Fatal),
            Err(_) => Err(DialError::NotYet(None)),
        }
    }

    /// One attempt.
    pub(super) async fn attempt(&self) -> Result<Rank0Connection, DialError> {
        let Rank0Location::Addresses(all) = &self.place else { return self.by_notice().await };
        let Some(token) = self.token.clone() else { return Err(DialError::NotYet(None)) };
        self.race(self.addresses(all, Instant::now()), token).await
    }

    /// The addresses of an attempt at the time `now`, the first ones first.
    fn addresses(&self, all: &[Address], now: Instant) -> Vec<Address> {
        let has_waited = now.duration_since(self.began) >= FALLBACK_DELAY;
        let fallback = self.fallback.iter().filter(|_| has_waited);
        self.redirected.iter().chain(all).chain(fallback).cloned().collect()
    }

    /// One attempt at the addresses of the notice. It ends when the notice changes: the hosts in an
    /// earlier run's notice may not answer, and the new notice must not wait for them.
    async fn by_notice(&self) -> Result<Rank0Connection, DialError> {
        let Some(notice) = self.notice().await? else { return Err(DialError::NotYet(None)) };
        let near = notice.node == node_id();
        let parsed = notice.addresses.iter().filter_map(|address| address.parse().ok());
        let addresses = parsed.filter(|at| near || matches!(at, Address::Tcp(..))).collect();
        let made = notice.token.as_ref().and_then(|token| Token::new(token).ok());
        let Some(token) = self.token.clone().or(made) else {
            let why = "rank 0 has a token (FOREREAD_TOKEN), and this rank has none";
            return Err(DialError::NotYet(Some(why.to_owned())));
        };
        let mut found = pin!(self.race(addresses, token));
        loop {
            if let Ok(found) = timeout(NOTICE_REREAD_INTERVAL, &mut found).await {
                return found;
            }
            if self.notice().await?.is_none_or(|now| now.instance != notice.instance) {
                return Err(DialError::NotYet(None));
            }
        }
    }

    /// Connects to the addresses, staggered, and returns the first connection to rank 0. A slow
    /// address delays no other.
    async fn race(&self, addresses: Vec<Address>, token: Token) -> Result<Rank0Connection, DialError> {
        let identity = &Identity { rank: self.rank, job: self.job, token };
        let open = |at: Address| async move {
            ControlConnection::open(&*self.network, &at, identity, Some(Rank(0)), HANDSHAKE_TIMEOUT).await
        };
        let errors = match first_of(addresses, CONNECT_STAGGER, open).await {
            Ok((at, (connection, _))) => {
                return Ok(Rank0Connection { connection, at, identity: identity.clone() });
            }
            Err(errors) => errors,
        };
        let mut other_token = errors.iter().filter(|(_, error)| error.kind() == WireErrorKind::OtherToken);
        if let Some((at, _)) = other_token.next_back() {
            return Err(DialError::OtherToken(at.clone()));
        }
        let why = errors.iter().map(|(_, why)| why).rev().max_by_key(|why| informativeness(why));
        Err(DialError::NotYet(why.map(ToString::to_string)))
    }

    /// The retry delay after this many attempts: exponential backoff with a jitter that depends on
    /// the rank. `runs`: the run has started.
    pub(super) fn retry_delay(&self, attempts: u32, runs: bool) -> Duration {
        let doubled = (RETRY_DELAYS.0 * (1 << attempts.min(6))).min(RETRY_DELAYS.1);
        let slower = if runs { attempts / SLOWER_AFTER_ATTEMPTS } else { 0 };
        let longest = (doubled * (1 << slower.min(6))).min(RETRY_DELAYS.2);
        let part =
            u64::from(self.rank.0).wrapping_mul(0x9e37_79b9).wrapping_add(u64::from(attempts) * 977) % 512;
        // Jitter of up to 80 ms, or of a twelfth of the delay if that is more.
        longest + (RETRY_DELAYS.0 * (part as u32) / 128).max(longest / 12 * (part as u32) / 512)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dial(rank: u32, fallback: Vec<Address>) -> Rank0Dialer {
        let place = Rank0Location::Addresses(Vec::new());
        Rank0Dialer::new(Arc::new(crate::SystemTransport), place, Rank(rank), 1, 0, None, fallback)
    }

    #[test]
    // semantics: RANK-8
    fn host_is_tried_when_a_node_was_searched_for_five_seconds() {
        let [on_node, host] = [Address::tcp("local", 1), Address::tcp("host", 1)];
        let dial = dial(3, vec![host.clone()]);
        let on_nodes = std::slice::from_ref(&on_node);
        let after = |ms| dial.addresses(on_nodes, dial.began + Duration::from_millis(ms));
        assert_eq!(after(4999), on_nodes);
        assert_eq!(after(5000), [on_node.clone(), host]);
    }

    #[test]
    fn retries_for_a_dead_rank_0_slow_down_to_one_a_minute() {
        let dial = |rank| dial(rank, Vec::new());
        let second = Duration::from_secs(1);
        assert!(dial(3).retry_delay(1, true) < second / 5);
        assert!((7..1000).all(|attempts| dial(3).retry_delay(attempts, false) < second * 2));
        assert!(dial(3).retry_delay(7, true) < second * 2);
        assert!((second * 60..second * 66).contains(&dial(3).retry_delay(100, true)));
        // The ranks do not retry at the same time.
        assert_ne!(dial(3).retry_delay(100, true), dial(4).retry_delay(100, true));
    }
}
