//! A group as a table that Markdown understands.

use crate::outcome::{Outcome, Row};
use crate::place::Group;

/// The caption: what was compared.
pub fn versions(of: &std::collections::BTreeMap<String, String>) {
    let versions: Vec<String> = of.iter().map(|(name, version)| format!("{name} {version}")).collect();
    println!("\nVersions: {}.", versions.join(", "));
}

pub fn print(group: Group, rows: &[Row]) {
    println!("\n### {}\n", group.title());
    let widths = [42, 15, 11, 15, 11, 13];
    let heads = ["", "cold: samples/s", "us CPU", "warm: samples/s", "us CPU", "first batch, s"];
    let line = |cells: [String; 6], last: &str| {
        let mut line = format!("| {:<1$} ", cells[0], widths[0]);
        for (cell, width) in cells.iter().zip(widths).skip(1) {
            line.push_str(&format!("| {cell:>width$} "));
        }
        println!("{line}| {last} |");
    };
    line(heads.map(String::from), "");
    println!("|---|--:|--:|--:|--:|--:|---|");
    for row in rows {
        let of = |figure: crate::outcome::Of| row.mid(figure);
        let warm = |text: String| if row.has_warm() { text } else { String::new() };
        line(
            [
                row.label(),
                format!("{:.0}", of(Outcome::cold)),
                format!("{:.1}", of(Outcome::cold_cpu)),
                warm(format!("{:.0}", of(Outcome::warm))),
                warm(format!("{:.1}", of(Outcome::warm_cpu))),
                format!("{:.3}", of(|outcome| outcome.first)),
            ],
            &note(row),
        );
    }
    println!();
}

/// The other settings, what the store was asked, and whether an epoch was cut short.
fn note(row: &Row) -> String {
    let mut notes = Vec::new();
    let tried = &row.settings.tried;
    let others: Vec<_> = tried.iter().filter(|(setting, _)| *setting != row.settings.best).collect();
    if !others.is_empty() {
        let said: Vec<_> = others.iter().map(|(setting, rate)| format!("{setting}: {rate:.0}/s")).collect();
        notes.push(said.join(", "));
    }
    if let Some(requests) = row.outcomes.last().and_then(|outcome| outcome.requests) {
        let (get, list) = (requests.get, requests.list);
        notes.push(format!("{get} GET, {list} LIST, {:.2} GB", requests.bytes as f64 / 1e9));
    }
    if row.outcomes.iter().any(Outcome::is_cut) {
        notes.push("epochs cut short".to_owned());
    }
    if !row.has_warm() {
        notes.push("no warm figure".to_owned());
    }
    notes.join("; ")
}
