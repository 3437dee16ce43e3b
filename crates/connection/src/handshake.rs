//! The handshake: mutual authentication of two ranks and key agreement by
//! Noise_NNpsk0_25519_AESGCM_SHA256.
//!
//! ```text
//! initiator   preamble      magic, version, purpose, rank, job                            20 bytes
//!             message 1     ephemeral key, { wire, rank, run }                            72
//! responder   reply         magic, version, whether message 2 follows                      8
//!             message 2     ephemeral key, { status, wire, rank, two keys of the
//!                           connection, key of the samples }                             104
//! initiator   confirmation  { }                                                           16
//! ```
//!
//! The parts in braces are encrypted and authenticated. The pre-shared key is HKDF-SHA256 of the
//! token, which is never sent. The preamble is the prologue. Message 1 proves that the initiator
//! knows the token, before the responder computes a key agreement. Message 2 proves that the
//! responder knows it. Message 1 may be a replay, so the responder accepts no rank before the
//! confirmation, which needs the initiator's ephemeral key. All parts have fixed lengths: an
//! unauthenticated peer never makes the responder read or keep more than [`MOST_BYTES`].
//!
//! The keys protect the rest of the connection. A rendezvous and messages between stores use Noise
//! records (`noise_stream.rs`). Samples use the run's [`WireProtection`], which must be equal at
//! both ends ([`WireErrorKind::OtherWire`]). So a relay between two ranks can only delay and cut.
//! Recorded connections stay secret when the token becomes known later (forward secrecy). A token
//! that can be guessed can be tested against one recorded handshake, so tokens are random (see
//! [`Token`]).
//!
//! A peer with this job's name, for a rendezvous, with another token is most likely a misconfigured
//! rank. The reply reports that without a proof, because a proof would let an unauthenticated peer
//! test tokens. So callers must treat it as a hint only ([`WireErrorKind::OtherToken`]). The same
//! holds for the version. Other unauthenticated peers get no reply.
//!
//! Connections for samples belong to one run (see [`RunId`]). A rank in another run, or in none
//! yet, refuses the initiator ([`WireErrorKind::OtherRun`]). All versions begin with the same
//! preamble, so that a version mismatch is detected.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use foreread_types::Rank;
use hkdf::Hkdf;
use sha2::Sha256;
use snow::{Builder, HandshakeState, TransportState};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::channel::AuthenticatedStream;
use crate::frame::VERSION;
use crate::mac::{FrameMac, KEY, SampleMac, SessionKeys, no_random};
use crate::noise_stream::NoiseStream;
use crate::token::random;
use crate::{Address, BoxedStream, RunId, Token, WireError, WireErrorKind, WireProtection};

/// The responder's timeout of a handshake.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// The most bytes that are read from an unauthenticated peer.
pub const MOST_BYTES: usize = PREAMBLE + MESSAGE_1 + CONFIRMATION;

const PREAMBLE: usize = 20;
const REPLY: usize = 8;
/// The overhead of Noise messages: an ephemeral key and a tag.
const EPHEMERAL: usize = 32;
const TAG: usize = 16;
const REQUEST: usize = 24;
const MESSAGE_1: usize = EPHEMERAL + REQUEST + TAG;
const RESPONSE: usize = 8 + 3 * KEY;
const MESSAGE_2: usize = EPHEMERAL + RESPONSE + TAG;
const CONFIRMATION: usize = TAG;

const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
const MAGIC: [u8; 4] = *b"FRDH";

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Requests for samples of this run.
    Samples(RunId),
    /// The rendezvous of ranks.
    Rendezvous,
    /// Messages between stores.
    Link,
}

impl Purpose {
    const SAMPLES: u8 = 1;
    const RENDEZVOUS: u8 = 2;
    const LINK: u8 = 3;

    fn of(byte: u8, run: [u8; 16]) -> Option<Self> {
        match byte {
            Self::SAMPLES => Some(Self::Samples(RunId::from_bytes(run))),
            Self::RENDEZVOUS => Some(Self::Rendezvous),
            Self::LINK => Some(Self::Link),
            _ => None,
        }
    }

