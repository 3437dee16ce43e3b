//! Timelines: when a trainer computes and when it waits, one row per run.

use crate::colours::{FAINT, INK, LOCAL, STALL, WHITE};
use crate::{Across, Axis, Canvas, Down, Result, number, paint};

const WIDTH: i32 = 720;
const LEFT: i32 = 24;
const RIGHT: i32 = WIDTH - 24;
const TOP: i32 = 108;
const ROW: i32 = 58;
/// From the top of a row to its bar, whose name is above.
const NAME: i32 = 22;
const BAR: i32 = 26;

/// A trainer's run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TimelineRow {
    /// The name above the bar.
    pub name: String,
    /// The spans in which the trainer computes, from and to, in order, in seconds since the start.
    pub busy: Vec<(f64, f64)>,
    /// The end of each epoch. The last one ends the bar.
    pub epoch_ends: Vec<f64>,
}

impl TimelineRow {
    fn seconds(&self) -> f64 {
        self.epoch_ends.last().copied().unwrap_or_default()
    }

    fn busy_share(&self) -> f64 {
        let busy: f64 = self.busy.iter().map(|(from, to)| to - from).sum();
        if self.seconds() > 0.0 { busy / self.seconds() } else { 0.0 }
    }
}

/// Runs, one below the other, on one axis of seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// The title.
    pub title: String,
    /// The line below it.
    pub note: String,
    /// The runs from above.
    pub rows: Vec<TimelineRow>,
}

impl Timeline {
    /// The timeline as SVG.
    ///
    /// # Errors
    /// If it cannot be drawn.
    pub fn svg(&self) -> Result<String> {
        let bottom = TOP + ROW * self.rows.len() as i32;
        let most = self.rows.iter().map(TimelineRow::seconds).fold(0.0, f64::max);
        let time = Axis::from_zero(most, LEFT, RIGHT);
        paint((WIDTH, bottom + 58), |canvas| {
            canvas.bold(&self.title, (LEFT, 16), 18)?;
            canvas.text(&self.note, (LEFT, 44), 15, INK, (Across::Left, Down::Top))?;
            let legend = [(LEFT, "computing", LOCAL), (LEFT + 130, "waiting for data", STALL)];
            for (x, label, colour) in legend {
                canvas.rectangle((x, 74), (x + 16, 90), colour)?;
                canvas.text(label, (x + 24, 82), 15, INK, (Across::Left, Down::Middle))?;
            }
            canvas.dashed(vec![(LEFT + 306, 72), (LEFT + 306, 92)], (3, 2), INK, 2)?;
            canvas.text("end of an epoch", (LEFT + 316, 82), 15, INK, (Across::Left, Down::Middle))?;
            for tick in time.ticks() {
                let x = time.at(tick);
                canvas.line(vec![(x, TOP), (x, bottom + 4)], FAINT, 1)?;
                canvas.text(&number(tick), (x, bottom + 10), 14, INK, (Across::Middle, Down::Top))?;
            }
            let middle = ((LEFT + RIGHT) / 2, bottom + 32);
            canvas.text("seconds", middle, 15, INK, (Across::Middle, Down::Top))?;
            let tops = (TOP..).step_by(ROW as usize);
            self.rows.iter().zip(tops).try_for_each(|(row, top)| draw(canvas, row, top, time))
        })
    }
}

fn draw(canvas: &Canvas<'_>, row: &TimelineRow, top: i32, time: Axis) -> Result<()> {
    let (above, below) = (top + NAME, top + NAME + BAR);
    let label = format!(
        "{}: {:.1} s, computing {:.0} % of the time",
        row.name,
        row.seconds(),
        100.0 * row.busy_share()
    );
    canvas.rectangle((LEFT, top + 1), (LEFT + 8 * label.chars().count() as i32, above), WHITE)?;
    canvas.text(&label, (LEFT, top + NAME / 2 + 1), 15, INK, (Across::Left, Down::Middle))?;
    canvas.rectangle((LEFT, above), (time.at(row.seconds()), below), STALL)?;
    for (from, to) in joined(row, time) {
        canvas.rectangle((from, above), (to, below), LOCAL)?;
    }
    for end in &row.epoch_ends {
        let x = time.at(*end);
        canvas.dashed(vec![(x, above - 2), (x, below + 2)], (3, 2), INK, 2)?;
    }
    Ok(())
}

/// The busy spans in pixels. Spans without a pixel between them are one.
fn joined(row: &TimelineRow, time: Axis) -> Vec<(i32, i32)> {
    let mut spans: Vec<(i32, i32)> = Vec::new();
    for (from, to) in row.busy.iter().map(|(from, to)| (time.at(*from), time.at(*to))) {
        match spans.last_mut().filter(|last| last.1 >= from) {
            Some(last) => last.1 = to.max(last.1),
            None => spans.push((from, to)),
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, wait: f64) -> TimelineRow {
        let steps = (0..40).map(|step| f64::from(step) * (1.0 + wait));
        let busy: Vec<(f64, f64)> = steps.map(|from| (from + wait, from + wait + 1.0)).collect();
        TimelineRow { name: name.to_owned(), epoch_ends: vec![busy[19].1, busy[39].1], busy }
    }

    #[test]
    fn timeline_has_rows_shares_and_axis() {
        let rows = vec![row("a <slow> loader", 3.0), row("a fast one", 0.0)];
        let timeline = Timeline { title: "title".to_owned(), note: "note".to_owned(), rows };
        let svg = timeline.svg().unwrap();
        for text in [
            "a &lt;slow&gt; loader: 160.0 s, computing 25 % of the time",
            "a fast one: 40.0 s, computing 100 % of the time",
            "seconds",
        ] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(!svg.contains("NaN") && svg.trim_end().ends_with("</svg>"), "{svg}");
        assert!(Timeline::default().svg().unwrap().contains("seconds"));
    }

    #[test]
    fn spans_without_a_gap_are_one() {
        let axis = Axis::from_zero(160.0, 0, 1600);
        assert_eq!(joined(&row("slow", 3.0), axis).len(), 40);
        assert_eq!(joined(&row("fast", 0.0), axis), [(0, 400)]);
    }
}
