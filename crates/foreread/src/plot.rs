//! The plot of a run: converts its report and history to the numbers that `foreread-plot` draws.

use foreread_loader::{History, HistorySlot, ReadSource};
use foreread_open::size::ByteSize;
use foreread_plot::{Epoch, PlotError, RunPlot, Slot, Tier};

use crate::report::Report;

impl Report {
    /// The run as a plot, in SVG: delivered bytes per second by source, and stalls, over time.
    /// `title` is usually the dataset's URL, `history` is that of the same loader.
    ///
    /// # Errors
    /// If the plot cannot be drawn.
    pub fn plot(&self, title: &str, history: &History) -> Result<String, PlotError> {
        numbers(title, self, history).svg()
    }
}

fn numbers(title: &str, report: &Report, history: &History) -> RunPlot {
    let ranks = match report.world_size {
        1 => String::new(),
        ranks => format!("rank {} of {ranks}: ", report.rank),
    };
    let bytes = ByteSize;
    RunPlot {
        title: title.to_owned(),
        notes: vec![
            format!("{} samples, {}", report.samples, bytes(report.dataset_bytes)),
            format!(
                "{ranks}read from storage: {} in {} requests; lower bound{}: {}",
                bytes(report.origin_bytes),
                report.origin_requests,
                if report.world_size == 1 { "" } else { " of all ranks" },
                bytes(report.floor_origin_bytes)
            ),
        ],
        slot_seconds: history.slot().as_secs_f64(),
        seconds: history.end().as_secs_f64(),
        slots: history.slots().iter().map(|part| slot(part, report.agent.is_some())).collect(),
        epochs: history
            .epochs()
            .iter()
            .map(|start| Epoch { number: start.epoch, at: start.at.as_secs_f64() })
            .collect(),
    }
}

/// `is_shared`: the apparent storage is a cache that other processes use, too.
fn slot(slot: &HistorySlot, is_shared: bool) -> Slot {
    let bytes = Tier::ALL.map(|tier| match tier {
        Tier::Storage if is_shared => 0,
        Tier::Shared if !is_shared => 0,
        Tier::Storage | Tier::Shared => slot.bytes(ReadSource::Origin),
        Tier::Disk => slot.bytes(ReadSource::Disk),
        Tier::Memory => slot.bytes(ReadSource::Memory),
    });
    Slot { bytes, stalled_seconds: slot.stall().as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use crate::{Jump, Loader, Memory};

    #[test]
    fn plot_has_the_report_in_its_title() {
        let directory = tempfile::tempdir().unwrap();
        for index in 0..20 {
            std::fs::write(directory.path().join(format!("{index:02}")), vec![index; 1000]).unwrap();
        }
        let path = directory.path().to_str().unwrap();
        let builder = Loader::builder(path).batch_size(2).epochs(2).memory(Memory::Bytes(1 << 20));
        let mut loader = builder.start().unwrap();
        assert_eq!(loader.batches().count(), 20);
        // The plot is of the whole run, with the time before a jump.
        loader.jump(&Jump::Epoch(1)).unwrap();
        assert_eq!(loader.batches().count(), 10);
        let history = loader.history();
        let report = loader.close().unwrap();
        let svg = report.plot(path, &history).unwrap();
        for text in [path, "20 samples, 19.5 KiB", "read from storage: 19.5 KiB in 20 requests"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        let delivered: u64 = report.epochs.iter().map(|epoch| epoch.bytes).sum();
        let sources = crate::report::ReadSource::ALL;
        let drawn = history.slots().iter().map(|slot| sources.map(|it| slot.bytes(it)).iter().sum::<u64>());
        assert_eq!((drawn.sum::<u64>(), delivered), (60_000, 60_000));
        let starts: Vec<u64> = history.epochs().iter().map(|start| start.epoch).collect();
        assert_eq!(starts, [0, 1, 1]);
    }
}
