//! Where the stores of a job's nodes meet: as its ranks do, next to them.
//!
//! One store of rank 0's node listens, and publishes a notice if nodes meet in a directory. The
//! others look for it. The address, the notice and the token follow the rules of ranks, for the
//! rendezvous of [`Launched::between_nodes`]. There are no steps: each store comes when it can.

use std::time::Duration;

use foreread_connection::{Address, ControlConnection, Identity, Token, TransportListener, token};
use foreread_launcher::{Launched, Rendezvous};
use foreread_types::Rank;
use tokio::time::sleep;

use super::dial::{DialError, Rank0Connection, Rank0Dialer, Rank0Location};
use super::endpoint::LocalEndpoint;
use super::notice::no_token;
use super::settings::RendezvousSettings;
use super::{MeetError, MeetErrorKind};

/// The meeting of this node's store with those of the other nodes. Dropping it withdraws its
/// notice.
#[derive(Debug)]
pub struct NodeMeeting {
    endpoint: LocalEndpoint,
    token: Option<Token>,
    dialer: Rank0Dialer,
    is_hosting: bool,
}

impl NodeMeeting {
    /// Checks the rendezvous of [`Launched::between_nodes`]. `interface` names the networks for
    /// connections to other nodes.
    ///
    /// # Errors
    /// If the rendezvous is unknown, or the token is missing, or a directory is not private.
    pub async fn new(
        nodes: Launched,
        token: Option<Token>,
        interface: Option<String>,
    ) -> Result<Self, MeetError> {
        let random = token::random().map_err(MeetError::no_random(MeetErrorKind::Broken))?;
        let process = u64::from_le_bytes(*random.first_chunk().unwrap_or(&[0; 8]));
        let settings = RendezvousSettings { token, interface, ..RendezvousSettings::new(nodes, "") };
        let endpoint = LocalEndpoint::new(&settings, process).await?;
        let dialer = endpoint.dial(settings.token.clone());
        Ok(Self { endpoint, token: settings.token, dialer, is_hosting: false })
    }

    /// Listens for the other nodes, on rank 0's node. From now on, this node finds itself.
    ///
    /// # Errors
    /// If it cannot listen there, or cannot write the notice.
    pub async fn host(&mut self) -> Result<(Vec<Box<dyn TransportListener>>, Identity), MeetError> {
        let made = if self.token.is_some() { None } else { self.endpoint.generated_token()? };
        let token = self.token.clone().or_else(|| made.clone());
        let token = token.ok_or_else(|| no_token(&self.dialer.place))?;
        let listeners = self.endpoint.listen().await?;
        let listens: Vec<Address> = listeners.iter().map(|listener| listener.address().clone()).collect();
        self.endpoint.publish(&self.endpoint.advertised(&listens), made.as_ref(), false).await?;
        let identity = self.identity(token.clone());
        // The name by which others reach this host may not lead here.
        let (network, place) = (self.endpoint.network.clone(), Rank0Location::Addresses(listens));
        let (rank, job) = (identity.rank, identity.job);
        self.dialer = Rank0Dialer::new(network, place, rank, job, 0, Some(token), Vec::new());
        self.is_hosting = true;
        Ok((listeners, identity))
    }

    /// One attempt to connect to the store that listens.
    ///
    /// # Errors
    /// The reason, if there is one but that it does not listen yet.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub async fn find(&self) -> Result<(ControlConnection, Identity), Option<String>> {
        match self.dialer.attempt().await {
            Ok(Rank0Connection { connection, identity, .. }) => {
                Ok((connection, self.identity(identity.token)))
            }
            Err(DialError::NotYet(why)) => Err(why),
            Err(DialError::OtherToken(at)) => Err(Some(format!("{at} has another token"))),
            Err(DialError::Fatal(error)) => Err(Some(error.to_string())),
        }
    }

    /// Whether this node is to host the next one when the store that listens is gone.
    pub fn hosts_next(&self) -> bool {
        self.endpoint.launched.rank.0 == 0 && !self.is_hosting
    }

    /// Waits before attempt `attempts + 1`.
    pub async fn pause(&self, attempts: u32) {
        sleep(self.dialer.retry_delay(attempts, true)).await;
    }

    /// All stores of the job have one identity, for connections between any two of them.
    fn identity(&self, token: Token) -> Identity {
        Identity { rank: Rank(0), job: self.endpoint.launched.job_hash(), token }
    }

    /// An address of rank 0's node, or of this one if it is in a notice.
    pub fn towards(&self) -> Address {
        match &self.endpoint.launched.rendezvous {
            Some(Rendezvous::Host { host, ports }) => {
                Address::tcp(host.clone(), ports.first().copied().unwrap_or_default())
            }
            _ => Address::tcp("127.0.0.1", 0),
        }
    }

    /// The warning if no other node was met for so long.
    pub fn not_met(&self, after: Duration, why: Option<&str>) -> String {
        let place = self.endpoint.launched.rendezvous.as_ref().map(ToString::to_string).unwrap_or_default();
        let why = why.map(|why| format!(": {why}")).unwrap_or_default();
        format!(
            "this node reads storage without the caches of the other nodes: it has met none of them at \
             {place} for {} s{why}; check that FOREREAD_TOKEN is equal on all nodes, and that they can \
             connect to each other",
            after.as_secs()
        )
    }
}

