//! How two ranks find out that they are of one job.
//!
//! ```text
//! asker     hello      version, purpose, meeting, rank, job, 32 random bytes, run
//! answerer  challenge  version, 32 random bytes
//! asker     proof      HMAC-SHA256(token, "asker" hello challenge)
//! answerer  verdict    whether it is welcome, meeting, rank, HMAC-SHA256(token, "answerer" hello challenge verdict)
//! ```
//!
//! The token is the key and never travels. The asker proves itself first: a stranger who connects learns that something
//! listens, and gets random bytes. Each proof covers both sides' random bytes, so none can be sent a second time, and says
//! which side made it, so none can be sent back. Proofs are compared in constant time. All parts have fixed lengths:
//! before it has proved itself, nobody makes this end read or keep more than [`MOST_BYTES`].
//!
//! Who names this job, comes for a meeting and has another token is most likely a rank whose user made a mistake. It is told
//! so, by a verdict without a proof: one made with the token would let a stranger try tokens at leisure. So nobody should
//! believe such a verdict more than that it is worth looking at ([`WireErrorKind::OtherToken`]). Everybody else who cannot
//! prove himself is told nothing.
//!
//! A process may be at several meetings of its job at a time, and they may try each other's ports: who proves itself and comes
//! to the wrong one is told which one it is, and looks elsewhere or later ([`WireErrorKind::OtherMeeting`]).
//!
//! Connections for samples exist inside one run (see [`RunId`]): a rank that is in no run yet, or in another, refuses the
//! asker ([`WireErrorKind::OtherRun`]). A hello begins alike in all versions, so that other versions are told apart.
//!
//! What it does not do: the bytes that follow are neither hidden nor signed. Who can change packets on the way can take over
//! a connection that is open; against such the feature `tls` encrypts all of it. A token that can be guessed can be guessed
//! by who listens at a rank's address in its place; tokens are long (see [`Token`]).

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use foreread_types::Rank;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::frame::VERSION;
use crate::token::random;
use crate::{Address, Network, RunId, Stream, Token, WireError, WireErrorKind};

/// How long a handshake may take at the end that is asked.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// The most bytes that somebody sends who has not proved himself yet.
pub const MOST_BYTES: usize = HELLO + PROOF;

/// The part of a hello that all versions have.
const COMMON: usize = 52;
const HELLO: usize = COMMON + 16;
const CHALLENGE: usize = 40;
const PROOF: usize = 32;
const VERDICT: usize = 8;

const MAGIC: [u8; 4] = *b"FRDH";

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Samples of this run are asked for.
    Samples(RunId),
    /// Ranks meet.
    Meeting,
}

impl Purpose {
    const SAMPLES: u8 = 1;
    const MEETING: u8 = 2;

    fn of(byte: u8, run: [u8; 16]) -> Option<Self> {
        match byte {
            Self::SAMPLES => Some(Self::Samples(RunId::from_bytes(run))),
            Self::MEETING => Some(Self::Meeting),
            _ => None,
        }
    }

    /// Its number, and the run that it names.
    fn to_wire(self) -> (u8, [u8; 16]) {
        match self {
            Self::Samples(run) => (Self::SAMPLES, *run.as_bytes()),
            Self::Meeting => (Self::MEETING, [0; 16]),
        }
    }
}

impl std::fmt::Display for Purpose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Samples(_) => "samples",
            Self::Meeting => "meeting",
        })
    }
}

/// Who this rank is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Its number.
    pub rank: Rank,
    /// Which job it is of: a hash of whatever names it. No secret; it tells a mix-up from an attack.
    pub job: u64,
    /// Which of the job's meetings, counted from 0: a process that makes several loaders comes to several.
    pub meeting: u16,
    /// The job's secret.
    pub token: Token,
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Its number, as it says itself: all ranks of a job have one token.
    pub rank: Rank,
    /// What it wants.
    pub purpose: Purpose,
    /// Where it comes from, in words.
    pub from: String,
}

/// What the answerer says in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Verdict {
    Welcome = 0,
    OtherJob = 1,
    Unwanted = 2,
    /// Without a proof.
    OtherToken = 3,
    OtherMeeting = 4,
    OtherRun = 5,
}

