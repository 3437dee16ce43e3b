//! The pages of the comparison: generated parts of `README.md` and `targets.md`, all of
//! `results/loaders.md`, and the plot.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::loaders::cases::{Case, CaseTable};
use crate::loaders::record::{EpochFigures, EpochKind, GroupRecord, LoaderRow, Record, SampleFormat};
use crate::loaders::{plot, targets};
use crate::table::{self, number};

/// The record, in the package's directory.
pub const RECORD: &str = "results/loaders.json";

/// The plot, in the package's directory.
pub const PLOT: &str = "loaders.svg";

/// The cases of the three headline numbers: a table and the name of a case.
const HEADLINES: [(CaseTable, &str); 3] = [
    (CaseTable::Raw, "S3, 40 ms, first epoch"),
    (CaseTable::Shards, "S3, 40 ms, shards, first epoch"),
    (CaseTable::Raw, "page-cached files, later epochs"),
];

/// The directory of the package.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// All generated files with their text, by path in the package's directory.
///
/// # Errors
///
/// If a page cannot be read or a marker is missing.
pub fn render(directory: &Path, record: &Record) -> Result<BTreeMap<&'static str, String>> {
    let page = |name: &str| std::fs::read_to_string(directory.join(name)).with_context(|| name.to_owned());
    let mut readme = page("README.md")?;
    readme = with_block(&readme, "headline", &headline(record)).context("README.md")?;
    for (table, block) in CaseTable::ALL.into_iter().zip(["results", "shards", "memory"]) {
        readme = with_block(&readme, block, &case_table(record, table)).context("README.md")?;
    }
    readme = with_block(&readme, "slower", &slower(record)).context("README.md")?;
    let mut developers = page("targets.md")?;
    let figures: Vec<_> = record.groups.iter().flat_map(targets::figures).collect();
    developers = with_block(&developers, "loaders", &table::markdown(&figures)).context("targets.md")?;
    Ok(BTreeMap::from([
        ("README.md", readme),
        ("targets.md", developers),
        ("results/loaders.md", raw_tables(record)),
        (PLOT, plot::draw(&record.groups)?),
    ]))
}

/// The tables of a run that is not published.
pub fn summary(record: &Record) -> String {
    let figures: Vec<_> = record.groups.iter().flat_map(targets::figures).collect();
    let cases = CaseTable::ALL.map(|table| case_table(record, table)).join("\n");
    format!("{}\n{cases}\n{}", raw_tables(record), table::markdown(&figures))
}

/// Renders and writes all generated files.
///
/// # Errors
///
/// If a file cannot be read or written.
pub fn write(directory: &Path, record: &Record) -> Result<()> {
    for (name, text) in render(directory, record)? {
        std::fs::write(directory.join(name), text).with_context(|| name.to_owned())?;
    }
    Ok(())
}

/// The page with the text between a block's markers replaced.
fn with_block(page: &str, name: &str, text: &str) -> Result<String> {
    let (begin, end) = (format!("<!-- {name}:begin -->\n"), format!("<!-- {name}:end -->"));
    let (Some((head, rest)), true) = (page.split_once(&begin), page.matches(&begin).count() == 1) else {
        bail!("expected one line {begin:?}");
    };
    let Some((_, tail)) = rest.split_once(&end) else { bail!("{end:?} is missing after {begin:?}") };
    Ok(format!("{head}{begin}{text}{end}{tail}"))
}

fn headline(record: &Record) -> String {
    let mut text = String::new();
    for (table, name) in HEADLINES {
        let cases = record.groups.iter().flat_map(|group| table.cases(group));
        let Some(case) = cases.into_iter().find(|case| case.name == name) else { continue };
        let _ = writeln!(
            text,
            "* **{} x** the best peer: {name}. foreread: {} samples/s. {}: {}.",
            ratio(case.ratio()),
            rounded(case.our_rate),
            case.peer.label(),
            rounded(case.peer.rate)
        );
    }
    format!("{text}\n{}", captions(&record.groups))
}

