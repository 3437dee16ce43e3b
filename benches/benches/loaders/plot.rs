//! The plot: one row of panels per group, with samples per second and CPU per sample, cold and
//! warm.
//!
//! Values differ by a factor of more than a thousand, so the axes are logarithmic. A bar's length
//! has no meaning on such an axis, so values are dots. Each axis begins at the power of ten below
//! its least value.

use std::error::Error;
use std::ops::Range;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::contenders::Role;
use crate::results::{ContenderRow, Metric, RoundResult};
use crate::sources::SourceGroup;

const WIDTH: i32 = 1400;
const NAME_WIDTH: i32 = 290;
const PANEL_WIDTH: i32 = 520;
const GAP: i32 = 40;
const ROW_HEIGHT: i32 = 30;
const HEADER: i32 = 62;
const FOOTER: i32 = 20;

/// Colors of cold and warm dots, of foreread and of the others.
const OURS: [RGBColor; 2] = [RGBColor(0x8f, 0xbb, 0xd9), RGBColor(0x1b, 0x6c, 0xa8)];
const OTHERS: [RGBColor; 2] = [RGBColor(0xc8, 0xc8, 0xc8), RGBColor(0x88, 0x88, 0x88)];

type PlotArea<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A panel and its two metrics.
struct PlotPanel {
    title: &'static str,
    cold: Metric,
    warm: Metric,
}

const PANELS: [PlotPanel; 2] = [
    PlotPanel { title: "samples/s", cold: RoundResult::cold, warm: RoundResult::warm },
    PlotPanel { title: "us CPU per sample", cold: RoundResult::cold_cpu, warm: RoundResult::warm_cpu },
];

impl PlotPanel {
    /// A row's values, cold and warm, if there are any.
    fn values(&self, row: &ContenderRow) -> [Option<f64>; 2] {
        let positive = |value: f64| Some(value).filter(|value| *value > 0.0);
        [positive(row.median(self.cold)), row.has_warm().then(|| row.median(self.warm)).and_then(positive)]
    }

    /// The exponents of the first and the last power of ten on the axis, over all groups.
    fn scale(&self, groups: &[(SourceGroup, Vec<ContenderRow>)]) -> Range<f64> {
        let rows = groups.iter().flat_map(|(_, rows)| rows);
        let powers = || rows.clone().flat_map(|row| self.values(row)).flatten().map(f64::log10);
        let (least, most) = (powers().fold(f64::MAX, f64::min), powers().fold(f64::MIN, f64::max));
        if least > most { 0.0..1.0 } else { least.floor()..most.ceil().max(least.floor() + 1.0) }
    }
}

/// Draws all groups into one file.
pub fn draw(path: &Path, groups: &[(SourceGroup, Vec<ContenderRow>)]) -> Result<()> {
    panels(path, groups).map_err(|error| anyhow!("{error}"))
}

fn panels(path: &Path, groups: &[(SourceGroup, Vec<ContenderRow>)]) -> Result<(), Box<dyn Error>> {
    let height = |rows: &[ContenderRow]| HEADER + ROW_HEIGHT * rows.len() as i32 + FOOTER;
    let total: i32 = groups.iter().map(|(_, rows)| height(rows)).sum();
    let root = SVGBackend::new(path, (WIDTH as u32, total as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut top = 0;
    for (group, rows) in groups {
        write_text(&root, &group.title(), (14, top + 14), HPos::Left, 17)?;
        for (row, at) in rows.iter().zip(0..) {
            write_text(
                &root,
                &row.label(),
                (NAME_WIDTH - 8, top + HEADER + ROW_HEIGHT * at + ROW_HEIGHT / 2 - 2),
                HPos::Right,
                13,
            )?;
        }
        for (panel, number) in PANELS.iter().zip(0..) {
            dots(&root, panel, &panel.scale(groups), rows, (NAME_WIDTH + number * (PANEL_WIDTH + GAP), top))?;
        }
        top += height(rows);
    }
    root.present()?;
    Ok(())
}

fn dots(
    root: &PlotArea<'_>,
    panel: &PlotPanel,
    scale: &Range<f64>,
    rows: &[ContenderRow],
    (left, top): (i32, i32),
) -> Result<(), Box<dyn Error>> {
    // The margin leaves room for the number after the last dot.
    let x_of = |value: f64| {
        let share = (value.log10() - scale.start) / (scale.end - scale.start);
        left + (share * f64::from(PANEL_WIDTH - 60)) as i32
    };
    let bottom = top + HEADER + ROW_HEIGHT * rows.len() as i32;
    write_text(root, &format!("{}: light cold, dark warm", panel.title), (left, top + 34), HPos::Left, 13)?;
    for power in scale.start as i32..=scale.end as i32 {
        let at = x_of(10f64.powi(power));
        let line = PathElement::new([(at, top + HEADER - 6), (at, bottom)], BLACK.mix(0.12));
        root.draw(&line)?;
        write_text(root, &number(10f64.powi(power)), (at, top + HEADER - 12), HPos::Center, 11)?;
    }
    for (row, at) in rows.iter().zip(0..) {
        let ours = !(row.has_role(Role::Peer) || row.has_role(Role::LowerBound));
        for ((value, color), line) in
            panel.values(row).into_iter().zip(if ours { OURS } else { OTHERS }).zip(0..)
        {
            let Some(value) = value else { continue };
            let (x, y) = (x_of(value), top + HEADER + ROW_HEIGHT * at + 13 * line + 6);
            root.draw(&Circle::new((x, y), 5, color.filled()))?;
            write_text(root, &number(value), (x + 8, y), HPos::Left, 11)?;
        }
    }
    Ok(())
}

fn number(value: f64) -> String {
    match value {
        large if large >= 1e6 => format!("{:.1} M", large / 1e6),
        large if large >= 1e4 => format!("{:.0} k", large / 1e3),
        large if large >= 1e3 => format!("{:.1} k", large / 1e3),
        middle if middle >= 10.0 => format!("{middle:.0}"),
        small => format!("{small:.1}"),
    }
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
