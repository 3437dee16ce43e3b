//! A group as a table in Markdown.

use crate::results::{ContenderRow, RoundResult};
use crate::sources::SourceGroup;

/// Prints the versions of the compared packages.
pub fn versions(packages: &std::collections::BTreeMap<String, String>) {
    let versions: Vec<String> = packages.iter().map(|(name, version)| format!("{name} {version}")).collect();
    println!("\nVersions: {}.", versions.join(", "));
}

/// Prints the table of a group.
pub fn print(group: SourceGroup, rows: &[ContenderRow]) {
    println!("\n### {}\n", group.title());
    let widths = [42, 15, 11, 15, 11, 13];
    let headers = ["", "cold: samples/s", "us CPU", "warm: samples/s", "us CPU", "first batch, s"];
    let line = |cells: [String; 6], last: &str| {
        let mut line = format!("| {:<1$} ", cells[0], widths[0]);
        for (cell, width) in cells.iter().zip(widths).skip(1) {
            line.push_str(&format!("| {cell:>width$} "));
        }
        println!("{line}| {last} |");
    };
    line(headers.map(String::from), "");
    println!("|---|--:|--:|--:|--:|--:|---|");
    for row in rows {
        let median = |metric: crate::results::Metric| row.median(metric);
        let warm = |text: String| if row.has_warm() { text } else { String::new() };
        line(
            [
                row.label(),
                format!("{:.0}", median(RoundResult::cold)),
                format!("{:.1}", median(RoundResult::cold_cpu)),
                warm(format!("{:.0}", median(RoundResult::warm))),
                warm(format!("{:.1}", median(RoundResult::warm_cpu))),
                format!("{:.3}", median(|result| result.first)),
            ],
            &note(row),
        );
    }
    println!();
}

/// The other settings, the store's request counters, and whether an epoch was cut short.
fn note(row: &ContenderRow) -> String {
    let mut notes = Vec::new();
    let tried = &row.settings.tried;
    let others: Vec<_> = tried.iter().filter(|(setting, _)| *setting != row.settings.best).collect();
    if !others.is_empty() {
        let rates: Vec<_> = others.iter().map(|(setting, rate)| format!("{setting}: {rate:.0}/s")).collect();
        notes.push(rates.join(", "));
    }
    if let Some(requests) = row.results.last().and_then(|result| result.requests) {
        let (get, list) = (requests.get, requests.list);
        notes.push(format!("{get} GET, {list} LIST, {:.2} GB", requests.bytes as f64 / 1e9));
    }
    if row.results.iter().any(RoundResult::is_cut) {
        notes.push("epochs cut short".to_owned());
    }
    if !row.has_warm() {
        notes.push("no warm figure".to_owned());
    }
    notes.join("; ")
}