/// All that was said before, and the key.
struct Transcript<'a> {
    token: &'a Token,
    hello: [u8; HELLO],
    challenge: [u8; CHALLENGE],
}

impl Transcript<'_> {
    fn mac(&self, side: &str, verdict: &[u8]) -> Result<Hmac<Sha256>, WireError> {
        let key = Hmac::<Sha256>::new_from_slice(self.token.expose());
        // HMAC takes keys of every length.
        let mut mac = key.map_err(|_| WireError::malformed("the token cannot be used as a key"))?;
        for part in [b"foreread ".as_slice(), side.as_bytes(), b":", &self.hello, &self.challenge, verdict] {
            mac.update(part);
        }
        Ok(mac)
    }

    fn proof(&self, side: &str, verdict: &[u8]) -> Result<[u8; PROOF], WireError> {
        Ok(self.mac(side, verdict)?.finalize().into_bytes().into())
    }

    /// In constant time.
    fn proves(&self, side: &str, verdict: &[u8], proof: &[u8; PROOF]) -> Result<bool, WireError> {
        Ok(self.mac(side, verdict)?.verify_slice(proof).is_ok())
    }
}

async fn read<const N: usize>(stream: &mut Stream) -> Result<[u8; N], WireError> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await.map_err(|error| WireError::io("the handshake broke off", error))?;
    Ok(bytes)
}

async fn write(stream: &mut Stream, bytes: &[u8]) -> Result<(), WireError> {
    let broke_off = |error| WireError::io("the handshake broke off", error);
    stream.write_all(bytes).await.map_err(broke_off)?;
    stream.flush().await.map_err(broke_off)
}

fn nonce() -> Result<[u8; 32], WireError> {
    random().map_err(|error| WireError::io("the operating system has no random bytes", error))
}

fn other_version(version: u8) -> WireError {
    let detail = format!("it speaks version {version}, this program {VERSION}: run one version on all ranks");
    WireError::new(WireErrorKind::OtherVersion, detail)
}

/// Connects and proves itself; says which rank answered. The caller bounds the time.
pub(crate) async fn open(
    network: &dyn Network,
    address: &Address,
    identity: &Identity,
    purpose: Purpose,
    to: Option<Rank>,
) -> Result<(Stream, Rank), WireError> {
    let stream = network.connect(address).await.map_err(|error| WireError::io("cannot connect", error))?;
    ask(stream, identity, purpose, to).await
}

/// The asker's side of the handshake. `to` is the rank that is expected at the other end. The caller bounds the time.
///
/// # Errors
/// If the other end is not of this job, is another rank, or breaks off.
pub async fn ask(
    mut stream: Stream,
    identity: &Identity,
    purpose: Purpose,
    to: Option<Rank>,
) -> Result<(Stream, Rank), WireError> {
    let mut hello = [0; HELLO];
    hello[..4].copy_from_slice(&MAGIC);
    let (number, run) = purpose.to_wire();
    hello[4..6].copy_from_slice(&[VERSION, number]);
    hello[6..8].copy_from_slice(&identity.meeting.to_le_bytes());
    hello[8..12].copy_from_slice(&identity.rank.0.to_le_bytes());
    hello[12..20].copy_from_slice(&identity.job.to_le_bytes());
    hello[20..COMMON].copy_from_slice(&nonce()?);
    hello[COMMON..].copy_from_slice(&run);
    write(&mut stream, &hello).await?;

    let challenge: [u8; CHALLENGE] = read(&mut stream).await?;
    if challenge[..4] != MAGIC {
        return Err(WireError::new(WireErrorKind::Stranger, "what answers is no rank of any job"));
    }
    if challenge[4] != VERSION {
        return Err(other_version(challenge[4]));
    }
    let transcript = Transcript { token: &identity.token, hello, challenge };
    write(&mut stream, &transcript.proof("asker", &[])?).await?;

    let refused = |error: WireError| match error.kind() {
        WireErrorKind::Gone => {
            let detail = "it closed the connection in the handshake: it has another token, or too many wait";
            WireError::new(WireErrorKind::Stranger, detail)
        }
        _ => error,
    };
    let verdict: [u8; VERDICT] = read(&mut stream).await.map_err(refused)?;
    if verdict[0] == Verdict::OtherToken as u8 {
        return Err(WireError::new(WireErrorKind::OtherToken, "who answers there has another token"));
    }
    let proof: [u8; PROOF] = read(&mut stream).await.map_err(refused)?;
    if !transcript.proves("answerer", &verdict, &proof)? {
        return Err(WireError::new(WireErrorKind::Stranger, "what answers does not know this job's token"));
    }
    let rank = Rank(u32::from_le_bytes([verdict[4], verdict[5], verdict[6], verdict[7]]));
    match verdict[0] {
        0 if to.is_none_or(|to| to == rank) => Ok((stream, rank)),
        0 => {
            let detail = format!("rank {rank} answers there and not rank {}", to.unwrap_or_default());
            Err(WireError::new(WireErrorKind::Stranger, detail))
        }
        1 => Err(WireError::new(WireErrorKind::OtherJob, format!("rank {rank} there is of another job"))),
        4 => {
            let theirs = u16::from_le_bytes([verdict[2], verdict[3]]);
            let detail = format!("rank {rank} there {}", elsewhere(theirs, identity.meeting));
            Err(WireError::new(WireErrorKind::OtherMeeting, detail))
        }
        5 => {
            let detail = format!("rank {rank} there is in another run, or in none yet");
            Err(WireError::new(WireErrorKind::OtherRun, detail))
        }
        _ => Err(WireError::new(WireErrorKind::Unwanted, format!("rank {rank} takes no {purpose} now"))),
    }
}

