use super::test_rig::Rig;
use super::*;

/// Guards against this fault: on a node with some of the ranks, samples that others own took the
/// room on the disk.
#[test]
fn samples_that_no_order_has_are_not_for_the_disk() {
    let rig = Rig::new(100, 100, 1000);
    rig.origin.has_disk.store(true, Ordering::Relaxed);
    let job = rig.store.add_job(true);
    // The job reads samples 0 to 3, and announces two of them.
    let ids = [0, EpochUses::HOLE.0, 2, EpochUses::HOLE.0];
    rig.announce(job, 0, &ids);
    rig.get(job, 0, &[0, 1, 2, 3]);
    let other = rig.store.add_job(false);
    rig.get(other, 0, &[50]);
    let mut given: Vec<u64> = rig.origin.disk_writes.lock().unwrap().iter().map(|(id, _)| *id).collect();
    given.sort_unstable();
    assert_eq!(given, [0, 2, 50]);
}

/// Guards against this fault: a sample that did not stay in memory was read again while it was on
/// its way to the disk.
#[test]
fn samples_on_their_way_to_the_disk_are_not_read_again() {
    let rig = Rig::new(100, 0, 1000);
    rig.origin.has_disk.store(true, Ordering::Relaxed);
    let job = rig.store.add_job(false);
    rig.get(job, 0, &[1, 2]);
    rig.get(job, 2, &[1, 2]);
    assert_eq!(rig.origin.reads(), 2);
    // One arrives there, and the other one is given up.
    for (id, kept) in std::mem::take(&mut *rig.origin.disk_writes.lock().unwrap()) {
        if id == 1 {
            kept();
        }
    }
    let key = |id| SampleKey::new(rig.dataset, SampleId(id));
    assert!(rig.store.has(key(1)) && !rig.store.has(key(2)));
    // The disk of this test cannot be read, and nothing else has them.
    rig.get(job, 4, &[1, 2]);
    assert_eq!(rig.origin.reads(), 4);
}