    /// The number, and the run.
    fn to_wire(self) -> (u8, [u8; 16]) {
        match self {
            Self::Samples(run) => (Self::SAMPLES, *run.as_bytes()),
            Self::Rendezvous => (Self::RENDEZVOUS, [0; 16]),
            Self::Link => (Self::LINK, [0; 16]),
        }
    }
}

impl std::fmt::Display for Purpose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Samples(_) => "samples",
            Self::Rendezvous => "rendezvous",
            Self::Link => "messages between stores",
        })
    }
}

/// The identity of this rank.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The rank.
    pub rank: Rank,
    /// The job: a hash of its name. It is not secret and distinguishes a mix-up from an attack.
    pub job: u64,
    /// The job's token.
    pub token: Token,
}

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// Its rank, as it claims: all ranks of a job share one token.
    pub rank: Rank,
    /// Its job, whose token it knows.
    pub job: u64,
    /// Its purpose.
    pub purpose: Purpose,
    /// Its origin, for messages.
    pub from: String,
}

/// A responder's offer to ranks that request samples.
#[derive(Clone, Debug)]
pub struct SampleOffer {
    wire: WireProtection,
    samples: Arc<OnceLock<Arc<SampleMac>>>,
}

impl SampleOffer {
    /// Samples over connections of this kind. Each offer has its own sample key.
    pub fn new(wire: WireProtection) -> Self {
        Self { wire, samples: Arc::default() }
    }

    /// The same samples at this address.
    pub fn over(&self, address: &Address) -> Self {
        Self { wire: self.wire.over(address), samples: Arc::clone(&self.samples) }
    }

    fn samples(&self) -> Result<Arc<SampleMac>, WireError> {
        if let Some(known) = self.samples.get() {
            return Ok(Arc::clone(known));
        }
        let drawn = SampleMac::draw()?;
        Ok(Arc::clone(self.samples.get_or_init(|| drawn)))
    }
}

/// The responder's status in message 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum HandshakeStatus {
    Welcome = 0,
    OtherJob = 1,
    Unwanted = 2,
    OtherRun = 5,
    OtherWire = 6,
}

/// The reply's last field: message 2 follows, or the token is another one.
const FOLLOWS: u8 = 0;
const OTHER_TOKEN: u8 = 3;

async fn read<const N: usize>(stream: &mut BoxedStream) -> Result<[u8; N], WireError> {
    let mut bytes = [0; N];
    stream
        .read_exact(&mut bytes)
        .await
        .map_err(|error| WireError::io("the handshake was interrupted", error))?;
    Ok(bytes)
}

async fn write(stream: &mut BoxedStream, bytes: &[u8]) -> Result<(), WireError> {
    let broke_off = |error| WireError::io("the handshake was interrupted", error);
    stream.write_all(bytes).await.map_err(broke_off)?;
    stream.flush().await.map_err(broke_off)
}

fn other_version(version: u8) -> WireError {
    let detail = format!(
        "it speaks version {version} between ranks, this program {VERSION}: run one version on all ranks"
    );
    WireError::new(WireErrorKind::OtherVersion, detail)
}

fn stranger(detail: &str) -> WireError {
    WireError::new(WireErrorKind::Unauthenticated, detail)
}

/// A local failure: no random bytes from the kernel, or an unsupported pattern.
fn local_failure(error: snow::Error) -> WireError {
    WireError::io("the handshake cannot be computed", std::io::Error::other(error))
}