/// The run, the machine and the versions. Once for groups of the same run.
fn captions(groups: &[GroupRecord]) -> String {
    let mut captions: Vec<(String, Vec<String>)> = Vec::new();
    for group in groups {
        let text = caption(group);
        match captions.iter_mut().find(|(known, _)| *known == text) {
            Some((_, names)) => names.push(group.group.name()),
            None => captions.push((text, vec![group.group.name()])),
        }
    }
    let is_one = captions.len() == 1;
    let lines = captions.into_iter().map(|(text, names)| match is_one {
        true => format!("{text}\n"),
        false => format!("* {}: {text}\n", names.join(", ")),
    });
    lines.collect()
}

fn caption(group: &GroupRecord) -> String {
    let versions: Vec<String> =
        group.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let versions = match versions.is_empty() {
        true => "not recorded in this run".to_owned(),
        false => versions.join(", "),
    };
    format!("Date: {}. Machine: {}. Versions: {versions}.", group.date, group.machine)
}

/// A table of cases. Its columns are stable, because a test compares the README's claims with them.
fn case_table(record: &Record, table: CaseTable) -> String {
    let mut text =
        String::from("| case | foreread | best peer | peer and setting | ratio |\n|---|--:|--:|---|--:|\n");
    for case in record.groups.iter().flat_map(|group| table.cases(group)) {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            case.name,
            rounded(case.our_rate),
            rounded(case.peer.rate),
            case.peer.label(),
            ratio(case.ratio())
        );
    }
    text
}

/// All rows of foreread that are slower than a peer of the same kind, or than a peer with shards.
fn slower(record: &Record) -> String {
    let mut cases: Vec<Case<'_>> = Vec::new();
    for group in &record.groups {
        for row in group.rows.iter().filter(|row| row.is_ours()) {
            for kind in [EpochKind::First, EpochKind::Later] {
                let is_raw = row.format == SampleFormat::Raw;
                cases.extend(group.case_of(row, kind, is_raw));
                if is_raw {
                    cases.extend(group.case_of(row, kind, false));
                }
            }
        }
    }
    cases.retain(|case| case.ratio() < 1.0);
    cases.sort_by(|one, other| one.ratio().total_cmp(&other.ratio()));
    let mut text = String::from(
        "| case | foreread's interface | foreread | best peer | peer and setting | ratio |\n\
         |---|---|--:|--:|---|--:|\n",
    );
    for case in cases {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            case.name,
            case.ours.label(),
            rounded(case.our_rate),
            rounded(case.peer.rate),
            case.peer.label(),
            ratio(case.ratio())
        );
    }
    text
}

/// `results/loaders.md`.
fn raw_tables(record: &Record) -> String {
    let mut text = String::from(
        "# Measurements of Python loaders\n\n\
         <!-- Generated from loaders.json by the bench `loaders`. Do not edit. -->\n\n\
         [The benchmarks page](../README.md) explains the method and compares the best rows.\n\
         Rates are samples/s. CPU is in microseconds per sample, of all threads and processes of the \
         loader.\n\
         The last column has the rates of short trials with other settings.\n",
    );
    for group in &record.groups {
        let _ = write!(text, "\n## {}\n\n{}\n", group.group.title(), caption(group));
        for (title, is_raw) in [("Raw", true), ("Shards", false)] {
            let rows: Vec<_> =
                group.rows.iter().filter(|row| (row.format == SampleFormat::Raw) == is_raw).collect();
            if rows.is_empty() {
                continue;
            }
            let _ = write!(
                text,
                "\n### {title}: {}\n\n\
                 | loader | first epoch | CPU | later epochs | CPU | first batch, s | other settings |\n\
                 |---|--:|--:|--:|--:|--:|---|\n",
                group.group.case(true)
            );
            for row in rows {
                text.push_str(&raw_row(row));
            }
        }
    }
    text
}

