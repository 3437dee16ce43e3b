//! The order of each epoch: as the user has announced it, or recognised.

use std::path::PathBuf;
use std::time::Duration;

use foreread_planner::FIRST_USES;

use crate::host::HostShared;
use crate::recognition::{RecognisedOrder, Recognition, by_path, common_directory};
use crate::settings::FileOrder;

/// How often the epoch is looked at.
const POLL: Duration = Duration::from_millis(10);

/// Gives the host the order of each epoch, until it ends.
pub(crate) fn follow_epochs(shared: &HostShared, announced: Option<Box<dyn FileOrder>>) {
    match announced {
        Some(order) => announce(shared, order),
        None => recognise(shared),
    }
}

fn announce(shared: &HostShared, mut order: Box<dyn FileOrder>) {
    let mut announced = None;
    while !shared.has_ended() {
        let state = shared.lock();
        let epoch = state.choice.epoch();
        if state.is_listed && announced != Some(epoch) {
            announced = Some(epoch);
            let paths = state.paths();
            drop(state);
            let below = common_directory(paths.iter().map(|path| &**path)).unwrap_or_default();
            let numbers = by_path(&paths, &below);
            let files: Vec<PathBuf> = numbers.iter().map(|number| paths[*number as usize].clone()).collect();
            if let Some(order) = order.epoch(epoch, &files) {
                let number = |place: &usize| numbers.get(*place).copied();
                shared.lock().choice.announce(order.iter().filter_map(number).collect());
            }
        } else {
            drop(state);
        }
        std::thread::sleep(shared.pause(POLL));
    }
}

fn recognise(shared: &HostShared) {
    let mut recognition = Recognition::default();
    while !shared.has_ended() {
        let state = shared.lock();
        let epoch = state.choice.epoch();
        if let Some(order) = recognition.next(epoch) {
            drop(state);
            expect(shared, epoch, order);
        } else if state.is_listed
            && recognition.wants(epoch)
            && let Some(first) = state.choice.first_uses(FIRST_USES).map(<[u32]>::to_vec)
        {
            let paths = state.paths();
            drop(state);
            if let Some(order) = recognition.look(epoch, &first, &paths) {
                expect(shared, epoch, order);
            }
        } else {
            drop(state);
        }
        std::thread::sleep(shared.pause(POLL));
    }
}

/// Expects an order, if its epoch has not ended meanwhile.
fn expect(shared: &HostShared, epoch: u64, order: RecognisedOrder) {
    let mut state = shared.lock();
    if state.choice.epoch() == epoch {
        tracing::debug!(epoch, files = order.files.len(), "the order of the files was recognised");
        state.choice.recognised(order.files, order.is_whole);
        state.counts.recognised += 1;
    }
}