/// The Noise state before message 1, of the initiator or the responder.
fn noise(token: &Token, preamble: &[u8; PREAMBLE], initiates: bool) -> Result<HandshakeState, WireError> {
    let mut key = [0; 32];
    let derived = Hkdf::<Sha256>::new(Some(b"foreread handshake"), token.expose()).expand(b"psk0", &mut key);
    derived.map_err(|error| WireError::io("no key of the token", std::io::Error::other(error)))?;
    let params = PATTERN.parse().map_err(local_failure)?;
    let builder = Builder::new(params).psk(0, &key).and_then(|builder| builder.prologue(preamble));
    let state = builder
        .and_then(|builder| if initiates { builder.build_initiator() } else { builder.build_responder() });
    state.map_err(local_failure)
}

/// The rank and the job in a preamble.
fn parse_preamble(preamble: &[u8; PREAMBLE]) -> (Rank, u64) {
    let (mut rank, mut job) = ([0; 4], [0; 8]);
    rank.copy_from_slice(&preamble[8..12]);
    job.copy_from_slice(&preamble[12..]);
    (Rank(u32::from_le_bytes(rank)), u64::from_le_bytes(job))
}

/// The channel after the handshake. `secret` has the keys of the initiator's and the responder's
/// direction.
fn channel(
    stream: BoxedStream,
    noise: TransportState,
    purpose: Purpose,
    wire: WireProtection,
    secret: &[u8; 2 * KEY],
    samples: Arc<SampleMac>,
) -> AuthenticatedStream {
    let records =
        |stream, noise| AuthenticatedStream { stream: Box::new(NoiseStream::new(stream, noise)), keys: None };
    match (purpose, wire) {
        (Purpose::Rendezvous | Purpose::Link, _) | (Purpose::Samples(_), WireProtection::Sealed) => {
            records(stream, noise)
        }
        (Purpose::Samples(_), WireProtection::Checksummed) => AuthenticatedStream { stream, keys: None },
        (Purpose::Samples(_), WireProtection::Authenticated) => {
            let (mut requester, mut answerer) = ([0; KEY], [0; KEY]);
            requester.copy_from_slice(&secret[..KEY]);
            answerer.copy_from_slice(&secret[KEY..]);
            let (ours, theirs) =
                if noise.is_initiator() { (requester, answerer) } else { (answerer, requester) };
            let keys = SessionKeys { ours: FrameMac::new(ours), theirs: FrameMac::new(theirs), samples };
            AuthenticatedStream { stream, keys: Some(keys) }
        }
    }
}

