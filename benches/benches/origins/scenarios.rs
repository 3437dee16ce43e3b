//! The plotted runs: origins that change during the run, and a slow trainer.

use std::time::Duration;

use foreread_benches::table::{Figure, Goal};
use foreread_tier_testing::{FakeOrigin, OriginModel};

use crate::seconds;
use crate::simulation::SimulatedRun;

/// Between these times the origin has other properties.
const CHANGE_PERIOD: (f64, f64) = (4.0, 9.0);
/// Seconds within which the limit must adapt to a change.
const ADAPTATION_TIME: f64 = 2.0;
const END: f64 = 14.0;

/// A scenario to simulate.
pub struct OriginScenario {
    title: &'static str,
    normal: OriginModel,
    /// The origin's properties between the two times.
    changed: Option<OriginModel>,
    /// The trainer's compute time per batch.
    compute: Duration,
}

/// A simulated scenario.
pub struct ScenarioRun {
    pub title: &'static str,
    /// Possible samples per second, by time.
    pub possible: Vec<(f64, f64)>,
    pub run: SimulatedRun,
    normal: OriginModel,
    changed: Option<OriginModel>,
    compute: Duration,
}

/// All scenarios of the plot.
pub fn all() -> Vec<OriginScenario> {
    let greedy = OriginModel::greedy();
    let changes =
        |title, normal, changed| OriginScenario { title, normal, changed: Some(changed), compute: greedy };
    vec![
        changes(
            "latency 10 ms, tenfold for 5 s",
            OriginModel::new(10, 64, None),
            OriginModel::new(100, 64, None),
        ),
        changes(
            "400 MB/s, a tenth for 5 s",
            OriginModel::new(10, 1024, Some(400)),
            OriginModel::new(10, 1024, Some(40)),
        ),
        changes(
            "parallelism 1,024, latency tenfold for 5 s",
            OriginModel::new(10, 1024, None),
            OriginModel::new(100, 1024, None),
        ),
        OriginScenario {
            title: "50 ms, 5 ms of compute per batch",
            normal: OriginModel::new(50, 1024, None),
            changed: None,
            compute: Duration::from_millis(5),
        },
    ]
}

impl OriginScenario {
    /// Simulates the scenario.
    pub async fn run(&self) -> ScenarioRun {
        let origin = self.normal.origin();
        let mut now = self.normal;
        let run = SimulatedRun::simulate(&origin, self.compute, END, |time| {
            let wanted = self.at(time);
            if wanted != now {
                change(&origin, wanted);
                now = wanted;
            }
        })
        .await;
        let trainer = OriginModel::BATCH as f64 / seconds(self.compute);
        let times = (0..=(END * 10.0) as usize).map(|tenth| tenth as f64 / 10.0);
        let possible = times.map(|time| (time, self.at(time).possible().min(trainer))).collect();
        ScenarioRun {
            title: self.title,
            possible,
            run,
            normal: self.normal,
            changed: self.changed,
            compute: self.compute,
        }
    }

    fn at(&self, time: f64) -> OriginModel {
        match self.changed {
            Some(changed) if (CHANGE_PERIOD.0..CHANGE_PERIOD.1).contains(&time) => changed,
            _ => self.normal,
        }
    }
}

fn change(origin: &FakeOrigin, cell: OriginModel) {
    origin.set_latency(cell.latency);
    origin.set_bandwidth(cell.bandwidth.unwrap_or(u64::MAX));
}

impl ScenarioRun {
    /// The figures of the scenario and their targets.
    pub fn figures(&self) -> Vec<Figure> {
        match self.changed {
            Some(changed) => self.change_figures(changed),
            None => self.stall_figures(),
        }
    }

    /// The limit adapts to each change within two seconds.
    fn change_figures(&self, changed: OriginModel) -> Vec<Figure> {
        let spans = [
            ("before", self.normal, 1.0, CHANGE_PERIOD.0),
            (
                "from two seconds after the change",
                changed,
                CHANGE_PERIOD.0 + ADAPTATION_TIME,
                CHANGE_PERIOD.1,
            ),
            ("from two seconds after the change back", self.normal, CHANGE_PERIOD.1 + ADAPTATION_TIME, END),
        ];
        let share = |cell: OriginModel, from: f64, to: f64| {
            (self.run.rate(from, to) + OriginModel::BATCH as f64 / (to - from)) / cell.possible()
        };
        let row = |(when, cell, from, to)| {
            let what = format!("{}: share of the possible rate, {when}", self.title);
            Figure::new(what, Goal::AtLeast(0.95), share(cell, from, to), "")
        };
        spans.map(row).into()
    }

    /// A trainer slower than the origin does not stall, and requests in flight do not exceed its
    /// need.
    fn stall_figures(&self) -> Vec<Figure> {
        let needed = OriginModel::BATCH as f64 / seconds(self.compute) * seconds(self.normal.latency);
        let fared = &self.run.fared;
        vec![
            Figure::new(
                format!("{}: stalls after the first batch", self.title),
                Goal::None,
                seconds(fared.stalled) * 1000.0,
                "ms",
            )
            .note("all within the first 0.3 s: a batch in flight at first, to measure the latency"),
            Figure::new(
                format!("{}: stalls after 0.3 s", self.title),
                Goal::AtMost(0.0),
                self.run.stalled(0.3, END) * 1000.0,
                "ms",
            ),
            Figure::new(
                format!("{}: requests in flight / needed", self.title),
                Goal::AtMost(1.05),
                self.run.in_flight(2.0, END) / needed,
                "",
            )
            .note(format!("{needed:.0} are needed")),
        ]
    }
}
