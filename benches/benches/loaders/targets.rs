//! Performance targets of the Python package.

use foreread_benches::table::{Figure, Goal};

use crate::contenders::{Role, SampleFormat};
use crate::results::{ContenderRow, Metric, RoundResult};
use crate::sources::SourceGroup;

/// The figures of a group, for the contenders that were measured.
pub fn figures(group: SourceGroup, rows: &[ContenderRow]) -> Vec<Figure> {
    let row_of = |role| rows.iter().find(|row| row.has_role(role));
    let fastest = |roles: &[Role], rate: Metric| {
        let rows = rows.iter().filter(|row| roles.contains(&row.contender.role));
        rows.max_by(|one, other| one.median(rate).total_cmp(&other.median(rate)))
    };
    // Raw objects are compared with raw objects, and shards with shards. A peer's figure is the
    // best of all its settings. Trials exclude startup, which favours the peer.
    let cold = |role: Role, what: &str, target| {
        let ours = row_of(role)?;
        let raw = |row: &&ContenderRow| {
            (row.contender.format == SampleFormat::Raw) == (ours.contender.format == SampleFormat::Raw)
        };
        let peers = rows.iter().filter(|row| row.has_role(Role::Peer)).filter(raw);
        let (peer, best) = peers
            .map(|row| (row, row.best_cold()))
            .max_by(|(_, one), (_, other)| one.1.total_cmp(&other.1))?;
        let (ratio, trial) = match best.0 {
            None => (ours.ratio(peer, RoundResult::cold), ""),
            Some(_) => (ours.median(RoundResult::cold) / best.1, " in its trial"),
        };
        let name = format!("{}, {what}: cold epoch, samples/s / the fastest peer's", group.name());
        Some(Figure::new(name, Goal::AtLeast(target), ratio, "x").note(format!(
            "{}: {:.0} samples/s; {}: {:.0}{trial}",
            ours.label(),
            ours.median(RoundResult::cold),
            peer.label_of(best.0.unwrap_or(peer.settings.best)),
            best.1
        )))
    };
    let versus_peer = |roles: &[Role], rate: Metric, what: &str, target| {
        let (ours, peer) = (fastest(roles, rate)?, fastest(&[Role::Peer], rate)?);
        let name = format!("{}: {what} / the fastest peer's", group.name());
        Some(Figure::new(name, Goal::AtLeast(target), ours.ratio(peer, rate), "x").note(format!(
            "{}: {:.0} samples/s; {}: {:.0}",
            ours.label(),
            ours.median(rate),
            peer.label(),
            peer.median(rate)
        )))
    };
    let mut figures = Vec::new();
    match group {
        SourceGroup::Local => {
            figures.extend(versus_peer(&[Role::Loader], RoundResult::warm, "samples/s", 1.5));
            if let (Some(ours), Some(lower_bound)) = (row_of(Role::Loader), row_of(Role::LowerBound)) {
                let cpu: Metric = RoundResult::warm_cpu;
                let name = format!("{}: CPU per sample / os.readv's into one buffer", group.name());
                let note = format!("{:.1} us; {:.1} us", ours.median(cpu), lower_bound.median(cpu));
                figures
                    .push(Figure::new(name, Goal::AtMost(1.1), ours.ratio(lower_bound, cpu), "x").note(note));
            }
            if let Some(ours) = row_of(Role::Memory) {
                let name = format!("{}: delivery of a sample from memory to Python", group.name());
                figures.push(Figure::new(
                    name,
                    Goal::AtMost(2.0),
                    1e6 / ours.median(RoundResult::warm),
                    "us",
                ));
            }
        }
        SourceGroup::Store(_) | SourceGroup::Ceph => {
            let target = if group == SourceGroup::Ceph { 1.0 } else { 1.2 };
            figures.extend(cold(Role::Loader, "raw objects", target));
            figures.extend(cold(Role::Shards, "shards", target));
        }
    }
    figures.extend(versus_peer(
        &[Role::Memory],
        RoundResult::warm,
        "warm epochs from memory, samples/s",
        3.0,
    ));
    if let (SourceGroup::Store(_), Some(ours)) = (group, row_of(Role::Loader)) {
        let name = format!("{}: first batch after the first bytes of an object", group.name());
        let since: Metric = |result| result.since_sent.unwrap_or(f64::NAN);
        let note = format!("{:.2} s after the loader was created", ours.median(|result| result.first));
        figures.push(Figure::new(name, Goal::AtMost(0.5), ours.median(since), "s").note(note));
    }
    figures
}