/// The initiator's side of the handshake. `to` is the expected rank, `wire` the required protection
/// of samples. The caller sets a timeout.
///
/// # Errors
/// If the other end is of another job, is another rank, protects samples differently, or closes the
/// connection.
pub async fn initiate(
    mut stream: BoxedStream,
    identity: &Identity,
    purpose: Purpose,
    wire: WireProtection,
    to: Option<Rank>,
) -> Result<(AuthenticatedStream, Rank), WireError> {
    let (number, run) = purpose.to_wire();
    let mut hello = [0; PREAMBLE + MESSAGE_1];
    let (preamble, first) = hello.split_at_mut(PREAMBLE);
    preamble[..4].copy_from_slice(&MAGIC);
    preamble[4..6].copy_from_slice(&[VERSION, number]);
    preamble[8..12].copy_from_slice(&identity.rank.0.to_le_bytes());
    preamble[12..].copy_from_slice(&identity.job.to_le_bytes());
    let mut parse_preamble = [0; PREAMBLE];
    parse_preamble.copy_from_slice(preamble);
    let mut noise = noise(&identity.token, &parse_preamble, true)?;
    let mut request = [0; REQUEST];
    request[0] = wire.number();
    request[4..8].copy_from_slice(&identity.rank.0.to_le_bytes());
    request[8..].copy_from_slice(&run);
    noise.write_message(&request, first).map_err(local_failure)?;
    write(&mut stream, &hello).await?;

    let refused = |error: WireError| match error.kind() {
        WireErrorKind::Disconnected => {
            stranger("it closed the connection in the handshake: it has another token, or too many wait")
        }
        _ => error,
    };
    let reply: [u8; REPLY] = read(&mut stream).await.map_err(refused)?;
    if reply[..4] != MAGIC {
        return Err(stranger("the other end is not a rank of any job"));
    }
    if reply[4] != VERSION {
        return Err(other_version(reply[4]));
    }
    if reply[5] == OTHER_TOKEN {
        return Err(WireError::new(WireErrorKind::OtherToken, "the other end has another token"));
    }
    let second: [u8; MESSAGE_2] = read(&mut stream).await.map_err(refused)?;
    let mut response = [0; MESSAGE_2];
    let unknown = |_| stranger("the other end does not know this job's token");
    noise.read_message(&second, &mut response).map_err(unknown)?;
    let mut noise = noise.into_transport_mode().map_err(local_failure)?;
    let rank = Rank(u32::from_le_bytes([response[4], response[5], response[6], response[7]]));
    match response[0] {
        0 if to.is_none_or(|to| to == rank) => {}
        0 => {
            return Err(stranger(&format!(
                "rank {rank} answers there and not rank {}",
                to.unwrap_or_default()
            )));
        }
        1 => {
            let detail = format!("rank {rank} there is of another job");
            return Err(WireError::new(WireErrorKind::OtherJob, detail));
        }
        5 => {
            let detail = format!("rank {rank} there is in another run, or in none yet");
            return Err(WireError::new(WireErrorKind::OtherRun, detail));
        }
        6 => {
            let theirs = WireProtection::numbered(response[1])
                .map_or_else(|| "unknown".to_owned(), |is| is.to_string());
            return Err(other_wire(&format!("rank {rank} there"), &theirs, wire));
        }
        _ => {
            let detail = format!("rank {rank} takes no {purpose} now");
            return Err(WireError::new(WireErrorKind::Refused, detail));
        }
    }
    let mut confirmation = [0; CONFIRMATION];
    noise.write_message(&[], &mut confirmation).map_err(local_failure)?;
    write(&mut stream, &confirmation).await?;
    let (mut secret, mut samples) = ([0; 2 * KEY], [0; KEY]);
    secret.copy_from_slice(&response[8..8 + 2 * KEY]);
    samples.copy_from_slice(&response[8 + 2 * KEY..RESPONSE]);
    Ok((channel(stream, noise, purpose, wire, &secret, SampleMac::new(samples)), rank))
}

/// The error of ends that protect samples differently.
fn other_wire(peer: &str, theirs: &str, ours: WireProtection) -> WireError {
    let variable = WireProtection::VARIABLE;
    let detail = format!("{peer} has {variable}={theirs}, this rank {ours}: set one {variable} on all ranks");
    WireError::new(WireErrorKind::OtherWire, detail)
}