/// That who has come is at the meeting `theirs`, in the words of who is at `ours`: each meeting is a loader's.
fn elsewhere(theirs: u16, ours: u16) -> String {
    let (theirs, ours) = (u32::from(theirs) + 1, u32::from(ours) + 1);
    format!("has loader {theirs} of its process, and this is loader {ours}")
}

/// The answerer's side of the handshake, within [`PATIENCE`] if the caller bounds it so. `wanted` says what this end
/// takes: of samples, those of its run alone. `spoke` is set when a hello has come that names this job.
///
/// # Errors
/// If the other end does not prove itself, is of another job or version, wants what is not wanted, or breaks off.
pub async fn answer(
    mut stream: Stream,
    from: String,
    identity: &Identity,
    wanted: impl Fn(Purpose) -> bool + Send,
    spoke: &AtomicBool,
) -> Result<(Stream, Greeting), WireError> {
    let stranger = |detail: &str| WireError::new(WireErrorKind::Stranger, detail);
    // No more than the magic number is read from who does not know it.
    let first: [u8; 4] = read(&mut stream).await?;
    if first != MAGIC {
        return Err(stranger("it does not speak this protocol"));
    }
    let mut hello = [0; HELLO];
    hello[..4].copy_from_slice(&first);
    hello[4..COMMON].copy_from_slice(&read::<{ COMMON - 4 }>(&mut stream).await?);
    let mut job = [0; 8];
    job.copy_from_slice(&hello[12..20]);
    let is_ours = u64::from_le_bytes(job) == identity.job;
    spoke.store(is_ours, Relaxed);
    let mut challenge = [0; CHALLENGE];
    challenge[..4].copy_from_slice(&MAGIC);
    challenge[4] = VERSION;
    challenge[8..].copy_from_slice(&nonce()?);
    write(&mut stream, &challenge).await?;
    if hello[4] != VERSION {
        return Err(other_version(hello[4]));
    }
    let run: [u8; HELLO - COMMON] = read(&mut stream).await?;
    hello[COMMON..].copy_from_slice(&run);
    let proof: [u8; PROOF] = read(&mut stream).await?;
    let transcript = Transcript { token: &identity.token, hello, challenge };
    let rank = Rank(u32::from_le_bytes([hello[8], hello[9], hello[10], hello[11]]));
    let purpose = Purpose::of(hello[5], run);
    let is_wanted = purpose.is_some_and(wanted);
    if !transcript.proves("asker", &[], &proof)? {
        if !is_ours || !is_wanted || purpose != Some(Purpose::Meeting) {
            return Err(stranger("it does not know this job's token"));
        }
        let mut told = [0; VERDICT];
        told[0] = Verdict::OtherToken as u8;
        drop(write(&mut stream, &told).await); // or it is gone
        let detail = format!("it came with another token (FOREREAD_TOKEN) and says to be rank {rank}");
        return Err(WireError::new(WireErrorKind::OtherToken, detail));
    }

    // From here on it is somebody who knows the token.
    let meeting = u16::from_le_bytes([hello[6], hello[7]]);
    let verdict = match purpose {
        _ if !is_ours => Verdict::OtherJob,
        _ if meeting != identity.meeting => Verdict::OtherMeeting,
        Some(_) if is_wanted => Verdict::Welcome,
        Some(Purpose::Samples(_)) => Verdict::OtherRun,
        Some(Purpose::Meeting) | None => Verdict::Unwanted,
    };
    let mut last = [0; VERDICT + PROOF];
    last[0] = verdict as u8;
    last[2..4].copy_from_slice(&identity.meeting.to_le_bytes());
    last[4..VERDICT].copy_from_slice(&identity.rank.0.to_le_bytes());
    let proof = transcript.proof("answerer", &last[..VERDICT])?;
    last[VERDICT..].copy_from_slice(&proof);
    write(&mut stream, &last).await?;
    match (verdict, purpose) {
        (Verdict::Welcome, Some(purpose)) => Ok((stream, Greeting { rank, purpose, from })),
        (Verdict::OtherJob, _) => {
            Err(WireError::new(WireErrorKind::OtherJob, format!("rank {rank} of another job")))
        }
        (Verdict::OtherMeeting, _) => {
            let detail = format!("rank {rank} {}", elsewhere(meeting, identity.meeting));
            Err(WireError::new(WireErrorKind::OtherMeeting, detail))
        }
        (Verdict::OtherRun, _) => Err(WireError::new(
            WireErrorKind::OtherRun,
            format!("rank {rank} asks for samples of another run"),
        )),
        _ => {
            Err(WireError::new(WireErrorKind::Unwanted, format!("rank {rank} wants what is not served here")))
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;
    use crate::Nonce;

    /// Of a run that begins with `nonce`.
    fn run(nonce: u8) -> RunId {
        RunId::new(Nonce::new([nonce; 16]), &[])
    }

    fn identity(rank: u32, job: u64, token: &str) -> Identity {
        Identity { rank: Rank(rank), job, meeting: 0, token: Token::new(token).unwrap() }
    }

    type Ends = (Result<Rank, WireError>, Result<Greeting, WireError>);

    async fn meet(asker: Identity, to: Option<Rank>, answerer: Identity, wanted: Purpose) -> Ends {
        let (one, other) = duplex(64);
        let spoke = AtomicBool::new(false);
        let ask =
            async { ask(Box::new(one), &asker, Purpose::Samples(run(1)), to).await.map(|(_, rank)| rank) };
        let wanted = move |purpose| purpose == wanted;
        let answer = async {
            let answer = answer(Box::new(other), "there".into(), &answerer, wanted, &spoke).await;
            answer.map(|(_, greeting)| greeting)
        };
        tokio::join!(ask, answer)
    }

    const TOKEN: &str = "b7e1c95a03f64d2893ab5c17e0d68f42";

    #[tokio::test]
    async fn two_ranks_of_a_job_know_each_other() {
        let (asked, answered) =
            meet(identity(3, 7, TOKEN), Some(Rank(5)), identity(5, 7, TOKEN), Purpose::Samples(run(1))).await;
        assert_eq!(asked.unwrap(), Rank(5));
        let greeting = Greeting { rank: Rank(3), purpose: Purpose::Samples(run(1)), from: "there".into() };
        assert_eq!(answered.unwrap(), greeting);
    }

    #[tokio::test]
    async fn another_token_proves_nothing_to_either() {
        let (asked, answered) = meet(
            identity(3, 7, "4c0d92f7ba8e4167a35e19d2c680fb73"),
            None,
            identity(5, 7, TOKEN),
            Purpose::Samples(run(1)),
        )
        .await;
        let (asked, answered) = (asked.unwrap_err(), answered.unwrap_err());
        assert_eq!((asked.kind(), answered.kind()), (WireErrorKind::Stranger, WireErrorKind::Stranger));
        assert!(asked.to_string().contains("another token"), "{asked}");
        assert_eq!(answered.to_string(), "it does not know this job's token");
    }

    /// Who comes for a meeting of the same job made a mistake, and learns that he did and nothing else.
    #[tokio::test]
    async fn a_rank_with_another_token_is_told_so_and_a_stranger_is_not() {
        let tried = |job: u64, purpose: Purpose, wanted: Purpose| async move {
            let (mut ours, theirs) = duplex(1024);
            let (spoke, answerer) = (AtomicBool::new(false), identity(5, 7, TOKEN));
            let mut hello = [0; HELLO + PROOF];
            hello[..4].copy_from_slice(&MAGIC);
            hello[4..6].copy_from_slice(&[VERSION, purpose.to_wire().0]);
            hello[COMMON..HELLO].copy_from_slice(&purpose.to_wire().1);
            hello[8] = 3;
            hello[12..20].copy_from_slice(&job.to_le_bytes());
            ours.write_all(&hello).await.unwrap();
            let is_wanted = move |purpose| purpose == wanted;
            let answered = answer(Box::new(theirs), "there".into(), &answerer, is_wanted, &spoke).await;
            let mut told = Vec::new();
            ours.read_to_end(&mut told).await.unwrap();
            (answered.err().unwrap(), told[CHALLENGE..].to_vec())
        };
        let (error, told) = tried(7, Purpose::Meeting, Purpose::Meeting).await;
        assert_eq!((error.kind(), told), (WireErrorKind::OtherToken, vec![3, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!(error.to_string(), "it came with another token (FOREREAD_TOKEN) and says to be rank 3");
        for (job, purpose, wanted) in [
            (8, Purpose::Meeting, Purpose::Meeting),
            (7, Purpose::Samples(run(1)), Purpose::Samples(run(1))),
            (7, Purpose::Meeting, Purpose::Samples(run(1))),
        ] {
            let (error, told) = tried(job, purpose, wanted).await;
            assert_eq!((error.kind(), told), (WireErrorKind::Stranger, Vec::new()), "{job} {purpose:?}");
        }
        let (one, other) = duplex(64);
        let (spoke, asker, answerer) = (
            AtomicBool::new(false),
            identity(3, 7, "4c0d92f7ba8e4167a35e19d2c680fb73"),
            identity(5, 7, TOKEN),
        );
        let ask = ask(Box::new(one), &asker, Purpose::Meeting, None);
        let answer = answer(Box::new(other), "there".into(), &answerer, |_| true, &spoke);
        let (asked, _) = tokio::join!(ask, answer);
        assert_eq!(asked.err().unwrap().kind(), WireErrorKind::OtherToken);
    }

    #[tokio::test]
    async fn who_knows_the_token_is_told_what_is_wrong() {
        let (asked, answered) =
            meet(identity(3, 8, TOKEN), None, identity(5, 7, TOKEN), Purpose::Samples(run(1))).await;
        assert_eq!(asked.unwrap_err().to_string(), "rank 5 there is of another job");
        assert_eq!(answered.unwrap_err().kind(), WireErrorKind::OtherJob);
        let ahead = Identity { meeting: 2, ..identity(3, 7, TOKEN) };
        let (asked, answered) = meet(ahead, None, identity(5, 7, TOKEN), Purpose::Samples(run(1))).await;
        let (asked, answered) = (asked.unwrap_err(), answered.unwrap_err());
        assert_eq!(
            (asked.kind(), answered.kind()),
            (WireErrorKind::OtherMeeting, WireErrorKind::OtherMeeting)
        );
        assert_eq!(asked.to_string(), "rank 5 there has loader 1 of its process, and this is loader 3");
        assert_eq!(answered.to_string(), "rank 3 has loader 3 of its process, and this is loader 1");
        let (asked, answered) =
            meet(identity(3, 7, TOKEN), None, identity(5, 7, TOKEN), Purpose::Samples(run(2))).await;
        assert_eq!(asked.unwrap_err().to_string(), "rank 5 there is in another run, or in none yet");
        let answered = answered.unwrap_err();
        assert_eq!(answered.kind(), WireErrorKind::OtherRun);
        assert_eq!(answered.to_string(), "rank 3 asks for samples of another run");
        let (asked, _) =
            meet(identity(3, 7, TOKEN), Some(Rank(4)), identity(5, 7, TOKEN), Purpose::Samples(run(1))).await;
        assert_eq!(asked.unwrap_err().to_string(), "rank 5 answers there and not rank 4");
    }

    /// Somebody in the place of a rank gets a proof that opens nothing, and can make none.
    #[tokio::test]
    async fn who_answers_without_the_token_is_found_out() {
        let (one, mut other) = duplex(64);
        let mut other_end: Stream = Box::new(one);
        let asker = identity(3, 7, TOKEN);
        let impostor = async {
            let mut hello = [0; HELLO];
            other.read_exact(&mut hello).await.unwrap();
            let mut challenge = [0; CHALLENGE];
            challenge[..5].copy_from_slice(&[b'F', b'R', b'D', b'H', VERSION]);
            other.write_all(&challenge).await.unwrap();
            let mut proof = [0; PROOF];
            other.read_exact(&mut proof).await.unwrap();
            // What it got is sent back.
            other.write_all(&[0; VERDICT]).await.unwrap();
            other.write_all(&proof).await.unwrap();
        };
        other_end.flush().await.unwrap();
        let (asked, ()) = tokio::join!(ask(other_end, &asker, Purpose::Samples(run(1)), None), impostor);
        let error = asked.err().unwrap();
        assert_eq!(error.to_string(), "what answers does not know this job's token");
    }

    /// What one connection proved is worth nothing on another.
    #[tokio::test]
    async fn a_proof_cannot_be_sent_again() {
        let answerer = identity(5, 7, TOKEN);
        let (mut ours, theirs) = duplex(1024);
        let transcript = {
            let spoke = AtomicBool::new(false);
            let recorded = async {
                let (one, mut between) = duplex(1024);
                let asker = identity(3, 7, TOKEN);
                let ask = ask(Box::new(one), &asker, Purpose::Samples(run(1)), None);
                let listen = async {
                    let mut hello = vec![0; HELLO];
                    between.read_exact(&mut hello).await.unwrap();
                    let mut challenge = [0; CHALLENGE];
                    challenge[..5].copy_from_slice(&[b'F', b'R', b'D', b'H', VERSION]);
                    between.write_all(&challenge).await.unwrap();
                    let mut proof = [0; PROOF];
                    between.read_exact(&mut proof).await.unwrap();
                    drop(between);
                    hello.extend(proof);
                    hello
                };
                tokio::join!(ask, listen).1
            };
            let hello_and_proof = recorded.await;
            ours.write_all(&hello_and_proof).await.unwrap();
            let wanted = |_: Purpose| true;
            answer(Box::new(theirs), "there".into(), &answerer, wanted, &spoke).await.map(|(_, who)| who)
        };
        assert_eq!(transcript.unwrap_err().to_string(), "it does not know this job's token");
    }

    #[tokio::test]
    async fn other_versions_are_named_on_both_sides() {
        let (mut ours, theirs) = duplex(1024);
        let mut hello = [0; HELLO];
        hello[..4].copy_from_slice(&MAGIC);
        hello[4] = 9;
        hello[12..20].copy_from_slice(&7u64.to_le_bytes());
        ours.write_all(&hello).await.unwrap();
        let spoke = AtomicBool::new(false);
        let answerer = identity(5, 7, TOKEN);
        let answered = answer(Box::new(theirs), "there".into(), &answerer, |_| true, &spoke).await;
        assert_eq!(answered.err().unwrap().kind(), WireErrorKind::OtherVersion);
        let mut challenge = [0; CHALLENGE];
        ours.read_exact(&mut challenge).await.unwrap();
        assert_eq!((challenge[4], spoke.load(Relaxed)), (VERSION, true));
    }
}
