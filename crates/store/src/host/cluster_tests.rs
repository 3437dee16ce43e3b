//! The stores of several nodes as one cache. The time is simulated, so all jobs have one pace.

use std::sync::mpsc;

use bytes::Bytes;
use foreread_tier::{ReadFuture, TierError};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use super::test_rig::{LENGTH, Owners, TAKEN, content, order};
use super::*;

const SAMPLES: u64 = 2000;
const JOBS: usize = 8;

/// The stores of all nodes, and the jobs that each of them knows, by their numbers.
#[derive(Default)]
struct Cluster {
    nodes: Mutex<Vec<(NodeStore, Vec<StoreJob>)>>,
    reads: AtomicU64,
}

/// The samples of a node, from storage or from their owners.
struct ClusterReader {
    node: usize,
    cluster: Arc<Cluster>,
}

impl fmt::Debug for ClusterReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterReader").field("node", &self.node).finish_non_exhaustive()
    }
}

impl SampleReader for ClusterReader {
    fn read(&self, id: SampleId, _: Tick) -> ReadFuture {
        self.cluster.reads.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::ready(Ok(content(id))))
    }

    fn submit(&self) {}

    fn parallelism(&self) -> usize {
        1000
    }

    fn read_node(&self, id: SampleId, job: StoreJob, due: Tick) -> ReadFuture {
        let (sender, answer) = oneshot::channel();
        let answered = move |received: Result<Bytes, TierError>| drop(sender.send(received));
        let request = StoreRequest { key: key(id), due, answer: Box::new(answered) };
        let (owner, there) = {
            let nodes = self.cluster.nodes.lock().unwrap();
            let number = nodes[self.node].1.iter().position(|own| *own == job).unwrap();
            let (owner, jobs) = &nodes[owner(id, nodes.len())];
            (owner.clone(), jobs[number])
        };
        owner.request(there, vec![request]);
        Box::pin(async move { answer.await.unwrap() })
    }
}

fn owner(id: SampleId, nodes: usize) -> usize {
    id.0 as usize % nodes
}

fn key(id: SampleId) -> SampleKey {
    SampleKey::new(DatasetId(0), id)
}

impl Cluster {
    /// Nodes with memory for so many samples each, and the jobs on all nodes in turn.
    fn start(nodes: usize, kept: u64, runtime: &Runtime, now: &Arc<AtomicU64>) -> Arc<Self> {
        let cluster = Arc::new(Self::default());
        for node in 0..nodes {
            let time = Arc::clone(now);
            let clock = move || time.load(Ordering::Relaxed);
            let store = NodeStore::with_clock(kept * TAKEN, runtime.handle().clone(), clock);
            let reader = Arc::new(ClusterReader { node, cluster: Arc::clone(&cluster) });
            let dataset = store.add_dataset(&Sizes::uniform(SAMPLES, LENGTH), reader, "test").unwrap();
            let others = Owners::of(SAMPLES, move |id| owner(id, nodes) != node);
            store.set_owners(dataset, others);
            let job =
                |job| if job % nodes == node { store.add_job(true) } else { store.add_remote_job(true) };
            let jobs = (0..JOBS).map(job).collect();
            cluster.nodes.lock().unwrap().push((store, jobs));
        }
        cluster
    }

    /// Announces an epoch of all jobs to their nodes, and to each owner its part.
    fn announce(&self, epoch: u64) {
        let nodes = self.nodes.lock().unwrap();
        for (node, (store, jobs)) in (0..).zip(&*nodes) {
            for (number, job) in (0..).zip(jobs) {
                let is_here = |id| number % nodes.len() == node || owner(id, nodes.len()) == node;
                let ids = order(SAMPLES, number as u64, epoch).into_iter().map(SampleId);
                let ids = ids.map(|id| if is_here(id) { id } else { EpochUses::HOLE });
                store.announce(*job, DatasetId(0), Tick(epoch * SAMPLES), NonZeroU32::MIN, ids).unwrap();
            }
        }
    }

    /// Has each job use all samples of an epoch.
    fn use_all(&self, epoch: u64, now: &AtomicU64) {
        let jobs: Vec<(NodeStore, StoreJob)> = {
            let nodes = self.nodes.lock().unwrap();
            let on_own_node =
                |job: usize| (nodes[job % nodes.len()].0.clone(), nodes[job % nodes.len()].1[job]);
            (0..JOBS).map(on_own_node).collect()
        };
        let orders: Vec<Vec<u64>> = (0..JOBS as u64).map(|job| order(SAMPLES, job, epoch)).collect();
        for at in (0..SAMPLES as usize).step_by(10) {
            for ((store, job), order) in jobs.iter().zip(&orders) {
                let (sender, answers) = mpsc::channel();
                let request = |(due, id): (u64, &u64)| {
                    let sender = sender.clone();
                    let answer = Box::new(move |received| sender.send(received).unwrap());
                    StoreRequest { key: key(SampleId(*id)), due: Tick(epoch * SAMPLES + due), answer }
                };
                store.request(*job, (at as u64..).zip(&order[at..at + 10]).map(request).collect());
                drop(sender);
                assert_eq!(answers.iter().filter(Result::is_ok).count(), 10);
            }
            now.fetch_add(10 * 300_000, Ordering::Relaxed);
        }
    }
}

/// The part of the uses that is read from storage, from the third to the sixth epoch.
fn share_of_storage(nodes: usize, kept: u64) -> f64 {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let now = Arc::new(AtomicU64::new(0));
    let cluster = Cluster::start(nodes, kept, &runtime, &now);
    (0..3).for_each(|epoch| cluster.announce(epoch));
    let mut before = 0;
    for epoch in 0..6 {
        if epoch == 2 {
            before = cluster.reads.load(Ordering::Relaxed);
        }
        cluster.use_all(epoch, &now);
        cluster.announce(epoch + 3);
    }
    cluster.nodes.lock().unwrap().clear();
    (cluster.reads.load(Ordering::Relaxed) - before) as f64 / (4 * JOBS as u64 * SAMPLES) as f64
}

/// Four nodes with a tenth of the dataset each, and two jobs on each of them.
#[test]
// semantics: CONTROL-10
fn jobs_of_four_nodes_read_what_one_cache_would() {
    let (one, four) = (share_of_storage(1, SAMPLES * 4 / 10), share_of_storage(4, SAMPLES / 10));
    println!("{one:.4} of the uses are read from storage with one cache, {four:.4} with four");
    assert!((0.99..1.03).contains(&(four / one)), "{one:.4} {four:.4}");
}
