//! The plot: samples per second of each loader, a row of panels per data source.
//!
//! Decision: every panel has a separate linear axis that begins at 0. The length of a bar is its
//! value, and the two panels of raw files share their loaders' names. The price is that bars of
//! different panels cannot be compared. Epochs from foreread's memory are left out, because they
//! would be the only visible bar of a panel.

use std::error::Error;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::loaders::pages::rounded;
use crate::loaders::record::{EpochKind, GroupRecord, LoaderRow, Role, SampleFormat};

const WIDTH: i32 = 990;
const NAME_WIDTH: i32 = 180;
const PANEL_WIDTH: i32 = 190;
/// Room for the number after the longest bar.
const NUMBER_WIDTH: i32 = 50;
const GAP: i32 = 20;
const MARGIN: i32 = 12;
const BAR_HEIGHT: i32 = 12;
const ROW_HEIGHT: i32 = 20;
const HEADER: i32 = 62;
const FOOTER: i32 = 30;

const OURS: RGBColor = RGBColor(0x1b, 0x6c, 0xa8);
const PEER: RGBColor = RGBColor(0x99, 0x99, 0x99);
const LOWER_BOUND: RGBColor = RGBColor(0xd0, 0xd0, 0xd0);

type PlotArea<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A loader's bar.
#[derive(Clone, Debug, PartialEq)]
struct Bar {
    name: String,
    role: Role,
    /// Samples per second. `None` if it was not measured.
    rate: Option<f64>,
}

/// Draws all groups, as the text of an SVG file.
///
/// # Errors
///
/// If a shape cannot be drawn.
pub fn draw(groups: &[GroupRecord]) -> Result<String> {
    let mut text = String::new();
    draw_into(&mut text, groups).map_err(|error| anyhow!("{error}"))?;
    Ok(text)
}

