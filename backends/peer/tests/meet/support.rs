//! A job of simulated ranks, and the steps of each rank.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foreread_peer::Token;
use foreread_peer::meet::{Launched, MeetError, Rendezvous, RendezvousSettings, RendezvousSteps, RunGroup};
use foreread_peer_testing::SimulatedNetwork;
use foreread_tier::{HeapBuffers, OpenContext};
use foreread_types::{Fingerprint, Rank};
use tokio::task::JoinHandle;

pub const TOKEN: &str = "c5d0f1a98b7e46320c5d0f1a98b7e463";

/// Of another job.
pub const OTHER_TOKEN: &str = "0f1e2d3c4b5a69788796a5b4c3d2e1f0";

pub const DEADLINE: Duration = Duration::from_secs(30);

pub fn context() -> OpenContext {
    OpenContext { buffers: Arc::new(HeapBuffers), runtime: tokio::runtime::Handle::current(), seed: 1 }
}

pub fn launched(rank: u32, world_size: u32, rendezvous: Rendezvous) -> Launched {
    Launched {
        rank: Rank(rank),
        world_size,
        local_rank: None,
        local_size: None,
        node: None,
        rendezvous: Some(rendezvous),
        job: "test".to_owned(),
        launcher: "the test",
    }
}

/// A job whose rank `i` runs on the host `ri` of a network in memory.
#[derive(Clone, Debug)]
pub struct Job {
    pub network: SimulatedNetwork,
    pub size: u32,
}

impl Job {
    pub fn new(size: u32) -> Self {
        Self { network: SimulatedNetwork::new(7), size }
    }

    pub fn launched(&self, rank: u32) -> Launched {
        launched(rank, self.size, Rendezvous::Host { host: "r0".to_owned(), ports: vec![7000, 7001] })
    }

    pub fn settings(&self, rank: u32) -> RendezvousSettings {
        self.settings_of(self.launched(rank))
    }

    pub fn settings_of(&self, launched: Launched) -> RendezvousSettings {
        let host = format!("r{}", launched.rank);
        RendezvousSettings {
            network: self.network.host(host),
            token: Some(Token::new(TOKEN).unwrap()),
            deadline: DEADLINE,
            ..RendezvousSettings::new(launched, "1.0")
        }
    }

    /// Starts `rank` after `wait`.
    pub fn spawn<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        rank: u32,
        wait: Duration,
        act: impl FnOnce(Result<RendezvousSteps, MeetError>) -> F + Send + 'static,
    ) -> JoinHandle<T> {
        let settings = self.settings(rank);
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            act(RendezvousSteps::join(settings).await).await
        })
    }

    /// All ranks, from the beginning to the start.
    pub async fn start(&self) -> Vec<Arc<RunGroup>> {
        let all: Vec<_> = (0..self.size)
            .map(|rank| {
                self.spawn(rank, Duration::ZERO, |joining| async move { begin(joining.unwrap()).await })
            })
            .collect();
        let mut groups = Vec::new();
        for one in all {
            groups.push(Arc::new(one.await.unwrap().unwrap()));
        }
        groups
    }
}

/// Writes the notice of a dead run, with its addresses, into a rendezvous directory.
pub fn leave_notice(directory: &Path, addresses: &[&str]) {
    let addresses: Vec<_> = addresses.iter().map(|address| format!("{address:?}")).collect();
    let addresses = addresses.join(",");
    let notice = format!(r#"{{"instance":1,"addresses":[{addresses}],"token":"{OTHER_TOKEN}"}}"#);
    let path = directory.join("rank0");
    fs::create_dir_all(directory).unwrap();
    fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(&path, notice).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

pub const CATALOG: &[u8] = b"a catalog";

/// The steps of every rank between the rendezvous and the start.
pub async fn begin(mut joining: RendezvousSteps) -> Result<RunGroup, MeetError> {
    let first = joining.rank().0 == 0;
    let catalog = joining.share(first.then(|| Bytes::from_static(CATALOG))).await?;
    assert_eq!(catalog, CATALOG);
    let held = Bytes::from(joining.rank().to_string());
    let held = joining.exchange(words("5", ""), held, |all| all.join(&b' ').into()).await?;
    let expected: Vec<_> = (0..joining.world_size()).map(|rank| rank.to_string()).collect();
    assert_eq!(held, expected.join(" "));
    joining.start(words("5", "plan"), &[Fingerprint(5)], &context()).await
}

/// Checks that all ranks have equal settings.
pub async fn compare(joining: &mut RendezvousSteps, words: Vec<(String, String)>) -> Result<(), MeetError> {
    joining.exchange(words, Bytes::new(), |_| Bytes::new()).await.map(drop)
}

pub fn words(seed: &str, plan: &str) -> Vec<(String, String)> {
    vec![("seed".to_owned(), seed.to_owned()), ("plan".to_owned(), plan.to_owned())]
}

/// The results of all tasks.
pub async fn all<T>(tasks: impl IntoIterator<Item = JoinHandle<T>>) -> Vec<T> {
    let mut done = Vec::new();
    for task in tasks {
        done.push(task.await.unwrap());
    }
    done
}