fn raw_row(row: &LoaderRow) -> String {
    let cells = |epoch: Option<EpochFigures>| match epoch {
        Some(epoch) => format!("{} | {:.1}", rounded(epoch.rate), epoch.cpu),
        None => " | ".to_owned(),
    };
    let name = if row.is_ours() { format!("**{}**", row.label()) } else { row.label() };
    let others: Vec<_> = row.tried.iter().filter(|(setting, _)| *setting != row.setting).collect();
    let trials: Vec<_> =
        others.iter().map(|(setting, tried)| format!("{setting}: {}", rounded(*tried))).collect();
    let mut notes = if trials.is_empty() { Vec::new() } else { vec![trials.join(", ")] };
    if row.is_cut {
        notes.push("epochs cut short".to_owned());
    }
    if row.later.is_none() {
        notes.push("no later epoch".to_owned());
    }
    format!(
        "| {name} | {} | {} | {:.3} | {} |\n",
        cells(Some(row.first)),
        cells(row.later),
        row.first_batch,
        notes.join("; ")
    )
}

/// A number without fractions, with separators of thousands.
pub(crate) fn rounded(value: f64) -> String {
    if value < 1000.0 { format!("{value:.0}") } else { number(value) }
}

/// A ratio with two decimals below ten.
fn ratio(value: f64) -> String {
    if value < 10.0 { format!("{value:.2}") } else { rounded(value) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loaders::record::tests::{peer, record};

    /// The committed record.
    fn published() -> Record {
        Record::load(&directory().join(RECORD)).unwrap()
    }

    #[test]
    fn pages_and_plot_are_rendered_from_the_record() {
        let (directory, record) = (directory(), published());
        if std::env::var_os("FOREREAD_UPDATE_PAGES").is_some() {
            write(&directory, &record).unwrap();
        }
        for (name, text) in render(&directory, &record).unwrap() {
            let found = std::fs::read_to_string(directory.join(name)).unwrap();
            assert!(found == text, "{name} is not up to date: set FOREREAD_UPDATE_PAGES=1 and run this test");
        }
    }

    #[test]
    fn published_record_has_all_headline_cases() {
        assert_eq!(headline(&published()).matches(" x** the best peer").count(), HEADLINES.len());
    }

    #[test]
    fn first_table_compares_raw_files_only() {
        let peers = vec![peer("raw", SampleFormat::Raw, 50.0), peer("tar", SampleFormat::Tar, 900.0)];
        let text = case_table(&record(peers), CaseTable::Raw);
        assert!(
            text.contains("| page-cached files, first epoch | 100 | 50 | raw, 0 workers | 2.00 |"),
            "{text}"
        );
        assert!(!text.contains("tar"), "{text}");
    }

    #[test]
    fn slower_cases_are_listed_worst_first() {
        let text = slower(&record(vec![
            peer("raw", SampleFormat::Raw, 125.0),
            peer("tar", SampleFormat::Tar, 400.0),
        ]));
        let ratios: Vec<_> =
            text.lines().skip(2).map(|line| line.rsplit('|').nth(1).unwrap().trim()).collect();
        assert_eq!(ratios, ["0.25", "0.50", "0.80"]);
    }

    #[test]
    fn missing_later_epochs_leave_empty_cells() {
        let row = LoaderRow { later: None, ..peer("raw", SampleFormat::Raw, 50.0) };
        assert_eq!(raw_row(&row), "| raw, 0 workers | 50 | 10.0 |  |  | 1.000 | no later epoch |\n");
    }

    #[test]
    fn groups_of_different_runs_have_separate_captions() {
        let mut groups = published().groups;
        for at in 1..groups.len() {
            let GroupRecord { date, machine, versions, .. } = groups[0].clone();
            groups[at] = GroupRecord { date, machine, versions, ..groups[at].clone() };
        }
        groups.iter_mut().for_each(|group| group.versions.clear());
        assert_eq!(captions(&groups).lines().count(), 1);
        groups[0].versions.insert("litdata".to_owned(), "0.2.76".to_owned());
        let text = captions(&groups);
        assert_eq!(text.lines().count(), 2);
        assert!(text.starts_with("* local: Date: ") && text.contains("Versions: litdata 0.2.76."), "{text}");
    }

    #[test]
    fn block_is_replaced_between_its_markers_only() {
        let page = "a\n<!-- x:begin -->\nold\n<!-- x:end -->\nb\n";
        assert_eq!(with_block(page, "x", "new\n").unwrap(), page.replace("old", "new"));
        assert!(with_block(page, "y", "new\n").is_err());
        assert!(with_block(&page.repeat(2), "x", "new\n").is_err());
    }
}
