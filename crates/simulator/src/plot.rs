//! The plots of a comparison: SVG, drawn with plotters.
//!
//! Axes are laid out here in pixels and not by plotters' charts. Rows with names and values, and a
//! logarithmic axis with steps of 1, 2, 5, take less code this way. Colours are those of Okabe and
//! Ito, which colour-blind readers can distinguish. Names come from a scenario file and have any
//! length. They are cut, and plotters escapes them.

use plotters::coord::Shift;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::element::DashedPathElement;
use plotters::prelude::{
    Circle, DrawingArea, IntoDrawingArea, IntoTextStyle, PathElement, RGBColor, Rectangle, SVGBackend, Text,
};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontStyle, ShapeStyle, TextStyle};

use crate::{Policy, SimulationOutcome};

/// A plot could not be drawn. Opaque, because callers can only omit the plot.
#[derive(Debug, thiserror::Error)]
#[error("no plot: {0}")]
pub struct PlotError(String);

impl<E: std::error::Error + Send + Sync> From<DrawingAreaErrorKind<E>> for PlotError {
    fn from(error: DrawingAreaErrorKind<E>) -> Self {
        Self(error.to_string())
    }
}

type Result<T> = std::result::Result<T, PlotError>;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const INK: RGBColor = RGBColor(40, 40, 40);
const FAINT: RGBColor = RGBColor(205, 205, 205);
const STALL: RGBColor = RGBColor(153, 153, 153);
const ORIGIN: RGBColor = RGBColor(213, 94, 0);
const PEERS: RGBColor = RGBColor(86, 180, 233);
const LOCAL: RGBColor = RGBColor(0, 158, 115);
const BOUND: RGBColor = RGBColor(0, 0, 0);

/// The colours of lines. A repeated colour is drawn dashed.
const LINES: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(120, 120, 120),
];

const WIDTH: i32 = 960;

/// One policy's seconds by cache size, as a fraction of the dataset. Without points if it refused
/// everywhere.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    /// The policy.
    pub policy: Policy,
    /// The caches' fraction of the dataset, and seconds.
    pub points: Vec<(f64, f64)>,
}

