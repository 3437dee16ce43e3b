//! The plot: one column per run, with requests in flight, delivered samples and stalls of the
//! trainer.

use std::error::Error;
use std::ops::Range;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::scenarios::ScenarioRun;

const WIDTH: u32 = 1600;
const HEIGHT: u32 = 820;
/// Steps per point of a line: 50 ms for requests in flight, 250 ms for batches.
const FINE: usize = 5;
const COARSE: usize = 25;

const LIMIT: RGBColor = RGBColor(0xd9, 0x5f, 0x02);
const MEASURED: RGBColor = RGBColor(0x1b, 0x6c, 0xa8);
const POSSIBLE: RGBColor = RGBColor(0x88, 0x88, 0x88);
const STALL: RGBColor = RGBColor(0xb2, 0x18, 0x2b);

/// A line of a panel.
struct PlotLine {
    name: &'static str,
    color: RGBColor,
    points: Vec<(f64, f64)>,
}

/// Draws all runs into one file.
pub fn draw(path: &Path, scenarios: &[ScenarioRun]) -> Result<()> {
    panels(path, scenarios).map_err(|error| anyhow!("{error}"))
}

fn panels(path: &Path, scenarios: &[ScenarioRun]) -> Result<(), Box<dyn Error>> {
    let root = SVGBackend::new(path, (WIDTH, HEIGHT)).into_drawing_area();
    root.fill(&WHITE)?;
    for (scenario, column) in scenarios.iter().zip(root.split_evenly((1, scenarios.len()))) {
        let rows = column.split_evenly((3, 1));
        let [in_flight, delivered, waited] = rows.as_slice() else { continue };
        let end = scenario.run.decisions.len() as f64 * scenario.run.step.as_secs_f64();
        panel(in_flight, scenario.title, "requests", 0.0..end, &in_flight_lines(scenario))?;
        panel(delivered, "", "samples/s", 0.0..end, &delivered_lines(scenario))?;
        panel(waited, "", "% of time stalled", 0.0..end, &stalled_lines(scenario))?;
    }
    root.present()?;
    Ok(())
}

/// `value` of each `few` steps, over time in seconds.
fn over_time(scenario: &ScenarioRun, few: usize, value: impl Fn(Range<usize>) -> f64) -> Vec<(f64, f64)> {
    let step = scenario.run.step.as_secs_f64();
    let all = scenario.run.steps(0.0, f64::from(u16::MAX));
    let points = all.step_by(few).map(|from| (from, (from + few).min(scenario.run.decisions.len())));
    points.map(|(from, to)| (to as f64 * step, value(from..to))).collect()
}

fn in_flight_lines(scenario: &ScenarioRun) -> Vec<PlotLine> {
    let decisions = &scenario.run.decisions;
    let mean = |steps: Range<usize>, of: &dyn Fn(usize) -> f64| {
        let count = steps.len().max(1) as f64;
        steps.map(of).sum::<f64>() / count
    };
    let limit = over_time(scenario, FINE, |steps| mean(steps, &|step| decisions[step].limit as f64));
    let in_flight = over_time(scenario, FINE, |steps| mean(steps, &|step| decisions[step].in_flight as f64));
    vec![
        PlotLine { name: "limit", color: LIMIT, points: limit },
        PlotLine { name: "in flight", color: MEASURED, points: in_flight },
    ]
}

fn delivered_lines(scenario: &ScenarioRun) -> Vec<PlotLine> {
    let trainer_steps = &scenario.run.fared.course;
    let step = scenario.run.step.as_secs_f64();
    let rate = over_time(scenario, COARSE, |steps| {
        let time = steps.len() as f64 * step;
        let taken: u64 = steps.filter_map(|step| trainer_steps.get(step)).map(|step| step.taken).sum();
        taken as f64 / time
    });
    vec![
        PlotLine { name: "possible", color: POSSIBLE, points: scenario.possible.clone() },
        PlotLine { name: "delivered", color: MEASURED, points: rate },
    ]
}

fn stalled_lines(scenario: &ScenarioRun) -> Vec<PlotLine> {
    let trainer_steps = &scenario.run.fared.course;
    let step = scenario.run.step.as_secs_f64();
    let share = over_time(scenario, COARSE, |steps| {
        let time = steps.len() as f64 * step;
        let waited: f64 =
            steps.filter_map(|step| trainer_steps.get(step)).map(|step| step.stalled.as_secs_f64()).sum();
        // A stall is recorded when it ends, so it may be longer than the steps of its record.
        (100.0 * waited / time).min(100.0)
    });
    vec![PlotLine { name: "stalled", color: STALL, points: share }]
}

fn panel(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    title: &str,
    unit: &str,
    time: Range<f64>,
    lines: &[PlotLine],
) -> Result<(), Box<dyn Error>> {
    let points = lines.iter().flat_map(|line| &line.points);
    let highest = points.map(|(_, value)| *value).fold(1.0, f64::max);
    let mut builder = ChartBuilder::on(area);
    builder.margin(8).margin_right(14).x_label_area_size(34).y_label_area_size(62);
    if !title.is_empty() {
        builder.caption(title, ("sans-serif", 17));
    }
    let mut chart = builder.build_cartesian_2d(time, 0.0..highest * 1.4)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.08))
        .x_labels(8)
        .y_labels(6)
        .x_label_formatter(&|seconds| format!("{seconds:.0}"))
        .y_label_formatter(&|value| format!("{value:.0}"))
        .x_desc("seconds")
        .y_desc(unit)
        .axis_desc_style(("sans-serif", 13))
        .label_style(("sans-serif", 12))
        .draw()?;
    for line in lines {
        let style = line.color.stroke_width(2);
        chart
            .draw_series(LineSeries::new(line.points.iter().copied(), style))?
            .label(line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.2))
        .label_font(("sans-serif", 12))
        .draw()?;
    Ok(())
}