fn draw_into(text: &mut String, groups: &[GroupRecord]) -> Result<(), Box<dyn Error>> {
    let panels: Vec<[Vec<Bar>; 3]> = groups
        .iter()
        .map(|group| {
            [
                bars(group, true, EpochKind::First),
                bars(group, true, EpochKind::Later),
                bars(group, false, EpochKind::First),
            ]
        })
        .collect();
    let height = |panels: &[Vec<Bar>; 3]| {
        let rows = panels.iter().map(Vec::len).max().unwrap_or_default();
        HEADER + ROW_HEIGHT * rows as i32 + FOOTER
    };
    let total: i32 = panels.iter().map(height).sum();
    let root = SVGBackend::with_string(text, (WIDTH as u32, total.max(1) as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let titles = ["raw, first epoch", "raw, later epochs", "shards, first epoch"];
    let second = MARGIN + NAME_WIDTH + PANEL_WIDTH + GAP;
    let third = second + PANEL_WIDTH + GAP + NAME_WIDTH;
    let mut top = 0;
    for (group, panels) in groups.iter().zip(&panels) {
        write_text(
            &root,
            &format!("{} (samples/s)", group.group.title()),
            (MARGIN, top + 16),
            HPos::Left,
            15,
        )?;
        for (at, left) in [(0, MARGIN + NAME_WIDTH), (2, third)] {
            for (bar, row) in panels[at].iter().zip(0..) {
                write_text(&root, &bar.name, (left - 6, row_center(top, row)), HPos::Right, 12)?;
            }
        }
        for ((bars, title), left) in panels.iter().zip(titles).zip([MARGIN + NAME_WIDTH, second, third]) {
            if !bars.is_empty() {
                panel(&root, title, bars, (left, top))?;
            }
        }
        top += height(panels);
    }
    root.present()?;
    Ok(())
}

fn row_center(top: i32, row: i32) -> i32 {
    top + HEADER + ROW_HEIGHT * row + ROW_HEIGHT / 2
}

/// The bars of a panel, with the best setting of each loader.
fn bars(group: &GroupRecord, is_raw: bool, kind: EpochKind) -> Vec<Bar> {
    let is_shown = |row: &&LoaderRow| (row.format == SampleFormat::Raw) == is_raw && row.role != Role::Memory;
    let mut bars: Vec<Bar> = Vec::new();
    for row in group.rows.iter().filter(is_shown) {
        let rate = match row.role {
            Role::Peer => group.best_rate(row, kind).map(|best| best.rate),
            _ => row.epoch(kind).map(|epoch| epoch.rate),
        };
        match bars.iter_mut().find(|bar| bar.name == row.name) {
            Some(bar) => bar.rate = bar.rate.into_iter().chain(rate).reduce(f64::max),
            None => bars.push(Bar { name: row.name.clone(), role: row.role, rate }),
        }
    }
    bars
}

/// The end of an axis from 0: the least round number that is not below the value.
fn axis_end(most: f64) -> f64 {
    let power = 10f64.powf(most.max(1.0).log10().floor());
    [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0]
        .into_iter()
        .map(|step| step * power)
        .find(|end| *end >= most)
        .unwrap_or(most)
}

/// The length of a bar in pixels: its value's share of the axis.
fn length(rate: f64, end: f64) -> i32 {
    (rate / end * f64::from(PANEL_WIDTH - NUMBER_WIDTH)).round() as i32
}

fn panel(
    root: &PlotArea<'_>,
    title: &str,
    bars: &[Bar],
    (left, top): (i32, i32),
) -> Result<(), Box<dyn Error>> {
    let end = axis_end(bars.iter().filter_map(|bar| bar.rate).fold(0.0, f64::max));
    let bottom = top + HEADER + ROW_HEIGHT * bars.len() as i32;
    write_text(root, title, (left, top + HEADER - 18), HPos::Left, 12)?;
    for tick in [0.0, end / 2.0, end] {
        let at = left + length(tick, end);
        let strength = if tick == 0.0 { 0.6 } else { 0.15 };
        root.draw(&PathElement::new([(at, top + HEADER - 6), (at, bottom + 2)], BLACK.mix(strength)))?;
        write_text(root, &rounded(tick), (at, bottom + 10), HPos::Center, 10)?;
    }
    for (bar, row) in bars.iter().zip(0..) {
        let center = row_center(top, row);
        let Some(rate) = bar.rate else {
            write_text(root, "not measured", (left + 4, center), HPos::Left, 11)?;
            continue;
        };
        let color = match bar.role {
            Role::Peer => PEER,
            Role::LowerBound => LOWER_BOUND,
            _ => OURS,
        };
        let right = left + length(rate, end);
        let corners = [(left, center - BAR_HEIGHT / 2), (right, center + BAR_HEIGHT / 2)];
        root.draw(&Rectangle::new(corners, color.filled()))?;
        write_text(root, &rounded(rate), (right + 4, center), HPos::Left, 11)?;
    }
    Ok(())
}

fn write_text(
    root: &PlotArea<'_>,
    text: &str,
    at: (i32, i32),
    side: HPos,
    size: i32,
) -> Result<(), Box<dyn Error>> {
    let style = ("sans-serif", size).into_font().color(&BLACK).pos(Pos::new(side, VPos::Center));
    Ok(root.draw(&Text::new(text.to_owned(), at, style))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loaders::record::tests::{peer, record};

    #[test]
    fn bar_length_is_proportional_to_its_rate() {
        let full = PANEL_WIDTH - NUMBER_WIDTH;
        for (rate, share) in [(0.0, 0), (100.0, full / 4), (200.0, full / 2), (400.0, full)] {
            assert_eq!(length(rate, 400.0), share);
        }
    }

    #[test]
    fn axis_ends_at_a_round_value_that_holds_all_bars() {
        let ends = [(0.0, 1.0), (64.0, 80.0), (1490.0, 1500.0), (2400.0, 3000.0), (4128.0, 5000.0)];
        for (most, end) in ends {
            assert_eq!(axis_end(most), end);
        }
        assert_eq!(axis_end(77_810.0), 80_000.0);
    }

    #[test]
    fn loader_with_two_settings_has_one_bar_of_the_better() {
        let rows = vec![
            peer("raw", SampleFormat::Raw, 50.0),
            LoaderRow { setting: 4, ..peer("raw", SampleFormat::Raw, 70.0) },
        ];
        let group = record(rows).groups.remove(0);
        let found: Vec<_> = bars(&group, true, EpochKind::First).into_iter().map(|bar| bar.rate).collect();
        assert_eq!(found, [Some(100.0), Some(70.0)]);
    }

    #[test]
    fn missing_rate_is_written_and_not_drawn_as_zero() {
        let cut = LoaderRow { later: None, ..peer("raw", SampleFormat::Raw, 50.0) };
        let text = draw(&record(vec![cut]).groups).unwrap();
        assert_eq!(text.matches("not measured").count(), 1);
    }

    #[test]
    fn epochs_from_memory_are_not_drawn() {
        let memory = LoaderRow { role: Role::Memory, ..peer("memory", SampleFormat::Raw, 9e5) };
        let group = record(vec![memory]).groups.remove(0);
        assert!(bars(&group, true, EpochKind::Later).iter().all(|bar| bar.name != "memory"));
    }
}
