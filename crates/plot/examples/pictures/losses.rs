//! The losses of a training on several numbers of ranks.

use foreread_plot::colours::{FAINT, INK, LINES};
use foreread_plot::{Across, Axis, Down, number, paint};

use crate::Result;

const WIDTH: i32 = 720;
const HEIGHT: i32 = 420;
const LEFT: i32 = 66;
const RIGHT: i32 = WIDTH - 24;
const TOP: i32 = 104;
const BOTTOM: i32 = HEIGHT - 62;

/// The picture, from a table of steps with one column per number of ranks.
pub fn svg(table: &str) -> Result<String> {
    let mut lines = table.lines();
    let ranks: Vec<&str> = lines.next().ok_or("the table is empty")?.split(',').skip(1).collect();
    let rows: Vec<Vec<f64>> = lines
        .map(|line| line.split(',').skip(1).map(str::parse).collect::<std::result::Result<_, _>>())
        .collect::<std::result::Result<_, _>>()?;
    let most = rows.iter().flatten().copied().fold(0.0, f64::max);
    let spread = |row: &Vec<f64>| {
        row.iter().copied().fold(f64::MIN, f64::max) - row.iter().copied().fold(f64::MAX, f64::min)
    };
    let apart = rows.iter().map(spread).fold(0.0, f64::max);
    let steps = Axis::from_zero(rows.len() as f64, LEFT, RIGHT);
    let losses = Axis::from_zero(most * 1.05, BOTTOM, TOP);
    let svg = paint((WIDTH, HEIGHT), |canvas| {
        canvas.bold("One training on 1, 2, 4 and 8 ranks: the losses are the same", (24, 16), 18)?;
        let note =
            format!("Equal global batches. Losses of a step differ by at most {apart:.1e} (rounding).");
        canvas.text(&note, (24, 44), 15, INK, (Across::Left, Down::Top))?;
        for tick in steps.ticks() {
            let x = steps.at(tick);
            canvas.line(vec![(x, TOP), (x, BOTTOM)], FAINT, 1)?;
            canvas.text(&number(tick), (x, BOTTOM + 6), 14, INK, (Across::Middle, Down::Top))?;
        }
        for tick in losses.ticks_in(5.0) {
            let y = losses.at(tick);
            canvas.line(vec![(LEFT, y), (RIGHT, y)], FAINT, 1)?;
            canvas.text(&number(tick), (LEFT - 8, y), 14, INK, (Across::Right, Down::Middle))?;
        }
        canvas.text("training loss", (24, TOP - 12), 15, INK, (Across::Left, Down::Bottom))?;
        let middle = ((LEFT + RIGHT) / 2, BOTTOM + 30);
        canvas.text("step", middle, 15, INK, (Across::Middle, Down::Top))?;
        // The lower lines are wider, so that each is seen below the next.
        for (column, name) in ranks.iter().enumerate() {
            let width = 2 + 4 * (ranks.len() - 1 - column) as u32;
            let points: Vec<(i32, i32)> = (0..)
                .zip(&rows)
                .map(|(step, row)| (steps.at(f64::from(step)), losses.at(row[column])))
                .collect();
            canvas.line(points, COLOURS[column % COLOURS.len()], width)?;
            let y = TOP + 24 + 26 * column as i32;
            let key = vec![(RIGHT - 150, y), (RIGHT - 110, y)];
            canvas.line(key, COLOURS[column % COLOURS.len()], width)?;
            let ranks = if *name == "1" { "rank" } else { "ranks" };
            let at = (RIGHT - 98, y);
            canvas.text(&format!("{name} {ranks}"), at, 15, INK, (Across::Left, Down::Middle))?;
        }
        canvas.line(vec![(LEFT, TOP), (LEFT, BOTTOM), (RIGHT, BOTTOM)], INK, 1)
    })?;
    Ok(svg)
}

/// From the widest line to the narrowest: light to dark.
const COLOURS: [foreread_plot::Colour; 4] = [LINES[5], LINES[4], LINES[2], foreread_plot::Colour(0, 0, 0)];
