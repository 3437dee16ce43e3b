//! The plots of a comparison, as SVG.
//!
//! Names come from a scenario file and have any length. They are cut, and the canvas escapes them.

use foreread_plot::colours::{BOUND, FAINT, INK, LINES, LOCAL, ORIGIN, PEERS, STALL};
use foreread_plot::{Across, Axis, Canvas, Colour, Down, Result, number, paint};

use crate::{Policy, SimulationOutcome, Sweep};

const WIDTH: i32 = 960;

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
    let axis = Axis::from_zero(most, LEFT, RIGHT);
    paint((WIDTH, bottom + 62), |canvas| {
        titles(canvas, &format!("{}: seconds by policy", cut(name)), headline)?;
        let legend = [
            ("initial stall", STALL),
            ("from the origin", ORIGIN),
            ("from other workers", PEERS),
            ("from this worker's caches", LOCAL),
        ];
        let mut x = LEFT;
        for (label, colour) in legend {
            canvas.rectangle((x, 76), (x + 14, 90), colour)?;
            canvas.text(label, (x + 20, 83), 13, INK, (Across::Left, Down::Middle))?;
            x += 42 + 7 * label.len() as i32;
        }
        for tick in axis.ticks() {
            let x = axis.at(tick);
            canvas.line(vec![(x, TOP), (x, bottom)], FAINT, 1)?;
            canvas.text(&number(tick), (x, bottom + 6), 12, INK, (Across::Middle, Down::Top))?;
        }
        let label =
            "seconds (without the initial stall, split by the share of accesses that each source served)";
        canvas.text(label, ((LEFT + RIGHT) / 2, bottom + 32), 13, INK, (Across::Middle, Down::Top))?;
        for (row, outcome) in outcomes.iter().enumerate() {
            let y = TOP + ROW * row as i32;
            let middle = y + ROW / 2;
            let name = outcome.policy.name();
            canvas.text(name, (LEFT - 8, middle), 13, INK, (Across::Right, Down::Middle))?;
            let Some(f) = outcome.figures else {
                canvas.text("refused", (LEFT + 6, middle), 12, STALL, (Across::Left, Down::Middle))?;
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
                    canvas.rectangle(corners[0], corners[1], colour)?;
                }
                from += length;
            }
            let end = axis.at(f.seconds);
            if served == 0.0 {
                // The lower bound reads nothing.
                canvas.outline((LEFT, y + 5), (end, y + ROW - 5), BOUND)?;
            }
            let value = value_of(f.seconds);
            canvas.text(&value, (end + 6, middle), 12, INK, (Across::Left, Down::Middle))?;
        }
        let bound = outcomes.iter().find(|outcome| outcome.policy == Policy::LowerBound).and_then(seconds);
        if let Some(bound) = bound {
            let x = axis.at(bound);
            canvas.dashed(vec![(x, TOP - 4), (x, bottom)], (4, 4), BOUND, 1)?;
        }
        canvas.line(vec![(LEFT, TOP), (LEFT, bottom), (RIGHT, bottom)], INK, 1)?;
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
    paint((WIDTH, BOTTOM + 62), |canvas| {
        titles(canvas, &format!("{}: seconds against cache size", cut(name)), headline)?;
        for tick in x_axis.ticks() {
            let x = x_axis.at(tick);
            canvas.line(vec![(x, TOP), (x, BOTTOM)], FAINT, 1)?;
            canvas.text(&number(tick), (x, BOTTOM + 6), 12, INK, (Across::Middle, Down::Top))?;
        }
        for tick in y_axis.ticks() {
            let y = y_axis.at(tick);
            canvas.line(vec![(LEFT, y), (RIGHT, y)], FAINT, 1)?;
            canvas.text(&number(tick), (LEFT - 6, y), 12, INK, (Across::Right, Down::Middle))?;
        }
        let across = "all workers' caches, as a fraction of the dataset";
        canvas.text(across, ((LEFT + RIGHT) / 2, BOTTOM + 32), 13, INK, (Across::Middle, Down::Top))?;
        canvas.text("seconds (logarithmic)", (LEFT, TOP - 8), 13, INK, (Across::Left, Down::Bottom))?;
        let at = |point: &(f64, f64)| (x_axis.at(point.0), y_axis.at(point.1));
        let bound_y = y_axis.at(bound);
        canvas.dashed(vec![(LEFT, bound_y), (RIGHT, bound_y)], (2, 4), BOUND, 1)?;
        let mut labels = vec![(bound_y, Policy::LowerBound.name(), BOUND, true)];
        for (index, curve) in curves.iter().enumerate() {
            let Some(last) = curve.points.last() else { continue };
            // Counted from the end, so that foreread's own lines, which come last, are not dashed.
            let place = curves.len() - 1 - index;
            let (colour, dashed) = (LINES[place % LINES.len()], place >= LINES.len());
            let ours = matches!(curve.policy, Policy::Foreread | Policy::ForereadLocality);
            let width = if ours { 3 } else { 2 };
            let line: Vec<_> = curve.points.iter().map(at).collect();
            if dashed {
                canvas.dashed(line.clone(), (7, 4), colour, width)?;
            } else {
                canvas.line(line.clone(), colour, width)?;
            }
            if curve.policy.has_cache() {
                for point in line {
                    canvas.dot(point, 3, colour)?;
                }
            }
            labels.push((y_axis.at(last.1), curve.policy.name(), colour, dashed));
        }
        canvas.line(vec![(LEFT, TOP), (LEFT, BOTTOM), (RIGHT, BOTTOM)], INK, 1)?;
        label_lines(canvas, RIGHT, TOP, BOTTOM, labels)
    })
}

/// Draws names at the right ends of lines, spaced apart.
fn label_lines(
    canvas: &Canvas<'_>,
    right: i32,
    top: i32,
    bottom: i32,
    mut labels: Vec<(i32, &str, Colour, bool)>,
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
        canvas.line(vec![(right + 4, y), (right + 22, place)], FAINT, 1)?;
        let key = vec![(right + 24, place), (right + 46, place)];
        if dashed {
            canvas.dashed(key, (4, 3), colour, 2)?;
        } else {
            canvas.line(key, colour, 2)?;
        }
        canvas.text(name, (right + 52, place), 13, INK, (Across::Left, Down::Middle))?;
    }
    Ok(())
}

fn titles(canvas: &Canvas<'_>, title: &str, below: &str) -> Result<()> {
    canvas.bold(title, (24, 18), 18)?;
    canvas.text(below, (24, 44), 13, INK, (Across::Left, Down::Top))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenario_name_is_escaped_in_a_plot() -> Result<()> {
        let svg = bars("<script> & \"quotes\"\n", "line", &[])?;
        assert!(!svg.contains("<script>"), "{svg}");
        Ok(())
    }
}
