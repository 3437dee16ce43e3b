//! Samples that other nodes of a cluster keep.

use foreread_tier::ErrorKind;

use super::test_rig::{Owners, Rig, content, order};
use super::*;

/// Even samples are kept here, and odd ones elsewhere.
fn shared(samples: u64, kept: u64, open: usize) -> Rig {
    let rig = Rig::new(samples, kept, open);
    set_others(&rig, samples, |id| id % 2 == 1);
    rig
}

fn set_others(rig: &Rig, samples: u64, own: impl Fn(u64) -> bool + Send + Sync + 'static) {
    rig.store.set_owners(rig.dataset, Owners::of(samples, move |id: SampleId| own(id.0)));
}

fn key(rig: &Rig, id: u64) -> SampleKey {
    SampleKey::new(rig.dataset, SampleId(id))
}

#[test]
// semantics: CONTROL-10
fn samples_of_other_owners_come_from_there_and_take_spare_room() {
    const SAMPLES: u64 = 100;
    let rig = shared(SAMPLES, 60, 1 << 20);
    let job = rig.store.add_job(true);
    (0..3).for_each(|epoch| rig.announce(job, epoch * SAMPLES, &order(SAMPLES, 0, epoch)));
    for epoch in 0..3 {
        rig.get(job, epoch * SAMPLES, &order(SAMPLES, 0, epoch));
    }
    let reads = rig.origin.reads.lock().unwrap().clone();
    assert!(reads.len() == 50 && reads.iter().all(|id| id % 2 == 0), "{reads:?}");
    let from_nodes = rig.origin.node_reads.lock().unwrap().clone();
    // The position of each use goes with it.
    let (id, due) = from_nodes[0];
    assert!(order(SAMPLES, 0, 0)[due as usize] == id && id % 2 == 1);
    // Ten of the other 50 have the room that is left.
    assert!((90..=130).contains(&from_nodes.len()), "{}", from_nodes.len());
    let there = (0..SAMPLES).filter(|id| rig.store.contains(key(&rig, *id)));
    let (own, others): (Vec<u64>, Vec<u64>) = there.partition(|id| id % 2 == 0);
    assert_eq!((own.len(), others.len()), (50, 10));
    let counts = rig.store.totals().counts;
    assert_eq!((counts.node_reads, counts.reads), (from_nodes.len() as u64, 50));
    assert_eq!(rig.store.totals().datasets[0].own_samples, 50);
}

#[test]
// semantics: CONTROL-11
fn sample_that_its_owner_does_not_send_is_read_from_storage() {
    let rig = shared(10, 10, 1 << 20);
    rig.origin.has_nodes.store(false, Ordering::Relaxed);
    let job = rig.store.add_job(false);
    rig.get(job, 0, &[1, 2, 3]);
    let mut reads = rig.origin.reads.lock().unwrap().clone();
    reads.sort_unstable();
    assert_eq!(reads, [1, 2, 3]);
    let counts = rig.store.totals().counts;
    assert_eq!((counts.node_reads, counts.reads, counts.failures), (0, 3, 0));
}

/// Two nodes with different lists of owners would wait for each other.
#[test]
// semantics: CONTROL-11
fn jobs_of_other_nodes_never_wait_for_a_node() {
    let rig = shared(10, 10, 0);
    let (own, remote) = (rig.store.add_job(false), rig.store.add_remote_job(false));
    // 1 is owned elsewhere by this node's list, and here by that of another node.
    let waiting = rig.request(own, 0, &[1]);
    let (id, answer) = rig.request(remote, 0, &[1]).recv().unwrap();
    assert_eq!((id, answer.unwrap_err().kind()), (1, ErrorKind::Absent));
    // Without a read under way it is read from storage, which others may join.
    let remotely = rig.request(remote, 1, &[3]);
    let joined = rig.request(own, 1, &[3]);
    assert_eq!(*rig.origin.node_reads.lock().unwrap(), [(1, 0)]);
    rig.origin.gate.add_permits(2);
    for (receiver, id) in [(waiting, 1), (remotely, 3), (joined, 3)] {
        assert_eq!(receiver.recv().unwrap().1.unwrap(), content(SampleId(id)));
    }
    assert_eq!(*rig.origin.reads.lock().unwrap(), [3]);
}

#[test]
// semantics: CONTROL-11
fn sample_with_a_new_owner_stays_where_it_is_needed() {
    let rig = shared(100, 60, 1 << 20);
    let job = rig.store.add_job(true);
    (0..4).for_each(|epoch| rig.announce(job, epoch * 100, &order(100, 0, epoch)));
    rig.get(job, 0, &order(100, 0, 0));
    // All owners are here now.
    rig.store.set_owners(rig.dataset, None);
    let before = rig.origin.reads();
    rig.get(job, 100, &order(100, 0, 1));
    // 60 were there, and stay.
    assert_eq!(rig.origin.reads() - before, 40);
    set_others(&rig, 100, |id| id < 60);
    rig.get(job, 200, &order(100, 0, 2));
    let there = (60..100).filter(|id| rig.store.contains(key(&rig, *id))).count();
    assert_eq!(there, 40);
}

#[test]
fn filling_job_and_blocks_leave_samples_of_other_owners_alone() {
    let rig = shared(100, 100, 1 << 20);
    rig.origin.block.store(10, Ordering::Relaxed);
    set_others(&rig, 100, |id| id >= 50);
    let job = rig.store.add_job(false);
    rig.get(job, 0, &[3]);
    assert_eq!(*rig.origin.block_reads.lock().unwrap(), [10]);
    // The last block of this node has four samples of another owner.
    set_others(&rig, 100, |id| id >= 46);
    rig.get(job, 1, &[41]);
    assert_eq!(*rig.origin.block_reads.lock().unwrap(), [10, 6]);
    assert!(!rig.store.contains(key(&rig, 47)));
}

#[test]
// semantics: CONTROL-6
fn filling_replaces_copies_of_samples_of_other_owners() {
    let rig = shared(100, 50, 1 << 20);
    let job = rig.store.add_job(false);
    rig.get(job, 0, &(0..50).map(|at| 2 * at + 1).collect::<Vec<u64>>());
    let filling = rig.store.add_filling_job();
    rig.get(filling, 0, &(0..50).map(|at| 2 * at).collect::<Vec<u64>>());
    let state = rig.store.totals().datasets[0].clone();
    assert_eq!((state.kept_samples, state.held_samples), (50, 50));
}