/// The responder's side of the handshake. The caller sets the timeout [`PATIENCE`]. `identities`
/// has one for each job that may connect, with its token. `wanted` decides which purposes are
/// accepted: samples of the own run only. `spoke` is set after a preamble with one of these jobs.
///
/// # Errors
/// If the other end cannot authenticate, is of another job or version, is refused, or closes the
/// connection.
pub async fn answer(
    mut stream: BoxedStream,
    from: String,
    identities: &[Identity],
    offer: &SampleOffer,
    wanted: impl Fn(Purpose) -> bool + Send,
    spoke: &AtomicBool,
) -> Result<(AuthenticatedStream, PeerIdentity), WireError> {
    // Peers that do not know the magic number get no further.
    let magic: [u8; 4] = read(&mut stream).await?;
    if magic != MAGIC {
        return Err(stranger("it does not speak this protocol"));
    }
    let mut preamble = [0; PREAMBLE];
    preamble[..4].copy_from_slice(&magic);
    preamble[4..].copy_from_slice(&read::<{ PREAMBLE - 4 }>(&mut stream).await?);
    let (rank, job) = parse_preamble(&preamble);
    let of_job = identities.iter().find(|identity| identity.job == job);
    let is_ours = of_job.is_some();
    let Some(identity) = of_job.or(identities.first()) else { return Err(stranger("no job may connect")) };
    spoke.store(is_ours, Relaxed);
    let mut reply = [0; REPLY];
    reply[..4].copy_from_slice(&MAGIC);
    reply[4..6].copy_from_slice(&[VERSION, FOLLOWS]);
    if preamble[4] != VERSION {
        write(&mut stream, &reply).await?;
        return Err(other_version(preamble[4]));
    }
    let first: [u8; MESSAGE_1] = read(&mut stream).await?;
    let mut noise = noise(&identity.token, &preamble, false)?;
    let mut request = [0; MESSAGE_1];
    if noise.read_message(&first, &mut request).is_err() {
        if !is_ours || preamble[5] != Purpose::RENDEZVOUS || !wanted(Purpose::Rendezvous) {
            return Err(stranger("it does not know this job's token"));
        }
        reply[5] = OTHER_TOKEN;
        drop(write(&mut stream, &reply).await); // or it is gone
        let detail = format!("it came with another token (FOREREAD_TOKEN) and claims to be rank {rank}");
        return Err(WireError::new(WireErrorKind::OtherToken, detail));
    }

    // From here on the peer knows the token, or replays a message of a rank that does.
    let mut run = [0; 16];
    run.copy_from_slice(&request[8..REQUEST]);
    let purpose = Purpose::of(preamble[5], run);
    let wire = WireProtection::numbered(request[0]);
    let verdict = match purpose {
        _ if !is_ours => HandshakeStatus::OtherJob,
        Some(Purpose::Samples(_)) if wire != Some(offer.wire) => HandshakeStatus::OtherWire,
        Some(purpose) if wanted(purpose) => HandshakeStatus::Welcome,
        Some(Purpose::Samples(_)) => HandshakeStatus::OtherRun,
        Some(Purpose::Rendezvous | Purpose::Link) | None => HandshakeStatus::Unwanted,
    };
    let random = random().map_err(no_random)?;
    let (secret, samples) = (&random, offer.samples()?);
    let mut response = [0; RESPONSE];
    response[..2].copy_from_slice(&[verdict as u8, offer.wire.number()]);
    response[4..8].copy_from_slice(&identity.rank.0.to_le_bytes());
    if verdict == HandshakeStatus::Welcome {
        response[8..8 + 2 * KEY].copy_from_slice(secret);
        response[8 + 2 * KEY..].copy_from_slice(samples.expose());
    }
    let mut last = [0; REPLY + MESSAGE_2];
    last[..REPLY].copy_from_slice(&reply);
    noise.write_message(&response, &mut last[REPLY..]).map_err(local_failure)?;
    write(&mut stream, &last).await?;
    let purpose = match (verdict, purpose) {
        (HandshakeStatus::Welcome, Some(purpose)) => purpose,
        (HandshakeStatus::OtherJob, _) => {
            return Err(WireError::new(WireErrorKind::OtherJob, format!("rank {rank} of another job")));
        }
        (HandshakeStatus::OtherRun, _) => {
            let detail = format!("rank {rank} requests samples of another run");
            return Err(WireError::new(WireErrorKind::OtherRun, detail));
        }
        (HandshakeStatus::OtherWire, _) => {
            let theirs = wire.map_or_else(|| "unknown".to_owned(), |wire| wire.to_string());
            return Err(other_wire(&format!("rank {rank}"), &theirs, offer.wire));
        }
        _ => {
            let detail = format!("rank {rank} requests a service that is not offered here");
            return Err(WireError::new(WireErrorKind::Refused, detail));
        }
    };
    let confirmation: [u8; CONFIRMATION] = read(&mut stream).await?;
    let mut noise = noise.into_transport_mode().map_err(local_failure)?;
    let repeated = |_| stranger("it replayed an earlier handshake");
    noise.read_message(&confirmation, &mut [0; TAG]).map_err(repeated)?;
    Ok((
        channel(stream, noise, purpose, offer.wire, secret, samples),
        PeerIdentity { rank, job, purpose, from },
    ))
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};

    use super::*;
    use crate::Nonce;

    /// The id of a run that begins with `nonce`.
    fn run(nonce: u8) -> RunId {
        RunId::new(Nonce::new([nonce; 16]), &[])
    }

    fn identity(rank: u32, job: u64, token: &str) -> Identity {
        Identity { rank: Rank(rank), job, token: Token::new(token).unwrap() }
    }

    const TOKEN: &str = "b7e1c95a03f64d2893ab5c17e0d68f42";
    const OTHER: &str = "4c0d92f7ba8e4167a35e19d2c680fb73";
    const SAMPLES: u8 = 1;

    fn samples() -> Purpose {
        Purpose::Samples(run(SAMPLES))
    }

    async fn initiate_samples(
        stream: DuplexStream,
        requester: &Identity,
        to: Option<Rank>,
    ) -> Result<Rank, WireError> {
        initiate(Box::new(stream), requester, samples(), WireProtection::Authenticated, to)
            .await
            .map(|(_, rank)| rank)
    }

    async fn answers(
        stream: DuplexStream,
        wire: WireProtection,
        wanted: Purpose,
    ) -> Result<PeerIdentity, WireError> {
        let (answerer, spoke) = (identity(5, 7, TOKEN), AtomicBool::new(false));
        let offer = SampleOffer::new(wire);
        let wanted = move |purpose| purpose == wanted;
        let known = [answerer];
        let answer = answer(Box::new(stream), "there".into(), &known, &offer, wanted, &spoke);
        answer.await.map(|(_, greeting)| greeting)
    }

    type Ends = (Result<Rank, WireError>, Result<PeerIdentity, WireError>);

    /// Requests samples from rank 5 of job 7.
    async fn meet(requester: Identity, to: Option<Rank>, wire: WireProtection, wanted: Purpose) -> Ends {
        let (one, other) = duplex(64);
        tokio::join!(initiate_samples(one, &requester, to), answers(other, wire, wanted))
    }

    #[tokio::test]
    async fn handshake_authenticates_two_ranks_of_a_job() {
        let (request, response) =
            meet(identity(3, 7, TOKEN), Some(Rank(5)), WireProtection::Authenticated, samples()).await;
        assert_eq!(request.unwrap(), Rank(5));
        let greeting = PeerIdentity { rank: Rank(3), job: 7, purpose: samples(), from: "there".into() };
        assert_eq!(response.unwrap(), greeting);
    }

    #[tokio::test]
    // semantics: CONTROL-1
    async fn each_job_connects_with_its_own_token_only() {
        let known = [identity(5, 7, TOKEN), identity(5, 8, OTHER)];
        for (job, token, is_known) in
            [(7, TOKEN, true), (8, OTHER, true), (7, OTHER, false), (9, TOKEN, false)]
        {
            let (one, other) = duplex(64);
            let (requester, offer) = (identity(3, job, token), SampleOffer::new(WireProtection::Sealed));
            let spoke = AtomicBool::new(false);
            let requests =
                initiate(Box::new(one), &requester, Purpose::Rendezvous, WireProtection::Sealed, None);
            let answers = answer(Box::new(other), "there".into(), &known, &offer, |_| true, &spoke);
            let (requested, answered) = tokio::join!(requests, answers);
            assert_eq!(requested.is_ok(), is_known, "{job} {token}");
            assert_eq!(answered.ok().map(|(_, peer)| peer.job), is_known.then_some(job));
        }
    }

    #[tokio::test]
    async fn handshake_fails_with_another_token() {
        let (request, response) =
            meet(identity(3, 7, OTHER), None, WireProtection::Authenticated, samples()).await;
        let (request, response) = (request.unwrap_err(), response.unwrap_err());
        assert_eq!(
            (request.kind(), response.kind()),
            (WireErrorKind::Unauthenticated, WireErrorKind::Unauthenticated)
        );
        assert!(request.to_string().contains("another token"), "{request}");
        assert_eq!(response.to_string(), "it does not know this job's token");
    }

    /// A rank of the same job at a rendezvous learns about its other token and nothing else.
    #[tokio::test]
    // semantics: RANK-15
    async fn rank_with_another_token_gets_a_reply_and_others_do_not() {
        let tried = |job: u64, purpose: Purpose, wanted: Purpose| async move {
            let (mut ours, theirs) = duplex(1024);
            let mut hello = [0; PREAMBLE + MESSAGE_1];
            hello[..4].copy_from_slice(&MAGIC);
            hello[4..6].copy_from_slice(&[VERSION, purpose.to_wire().0]);
            hello[8] = 3;
            hello[12..20].copy_from_slice(&job.to_le_bytes());
            ours.write_all(&hello).await.unwrap();
            let response = answers(theirs, WireProtection::Authenticated, wanted).await;
            let mut reply = Vec::new();
            ours.read_to_end(&mut reply).await.unwrap();
            (response.unwrap_err(), reply)
        };
        let (error, reply) = tried(7, Purpose::Rendezvous, Purpose::Rendezvous).await;
        assert_eq!(
            (error.kind(), &reply[4..]),
            (WireErrorKind::OtherToken, &[VERSION, OTHER_TOKEN, 0, 0][..])
        );
        assert_eq!(error.to_string(), "it came with another token (FOREREAD_TOKEN) and claims to be rank 3");
        for (job, purpose, wanted) in [
            (8, Purpose::Rendezvous, Purpose::Rendezvous),
            (7, samples(), samples()),
            (7, Purpose::Rendezvous, samples()),
        ] {
            let (error, reply) = tried(job, purpose, wanted).await;
            assert_eq!(
                (error.kind(), reply),
                (WireErrorKind::Unauthenticated, Vec::new()),
                "{job} {purpose:?}"
            );
        }
        let (one, other) = duplex(64);
        let requester = identity(3, 7, OTHER);
        let initiate = initiate(Box::new(one), &requester, Purpose::Rendezvous, WireProtection::Sealed, None);
        let (request, _) =
            tokio::join!(initiate, answers(other, WireProtection::Authenticated, Purpose::Rendezvous));
        assert_eq!(request.err().unwrap().kind(), WireErrorKind::OtherToken);
    }

    #[tokio::test]
    async fn peer_with_the_token_gets_the_reason_of_a_refusal() {
        let (wire, wanted) = (WireProtection::Authenticated, samples());
        let (request, response) = meet(identity(3, 8, TOKEN), None, wire, wanted).await;
        assert_eq!(request.unwrap_err().to_string(), "rank 5 there is of another job");
        assert_eq!(response.unwrap_err().kind(), WireErrorKind::OtherJob);
        let (request, response) = meet(identity(3, 7, TOKEN), None, wire, Purpose::Samples(run(2))).await;
        assert_eq!(request.unwrap_err().to_string(), "rank 5 there is in another run, or in none yet");
        let response = response.unwrap_err();
        assert_eq!(response.kind(), WireErrorKind::OtherRun);
        assert_eq!(response.to_string(), "rank 3 requests samples of another run");
        let (request, _) = meet(identity(3, 7, TOKEN), Some(Rank(4)), wire, wanted).await;
        assert_eq!(request.unwrap_err().to_string(), "rank 5 answers there and not rank 4");
    }

    #[tokio::test]
    // semantics: RANK-36
    async fn ranks_with_another_wire_protection_name_the_setting() {
        let (request, response) = meet(identity(3, 7, TOKEN), None, WireProtection::Sealed, samples()).await;
        let (request, response) = (request.unwrap_err(), response.unwrap_err());
        assert_eq!((request.kind(), response.kind()), (WireErrorKind::OtherWire, WireErrorKind::OtherWire));
        let remedy = "set one FOREREAD_PEER_WIRE on all ranks";
        let expected_text =
            format!("rank 5 there has FOREREAD_PEER_WIRE=sealed, this rank authenticated: {remedy}");
        assert_eq!(request.to_string(), expected_text);
        let expected_text =
            format!("rank 3 has FOREREAD_PEER_WIRE=authenticated, this rank sealed: {remedy}");
        assert_eq!(response.to_string(), expected_text);
    }

    /// Reads a hello without knowing the token.
    async fn hello(stream: &mut DuplexStream) -> [u8; PREAMBLE + MESSAGE_1] {
        let mut hello = [0; PREAMBLE + MESSAGE_1];
        stream.read_exact(&mut hello).await.unwrap();
        hello
    }

    /// An impostor gets a proof that opens nothing, and cannot make one.
    #[tokio::test]
    async fn impostor_without_the_token_is_detected() {
        let (one, mut other) = duplex(64);
        let requester = identity(3, 7, TOKEN);
        let impostor = async {
            let hello = hello(&mut other).await;
            // It reflects the bytes that it received.
            let mut answer = vec![0; REPLY + MESSAGE_2];
            answer[..REPLY].copy_from_slice(&[b'F', b'R', b'D', b'H', VERSION, FOLLOWS, 0, 0]);
            answer[REPLY..REPLY + MESSAGE_1].copy_from_slice(&hello[PREAMBLE..]);
            other.write_all(&answer).await.unwrap();
        };
        let (request, ()) = tokio::join!(initiate_samples(one, &requester, None), impostor);
        assert_eq!(request.unwrap_err().to_string(), "the other end does not know this job's token");
    }

    /// A recorded hello, or one with a changed preamble, does not authenticate a rank.
    #[tokio::test]
    // semantics: RANK-35
    async fn replayed_or_changed_hello_authenticates_no_rank() {
        let requester = identity(3, 7, TOKEN);
        let (one, mut between) = duplex(1024);
        let record = async {
            let hello = hello(&mut between).await;
            drop(between);
            hello
        };
        let (_, recorded) = tokio::join!(initiate_samples(one, &requester, None), record);
        for (change, expected) in [
            (None, "it replayed an earlier handshake"),
            (Some(5), "it does not know this job's token"), // the purpose
            (Some(8), "it does not know this job's token"), // the rank
            (Some(30), "it does not know this job's token"), // the key
        ] {
            let (mut ours, theirs) = duplex(1024);
            let mut bytes = recorded.to_vec();
            change.into_iter().for_each(|at: usize| bytes[at] ^= 3);
            bytes.extend([0; CONFIRMATION]);
            ours.write_all(&bytes).await.unwrap();
            let response = answers(theirs, WireProtection::Authenticated, samples()).await;
            assert_eq!(response.unwrap_err().to_string(), expected, "{change:?}");
        }
    }

    #[tokio::test]
    async fn other_version_is_named_on_both_sides() {
        let (mut ours, theirs) = duplex(1024);
        let mut hello = [0; PREAMBLE];
        hello[..4].copy_from_slice(&MAGIC);
        hello[4] = 9;
        hello[12..20].copy_from_slice(&7u64.to_le_bytes());
        ours.write_all(&hello).await.unwrap();
        let (spoke, answerer) = (AtomicBool::new(false), identity(5, 7, TOKEN));
        let offer = SampleOffer::new(WireProtection::default());
        let known = [answerer.clone()];
        let response = answer(Box::new(theirs), "there".into(), &known, &offer, |_| true, &spoke).await;
        assert_eq!(response.err().unwrap().kind(), WireErrorKind::OtherVersion);
        let mut reply = [0; REPLY];
        ours.read_exact(&mut reply).await.unwrap();
        assert_eq!((reply[4], spoke.load(Relaxed)), (VERSION, true));
        let (one, mut other) = duplex(1024);
        other.write_all(b"FRDH\x02\0\0\0").await.unwrap();
        let request = initiate_samples(one, &answerer, None).await.unwrap_err();
        assert_eq!(request.kind(), WireErrorKind::OtherVersion);
    }
}
