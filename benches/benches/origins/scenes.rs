//! The runs that are drawn: a start, changes in the middle, a trainer that is slow itself.

use std::time::Duration;

use foreread_benches::table::{Asked, Figure};
use foreread_tier_testing::{Cell, FakeOrigin};

use crate::course::Course;
use crate::seconds;

/// Between these moments the origin is another.
const CHANGE: (f64, f64) = (4.0, 9.0);
/// How long a change may take to be followed.
const FOLLOWED: f64 = 2.0;
const END: f64 = 14.0;

/// A run to be played.
pub struct Scene {
    title: &'static str,
    usual: Cell,
    /// What the origin is in the middle.
    other: Option<Cell>,
    /// What the trainer computes on a batch.
    compute: Duration,
}

/// A run that was played.
pub struct Played {
    pub title: &'static str,
    /// Samples a second that were possible, by time.
    pub possible: Vec<(f64, f64)>,
    pub course: Course,
    usual: Cell,
    other: Option<Cell>,
    compute: Duration,
}

/// Those of the plot.
pub fn all() -> Vec<Scene> {
    let greedy = Cell::greedy();
    let changes = |title, usual, other| Scene { title, usual, other: Some(other), compute: greedy };
    vec![
        changes("latency 10 ms, tenfold for 5 s", Cell::new(10, 64, None), Cell::new(100, 64, None)),
        changes("400 MB/s, a tenth for 5 s", Cell::new(10, 1024, Some(400)), Cell::new(10, 1024, Some(40))),
        changes(
            "1,024 at once, latency tenfold for 5 s",
            Cell::new(10, 1024, None),
            Cell::new(100, 1024, None),
        ),
        Scene {
            title: "50 ms; 5 ms of computing a batch",
            usual: Cell::new(50, 1024, None),
            other: None,
            compute: Duration::from_millis(5),
        },
    ]
}

impl Scene {
    /// Plays it.
    pub async fn run(&self) -> Played {
        let origin = self.usual.origin();
        let mut now = self.usual;
        let course = Course::of(&origin, self.compute, END, |time| {
            let wanted = self.at(time);
            if wanted != now {
                change(&origin, wanted);
                now = wanted;
            }
        })
        .await;
        let trainer = Cell::BATCH as f64 / seconds(self.compute);
        let times = (0..=(END * 10.0) as usize).map(|tenth| tenth as f64 / 10.0);
        let possible = times.map(|time| (time, self.at(time).possible().min(trainer))).collect();
        Played {
            title: self.title,
            possible,
            course,
            usual: self.usual,
            other: self.other,
            compute: self.compute,
        }
    }

    fn at(&self, time: f64) -> Cell {
        match self.other {
            Some(other) if (CHANGE.0..CHANGE.1).contains(&time) => other,
            _ => self.usual,
        }
    }
}

fn change(origin: &FakeOrigin, cell: Cell) {
    origin.set_latency(cell.latency);
    origin.set_bandwidth(cell.bandwidth.unwrap_or(u64::MAX));
}

impl Played {
    /// What was asked of it, and what was found.
    pub fn figures(&self) -> Vec<Figure> {
        match self.other {
            Some(other) => self.followed(other),
            None => self.paced(),
        }
    }

    /// Each change is followed within two seconds.
    fn followed(&self, other: Cell) -> Vec<Figure> {
        let spans = [
            ("before", self.usual, 1.0, CHANGE.0),
            ("from two seconds after the change", other, CHANGE.0 + FOLLOWED, CHANGE.1),
            ("from two seconds after the change back", self.usual, CHANGE.1 + FOLLOWED, END),
        ];
        let share = |cell: Cell, from: f64, to: f64| {
            (self.course.rate(from, to) + Cell::BATCH as f64 / (to - from)) / cell.possible()
        };
        let row = |(when, cell, from, to)| {
            let what = format!("{}: of what is possible, {when}", self.title);
            Figure::new(what, Asked::AtLeast(0.95), share(cell, from, to), "")
        };
        spans.map(row).into()
    }

    /// A trainer that is slower than the origin waits no more, and no more is under way than it needs.
    fn paced(&self) -> Vec<Figure> {
        let needed = Cell::BATCH as f64 / seconds(self.compute) * seconds(self.usual.latency);
        let fared = &self.course.fared;
        vec![
            Figure::new(
                format!("{}: stalls after the first batch", self.title),
                Asked::Nothing,
                seconds(fared.stalled) * 1000.0,
                "ms",
            )
            .note("all within the first 0.3 s: a batch under way at first, and its latency to learn by"),
            Figure::new(
                format!("{}: stalls after 0.3 s", self.title),
                Asked::AtMost(0.0),
                self.course.stalled(0.3, END) * 1000.0,
                "ms",
            ),
            Figure::new(
                format!("{}: requests under way, of those needed", self.title),
                Asked::AtMost(1.05),
                self.course.in_flight(2.0, END) / needed,
                "",
            )
            .note(format!("{needed:.0} are needed")),
        ]
    }
}