/// One bar per policy: its seconds, split by the initial stall and by the sources of its accesses.
///
/// # Errors
/// If the plot cannot be drawn.
pub fn bars(name: &str, headline: &str, outcomes: &[SimulationOutcome]) -> Result<String> {
    const LEFT: i32 = 165;
    const RIGHT: i32 = WIDTH - 85;
    const TOP: i32 = 112;
    const ROW: i32 = 30;
    let bottom = TOP + ROW * outcomes.len() as i32;
    let seconds = |outcome: &SimulationOutcome| outcome.figures.map(|figures| figures.seconds);
    let most = outcomes.iter().filter_map(seconds).fold(0.0, f64::max);
    // If no policy takes any time, the axis still has a length.
    let axis =
        Axis { from: 0.0, to: if most > 0.0 { most } else { 1.0 }, low: LEFT, high: RIGHT, log: false };
    paint(bottom + 62, |area| {
        titles(area, &format!("{}: seconds by policy", cut(name)), headline)?;
        let legend = [
            ("initial stall", STALL),
            ("from the origin", ORIGIN),
            ("from other workers", PEERS),
            ("from this worker's caches", LOCAL),
        ];
        let mut x = LEFT;
        for (label, colour) in legend {
            area.draw(&Rectangle::new([(x, 76), (x + 14, 90)], colour.filled()))?;
            area.draw(&Text::new(label, (x + 20, 83), text(13, &INK, HPos::Left, VPos::Center)))?;
            x += 42 + 7 * label.len() as i32;
        }
        for tick in axis.ticks() {
            let x = axis.at(tick);
            area.draw(&PathElement::new(vec![(x, TOP), (x, bottom)], FAINT))?;
            area.draw(&Text::new(number(tick), (x, bottom + 6), text(12, &INK, HPos::Center, VPos::Top)))?;
        }
        let label =
            "seconds (without the initial stall, split by the share of accesses that each source served)";
        area.draw(&Text::new(
            label,
            ((LEFT + RIGHT) / 2, bottom + 32),
            text(13, &INK, HPos::Center, VPos::Top),
        ))?;
        for (row, outcome) in outcomes.iter().enumerate() {
            let y = TOP + ROW * row as i32;
            let middle = y + ROW / 2;
            let name = text(13, &INK, HPos::Right, VPos::Center);
            area.draw(&Text::new(outcome.policy.name(), (LEFT - 8, middle), name))?;
            let Some(f) = outcome.figures else {
                let style = text(12, &STALL, HPos::Left, VPos::Center);
                area.draw(&Text::new("refused", (LEFT + 6, middle), style))?;
                continue;
            };
            let served = f.served_pfs + f.served_remote + f.served_local;
            let running = f.seconds - f.init_stall_seconds;
            let part = |count: f64| if served > 0.0 { running * count / served } else { 0.0 };
            let parts = [
                (f.init_stall_seconds, STALL),
                (part(f.served_pfs), ORIGIN),
                (part(f.served_remote), PEERS),
                (part(f.served_local), LOCAL),
            ];
            let mut from = 0.0;
            for (length, colour) in parts {
                let corners = [(axis.at(from), y + 5), (axis.at(from + length), y + ROW - 5)];
                if corners[1].0 > corners[0].0 {
                    area.draw(&Rectangle::new(corners, colour.filled()))?;
                }
                from += length;
            }
            let end = axis.at(f.seconds);
            if served == 0.0 {
                // The lower bound reads nothing.
                let outline = ShapeStyle::from(&BOUND).stroke_width(1);
                area.draw(&Rectangle::new([(LEFT, y + 5), (end, y + ROW - 5)], outline))?;
            }
            let value = text(12, &INK, HPos::Left, VPos::Center);
            area.draw(&Text::new(value_of(f.seconds), (end + 6, middle), value))?;
        }
        let bound = outcomes.iter().find(|outcome| outcome.policy == Policy::LowerBound).and_then(seconds);
        if let Some(bound) = bound {
            let x = axis.at(bound);
            area.draw(&DashedPathElement::new(vec![(x, TOP - 4), (x, bottom)], 4, 4, BOUND))?;
        }
        area.draw(&PathElement::new(vec![(LEFT, TOP), (LEFT, bottom), (RIGHT, bottom)], INK))?;
        Ok(())
    })
}

