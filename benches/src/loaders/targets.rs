//! Performance targets of the Python package.

use crate::loaders::cases::{Case, CaseTable};
use crate::loaders::record::{GroupRecord, Role, SourceGroup};
use crate::table::{Figure, Goal, number};

/// The figures of a group, for the loaders that were measured.
pub fn figures(group: &GroupRecord) -> Vec<Figure> {
    let is_local = group.group == SourceGroup::Local;
    let target = match group.group {
        SourceGroup::Local => 1.5,
        SourceGroup::Store(_) => 1.2,
        SourceGroup::Ceph => 1.0,
    };
    // A target for files is about later epochs, because the first one is dominated by startup.
    let is_target = |case: &Case<'_>| case.name.ends_with("later epochs") == is_local;
    let mut figures: Vec<_> = CaseTable::Raw
        .cases(group)
        .iter()
        .filter(|case| is_target(case))
        .map(|case| of_case(case, target))
        .collect();
    if !is_local {
        figures.extend(CaseTable::Shards.cases(group).iter().map(|case| of_case(case, target)));
    }
    if let Some(memory) = CaseTable::Memory.cases(group).iter().find(|case| case.ours.role == Role::Memory) {
        figures.push(of_case(memory, 3.0));
    }
    if is_local {
        figures.extend(costs(group));
    }
    if let (SourceGroup::Store(_), Some(ours)) = (group.group, group.row_of(Role::Loader)) {
        figures.extend(ours.since_sent.map(|since| {
            let name = format!("{}: first batch after the first bytes of an object", group.group.case(true));
            let note = format!("{:.2} s after the loader was created", ours.first_batch);
            Figure::new(name, Goal::AtMost(0.5), since, "s").note(note)
        }));
    }
    figures
}

/// The ratio of samples/s to the best peer's.
fn of_case(case: &Case<'_>, target: f64) -> Figure {
    let name = format!("{}: samples/s / the best peer's", case.name);
    Figure::new(name, Goal::AtLeast(target), case.ratio(), "x").note(format!(
        "{}: {} samples/s; {}: {}",
        case.ours.label(),
        number(case.our_rate),
        case.peer.label(),
        number(case.peer.rate)
    ))
}

/// The CPU of a sample from files, and the time of a sample from memory.
fn costs(group: &GroupRecord) -> Vec<Figure> {
    let later = |role| group.row_of(role).and_then(|row| row.later);
    let mut figures = Vec::new();
    if let (Some(ours), Some(lower_bound)) = (later(Role::Loader), later(Role::LowerBound)) {
        let note = format!("{:.1} us; {:.1} us", ours.cpu, lower_bound.cpu);
        let name = "page-cached files: CPU per sample / os.readv's into one buffer";
        figures.push(Figure::new(name, Goal::AtMost(1.1), ours.cpu / lower_bound.cpu, "x").note(note));
    }
    if let Some(ours) = later(Role::Memory) {
        let name = "page-cached files: delivery of a sample from memory to Python";
        figures.push(Figure::new(name, Goal::AtMost(2.0), 1e6 / ours.rate, "us"));
    }
    figures
}
