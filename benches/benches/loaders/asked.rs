//! What was asked for of the Python package's speed.

use foreread_benches::table::{Asked, Figure};

use crate::contenders::{Form, Kind};
use crate::outcome::{Of, Outcome, Row};
use crate::place::Group;

/// A group's figures, as far as their rows were measured.
pub fn figures(group: Group, rows: &[Row]) -> Vec<Figure> {
    let of = |kind| rows.iter().find(|row| row.is(kind));
    let fastest = |kinds: &[Kind], rate: Of| {
        let rows = rows.iter().filter(|row| kinds.contains(&row.contender.kind));
        rows.max_by(|one, other| one.mid(rate).total_cmp(&other.mid(rate)))
    };
    // Objects as they are with such, and shards with shards. A peer counts with the best that any of its settings has shown:
    // trials leave the start out, which is to its favour.
    let cold = |kind: Kind, what: &str, asked| {
        let ours = of(kind)?;
        let raw = |row: &&Row| (row.contender.form == Form::Raw) == (ours.contender.form == Form::Raw);
        let peers = rows.iter().filter(|row| row.is(Kind::Peer)).filter(raw);
        let (peer, best) = peers
            .map(|row| (row, row.best_cold()))
            .max_by(|(_, one), (_, other)| one.1.total_cmp(&other.1))?;
        let (ratio, trial) = match best.0 {
            None => (ours.ratio(peer, Outcome::cold), ""),
            Some(_) => (ours.mid(Outcome::cold) / best.1, " in its trial"),
        };
        let name = format!("{}, {what}: cold epoch, samples/s / the fastest peer's", group.name());
        Some(Figure::new(name, Asked::AtLeast(asked), ratio, "x").note(format!(
            "{}: {:.0} samples/s; {}: {:.0}{trial}",
            ours.label(),
            ours.mid(Outcome::cold),
            peer.label_of(best.0.unwrap_or(peer.settings.best)),
            best.1
        )))
    };
    let beside = |kinds: &[Kind], rate: Of, what: &str, asked| {
        let (ours, peer) = (fastest(kinds, rate)?, fastest(&[Kind::Peer], rate)?);
        let name = format!("{}: {what} / the fastest peer's", group.name());
        Some(Figure::new(name, Asked::AtLeast(asked), ours.ratio(peer, rate), "x").note(format!(
            "{}: {:.0} samples/s; {}: {:.0}",
            ours.label(),
            ours.mid(rate),
            peer.label(),
            peer.mid(rate)
        )))
    };
    let mut figures = Vec::new();
    match group {
        Group::Local => {
            figures.extend(beside(&[Kind::Loader], Outcome::warm, "samples/s", 1.5));
            if let (Some(ours), Some(floor)) = (of(Kind::Loader), of(Kind::Floor)) {
                let cpu: Of = Outcome::warm_cpu;
                let name = format!("{}: CPU a sample / os.readv's into one buffer", group.name());
                let note = format!("{:.1} us; {:.1} us", ours.mid(cpu), floor.mid(cpu));
                figures.push(Figure::new(name, Asked::AtMost(1.1), ours.ratio(floor, cpu), "x").note(note));
            }
            if let Some(ours) = of(Kind::Memory) {
                let name = format!("{}: a sample from memory to Python, all included", group.name());
                figures.push(Figure::new(name, Asked::AtMost(2.0), 1e6 / ours.mid(Outcome::warm), "us"));
            }
        }
        Group::Store(_) | Group::Ceph => {
            let asked = if group == Group::Ceph { 1.0 } else { 1.2 };
            figures.extend(cold(Kind::Loader, "objects as they are", asked));
            figures.extend(cold(Kind::Shards, "shards", asked));
        }
    }
    figures.extend(beside(&[Kind::Memory], Outcome::warm, "warm epochs from memory, samples/s", 3.0));
    if let (Group::Store(_), Some(ours)) = (group, of(Kind::Loader)) {
        let name = format!("{}: first batch after the first bytes of an object", group.name());
        let since: Of = |outcome| outcome.since_sent.unwrap_or(f64::NAN);
        let note = format!("{:.2} s after the loader's making", ours.mid(|outcome| outcome.first));
        figures.push(Figure::new(name, Asked::AtMost(0.5), ours.mid(since), "s").note(note));
    }
    figures
}