/// Seconds against the caches' fraction of the dataset, one line per policy, with the lower bound.
///
/// # Errors
/// If the plot cannot be drawn.
pub fn against_cache(name: &str, headline: &str, bound: f64, curves: &[Sweep]) -> Result<String> {
    const LEFT: i32 = 80;
    const RIGHT: i32 = WIDTH - 210;
    const TOP: i32 = 84;
    const BOTTOM: i32 = 500;
    let all = || curves.iter().flat_map(|curve| &curve.points);
    let most = all().map(|point| point.1).fold(bound, f64::max);
    let least = all().map(|point| point.1).fold(bound, f64::min);
    let widest = all().map(|point| point.0).fold(1.0, f64::max);
    let x_axis = Axis { from: 0.0, to: widest, low: LEFT, high: RIGHT, log: false };
    let y_axis = Axis { from: least / 1.05, to: most * 1.05, low: BOTTOM, high: TOP, log: true };
    paint(BOTTOM + 62, |area| {
        titles(area, &format!("{}: seconds against cache size", cut(name)), headline)?;
        for tick in x_axis.ticks() {
            let x = x_axis.at(tick);
            area.draw(&PathElement::new(vec![(x, TOP), (x, BOTTOM)], FAINT))?;
            area.draw(&Text::new(number(tick), (x, BOTTOM + 6), text(12, &INK, HPos::Center, VPos::Top)))?;
        }
        for tick in y_axis.ticks() {
            let y = y_axis.at(tick);
            area.draw(&PathElement::new(vec![(LEFT, y), (RIGHT, y)], FAINT))?;
            area.draw(&Text::new(number(tick), (LEFT - 6, y), text(12, &INK, HPos::Right, VPos::Center)))?;
        }
        let across = "all workers' caches, as a fraction of the dataset";
        area.draw(&Text::new(
            across,
            ((LEFT + RIGHT) / 2, BOTTOM + 32),
            text(13, &INK, HPos::Center, VPos::Top),
        ))?;
        area.draw(&Text::new(
            "seconds (logarithmic)",
            (LEFT, TOP - 8),
            text(13, &INK, HPos::Left, VPos::Bottom),
        ))?;
        let at = |point: &(f64, f64)| (x_axis.at(point.0), y_axis.at(point.1));
        let bound_y = y_axis.at(bound);
        area.draw(&DashedPathElement::new(vec![(LEFT, bound_y), (RIGHT, bound_y)], 2, 4, BOUND))?;
        let mut labels = vec![(bound_y, Policy::LowerBound.name(), BOUND, true)];
        for (index, curve) in curves.iter().enumerate() {
            let Some(last) = curve.points.last() else { continue };
            // Counted from the end, so that foreread's own lines, which come last, are not dashed.
            let place = curves.len() - 1 - index;
            let (colour, dashed) = (LINES[place % LINES.len()], place >= LINES.len());
            let ours = matches!(curve.policy, Policy::Foreread | Policy::ForereadLocality);
            let style = ShapeStyle::from(&colour).stroke_width(if ours { 3 } else { 2 });
            let line: Vec<_> = curve.points.iter().map(at).collect();
            if dashed {
                area.draw(&DashedPathElement::new(line.clone(), 7, 4, style))?;
            } else {
                area.draw(&PathElement::new(line.clone(), style))?;
            }
            if curve.policy.has_cache() {
                for point in line {
                    area.draw(&Circle::new(point, 3, colour.filled()))?;
                }
            }
            labels.push((y_axis.at(last.1), curve.policy.name(), colour, dashed));
        }
        area.draw(&PathElement::new(vec![(LEFT, TOP), (LEFT, BOTTOM), (RIGHT, BOTTOM)], INK))?;
        label_lines(area, RIGHT, TOP, BOTTOM, labels)
    })
}

/// Draws names at the right ends of lines, spaced apart.
fn label_lines(
    area: &Area<'_>,
    right: i32,
    top: i32,
    bottom: i32,
    mut labels: Vec<(i32, &str, RGBColor, bool)>,
) -> Result<()> {
    const APART: i32 = 18;
    labels.sort_by_key(|&(y, ..)| y);
    let mut places: Vec<i32> = Vec::with_capacity(labels.len());
    for (y, ..) in &labels {
        places.push(places.last().map_or(top, |last| last + APART).max(*y));
    }
    // Labels that were pushed below the plot's end are pushed back up.
    let mut lowest = bottom;
    for place in places.iter_mut().rev() {
        *place = (*place).min(lowest);
        lowest = *place - APART;
    }
    for ((y, name, colour, dashed), place) in labels.into_iter().zip(places) {
        area.draw(&PathElement::new(vec![(right + 4, y), (right + 22, place)], FAINT))?;
        let key = vec![(right + 24, place), (right + 46, place)];
        let style = ShapeStyle::from(&colour).stroke_width(2);
        if dashed {
            area.draw(&DashedPathElement::new(key, 4, 3, style))?;
        } else {
            area.draw(&PathElement::new(key, style))?;
        }
        area.draw(&Text::new(name, (right + 52, place), text(13, &INK, HPos::Left, VPos::Center)))?;
    }
    Ok(())
}

