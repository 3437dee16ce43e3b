//! The plot: a row of panels a group; samples a second, cold and warm, and CPU a sample.
//!
//! The values differ by more than a thousand, so the axes are logarithmic; there a bar's length says nothing, so values are
//! dots. Each axis begins at the power of ten below its least value: no dot is cut off.

use std::error::Error;
use std::ops::Range;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::contenders::Kind;
use crate::outcome::{Of, Outcome, Row};
use crate::place::Group;

const WIDTH: i32 = 1400;
const NAMES: i32 = 290;
const PANEL: i32 = 520;
const GAP: i32 = 40;
const ROW: i32 = 30;
const HEAD: i32 = 62;
const FOOT: i32 = 20;

/// Cold and warm dots, of foreread and of others.
const OURS: [RGBColor; 2] = [RGBColor(0x8f, 0xbb, 0xd9), RGBColor(0x1b, 0x6c, 0xa8)];
const OTHERS: [RGBColor; 2] = [RGBColor(0xc8, 0xc8, 0xc8), RGBColor(0x88, 0x88, 0x88)];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// One panel: what its dots are.
struct Panel {
    title: &'static str,
    cold: Of,
    warm: Of,
}

const PANELS: [Panel; 2] = [
    Panel { title: "samples/s", cold: Outcome::cold, warm: Outcome::warm },
    Panel { title: "us CPU a sample", cold: Outcome::cold_cpu, warm: Outcome::warm_cpu },
];

impl Panel {
    /// A row's values, cold and warm, as far as there are any.
    fn values(&self, row: &Row) -> [Option<f64>; 2] {
        let positive = |value: f64| Some(value).filter(|value| *value > 0.0);
        [positive(row.mid(self.cold)), row.has_warm().then(|| row.mid(self.warm)).and_then(positive)]
    }

    /// The powers of ten that the axis goes from and to, over all groups.
    fn scale(&self, groups: &[(Group, Vec<Row>)]) -> Range<f64> {
        let rows = groups.iter().flat_map(|(_, rows)| rows);
        let powers = || rows.clone().flat_map(|row| self.values(row)).flatten().map(f64::log10);
        let (least, most) = (powers().fold(f64::MAX, f64::min), powers().fold(f64::MIN, f64::max));
        if least > most { 0.0..1.0 } else { least.floor()..most.ceil().max(least.floor() + 1.0) }
    }
}

/// Draws all groups into one file.
pub fn draw(path: &Path, groups: &[(Group, Vec<Row>)]) -> Result<()> {
    panels(path, groups).map_err(|error| anyhow!("{error}"))
}

fn panels(path: &Path, groups: &[(Group, Vec<Row>)]) -> Result<(), Box<dyn Error>> {
    let height = |rows: &[Row]| HEAD + ROW * rows.len() as i32 + FOOT;
    let whole: i32 = groups.iter().map(|(_, rows)| height(rows)).sum();
    let root = SVGBackend::new(path, (WIDTH as u32, whole as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut top = 0;
    for (group, rows) in groups {
        write(&root, &group.title(), (14, top + 14), HPos::Left, 17)?;
        for (row, at) in rows.iter().zip(0..) {
            write(&root, &row.label(), (NAMES - 8, top + HEAD + ROW * at + ROW / 2 - 2), HPos::Right, 13)?;
        }
        for (panel, number) in PANELS.iter().zip(0..) {
            dots(&root, panel, &panel.scale(groups), rows, (NAMES + number * (PANEL + GAP), top))?;
        }
        top += height(rows);
    }
    root.present()?;
    Ok(())
}

fn dots(
    root: &Area<'_>,
    panel: &Panel,
    scale: &Range<f64>,
    rows: &[Row],
    (left, top): (i32, i32),
) -> Result<(), Box<dyn Error>> {
    // Room for the number after the last dot.
    let place = |value: f64| {
        let share = (value.log10() - scale.start) / (scale.end - scale.start);
        left + (share * f64::from(PANEL - 60)) as i32
    };
    let bottom = top + HEAD + ROW * rows.len() as i32;
    write(root, &format!("{}: light cold, dark warm", panel.title), (left, top + 34), HPos::Left, 13)?;
    for power in scale.start as i32..=scale.end as i32 {
        let at = place(10f64.powi(power));
        let line = PathElement::new([(at, top + HEAD - 6), (at, bottom)], BLACK.mix(0.12));
        root.draw(&line)?;
        write(root, &number(10f64.powi(power)), (at, top + HEAD - 12), HPos::Center, 11)?;
    }
    for (row, at) in rows.iter().zip(0..) {
        let ours = !(row.is(Kind::Peer) || row.is(Kind::Floor));
        for ((value, color), line) in
            panel.values(row).into_iter().zip(if ours { OURS } else { OTHERS }).zip(0..)
        {
            let Some(value) = value else { continue };
            let (x, y) = (place(value), top + HEAD + ROW * at + 13 * line + 6);
            root.draw(&Circle::new((x, y), 5, color.filled()))?;
            write(root, &number(value), (x + 8, y), HPos::Left, 11)?;
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

fn write(root: &Area<'_>, text: &str, at: (i32, i32), side: HPos, size: i32) -> Result<(), Box<dyn Error>> {
    let style = ("sans-serif", size).into_font().color(&BLACK).pos(Pos::new(side, VPos::Center));
    Ok(root.draw(&Text::new(text.to_owned(), at, style))?)
}