impl Drop for NodeMeeting {
    fn drop(&mut self) {
        self.endpoint.withdraw();
    }
}

#[cfg(test)]
mod tests {
    use foreread_launcher::LauncherEnv;

    use super::*;

    const TOKEN: &str = "b7e1c95a03f64d2893ab5c17e0d68f42";

    /// The nodes of a job with one rank each, which meet there.
    fn node(rank: &str, meet: &str) -> Launched {
        let variable = |name: &str| {
            let value = match name {
                "RANK" => rank,
                "GROUP_RANK" => rank,
                "LOCAL_RANK" => "0",
                "LOCAL_WORLD_SIZE" => "1",
                "WORLD_SIZE" => "2",
                "FOREREAD_MEET" => meet,
                "FOREREAD_TOKEN" => TOKEN,
                _ => return None,
            };
            Some(value.to_owned())
        };
        let launched = Launched::by(&LauncherEnv::new(&variable, 7, 8)).unwrap().unwrap();
        let rank = launched.rank;
        let nodes = launched.between_nodes().unwrap();
        // Rank 1 is the first of its node, and not on rank 0's.
        Launched { rank, ..nodes }
    }

    async fn accept(listener: &mut Box<dyn TransportListener>, identity: &Identity) {
        use foreread_connection::handshake::answer;
        use foreread_connection::{Purpose, SampleOffer, WireProtection};
        let (stream, from) = listener.accept().await.unwrap();
        let (known, offer) = ([identity.clone()], SampleOffer::new(WireProtection::Sealed));
        let wanted = |purpose| purpose == Purpose::Rendezvous;
        answer(stream, from, &known, &offer, wanted, &false.into()).await.unwrap();
    }

    #[tokio::test]
    // semantics: PY-22
    async fn nodes_meet_in_a_directory_with_a_generated_token() {
        let base = tempfile::tempdir().unwrap();
        let meet = base.path().to_str().unwrap();
        let mut first = NodeMeeting::new(node("0", meet), None, None).await.unwrap();
        let other = NodeMeeting::new(node("1", meet), None, None).await.unwrap();
        assert_eq!(other.find().await.err().unwrap(), None);
        let (mut listeners, identity) = first.host().await.unwrap();
        for meeting in [&first, &other] {
            let ((_, found), ()) =
                tokio::join!(async { meeting.find().await.unwrap() }, accept(&mut listeners[0], &identity));
            assert_eq!((found.rank, found.job), (Rank(0), identity.job));
            assert_eq!(found.token.expose(), identity.token.expose());
        }
        // The last one removes the directory.
        drop((listeners, first));
        assert_eq!(other.find().await.err().unwrap(), None);
        drop(other);
        assert_eq!(base.path().read_dir().unwrap().count(), 0);
    }

    #[tokio::test]
    // semantics: PY-22
    async fn nodes_at_a_host_need_a_token_and_a_port_of_their_own() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let meet = format!("127.0.0.1:{free}");
        let error = NodeMeeting::new(node("1", &meet), None, None).await.err().unwrap().to_string();
        assert!(error.contains("a token is required") && error.contains("FOREREAD_TOKEN"), "{error}");
        let other = NodeMeeting::new(node("1", &meet), Some(Token::new(TOKEN).unwrap()), None).await.unwrap();
        let warning = other.not_met(Duration::from_secs(10), Some("no route"));
        assert!(warning.contains("for 10 s: no route; check that FOREREAD_TOKEN"), "{warning}");
        assert_eq!(other.towards(), Address::tcp("127.0.0.1", free + 1));
    }
}