/// Draws a plot of this height on white.
fn paint(height: i32, draw: impl FnOnce(&Area<'_>) -> Result<()>) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH as u32, height as u32)).into_drawing_area();
        let white = Rectangle::new([(0, 0), (WIDTH, height)], RGBColor(255, 255, 255).filled());
        area.draw(&white)?;
        draw(&area)?;
        area.present()?;
    }
    Ok(svg)
}

fn titles(area: &Area<'_>, title: &str, below: &str) -> Result<()> {
    let bold = ("sans-serif", 18, FontStyle::Bold, &INK).into_text_style(area);
    area.draw(&Text::new(title.to_owned(), (24, 18), bold))?;
    area.draw(&Text::new(below.to_owned(), (24, 44), text(13, &INK, HPos::Left, VPos::Top)))?;
    Ok(())
}

fn text(size: i32, colour: &'static RGBColor, across: HPos, down: VPos) -> TextStyle<'static> {
    TextStyle::from(("sans-serif", size)).color(colour).pos(Pos::new(across, down))
}

/// A scenario's name, short enough for a title.
fn cut(name: &str) -> String {
    const MOST: usize = 60;
    let short: String = name.chars().filter(|c| !c.is_control()).take(MOST).collect();
    if name.chars().count() > MOST { format!("{short}...") } else { short }
}

/// The label of a bar.
fn value_of(seconds: f64) -> String {
    if seconds >= 1000.0 { format!("{seconds:.0} s") } else { format!("{seconds:.2} s") }
}

/// A tick's value without trailing zeros.
fn number(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Values to pixels.
struct Axis {
    from: f64,
    to: f64,
    low: i32,
    high: i32,
    log: bool,
}

impl Axis {
    fn at(&self, value: f64) -> i32 {
        let share = if self.log {
            (value / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        self.low + (share * f64::from(self.high - self.low)).round() as i32
    }

    /// Values that are 1, 2 or 5 times a power of ten, or have such distances. There are two to
    /// twelve of them.
    fn ticks(&self) -> Vec<f64> {
        if self.log && self.to / self.from > 5.0 {
            let lowest = self.from.log10().floor() as i32;
            let highest = self.to.log10().ceil() as i32;
            let all =
                (lowest..=highest).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)));
            return all.filter(|tick| (self.from..=self.to).contains(tick)).collect();
        }
        let rough = (self.to - self.from) / 8.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power).into_iter().find(|&step| step >= rough);
        let step = step.unwrap_or(10.0 * power);
        let first = (self.from / step).ceil() as i64;
        let last = (self.to / step).floor() as i64;
        (first..=last).map(|tick| tick as f64 * step).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        let axis = |from, to, log| Axis { from, to, low: 0, high: 100, log };
        assert_eq!(axis(0.0, 2.0, false).ticks(), [0.0, 0.5, 1.0, 1.5, 2.0]);
        assert_eq!(axis(7.0, 31.0, false).ticks(), [10.0, 15.0, 20.0, 25.0, 30.0]);
        assert_eq!(axis(7.0, 31.0, true).ticks(), [10.0, 15.0, 20.0, 25.0, 30.0]);
        assert_eq!(axis(3.0, 300.0, true).ticks(), [5.0, 10.0, 20.0, 50.0, 100.0, 200.0]);
        assert_eq!((axis(1.0, 100.0, true).at(10.0), axis(0.0, 10.0, false).at(5.0)), (50, 50));
    }

    #[test]
    fn numbers_have_no_trailing_zeros() {
        assert_eq!([0.25, 10.0, 0.1 + 0.2, 0.0].map(number), ["0.25", "10", "0.3", "0"]);
    }

    #[test]
    fn scenario_name_is_escaped_in_a_plot() -> Result<()> {
        let svg = bars("<script> & \"quotes\"\n", "line", &[])?;
        assert!(!svg.contains("<script>"), "{svg}");
        Ok(())
    }
}
