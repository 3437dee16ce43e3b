//! The plot of a run: delivered bytes per second by tier, and the stalls below, over time.

use crate::colours::{DISK, FAINT, INK, LOCAL, ORIGIN, PEERS, STALL};
use crate::{Across, Axis, Canvas, Colour, Down, Result, number, paint};

const WIDTH: i32 = 800;
const HEIGHT: i32 = 460;
const LEFT: i32 = 76;
const RIGHT: i32 = WIDTH - 24;
/// The panel of rates.
const TOP: i32 = 132;
const BOTTOM: i32 = 324;
/// The panel of stalls.
const STALL_TOP: i32 = 350;
const STALL_BOTTOM: i32 = 402;

/// The most columns in a panel. More would be narrower than six pixels.
const MAX_COLUMNS: usize = 116;

/// Pixels between two labels of epochs, at least.
const LABEL_WIDTH: i32 = 66;

/// A source of delivered samples, from the slowest to the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// The storage that has all samples.
    Storage,
    /// A local disk.
    Disk,
    /// The node's agent, or the cache that its ranks share.
    Shared,
    /// Memory.
    Memory,
}

impl Tier {
    /// All tiers, in the order of a stack from below.
    pub const ALL: [Self; 4] = [Self::Storage, Self::Disk, Self::Shared, Self::Memory];

    const fn name(self) -> &'static str {
        match self {
            Self::Storage => "storage",
            Self::Disk => "disk",
            Self::Shared => "shared cache",
            Self::Memory => "memory",
        }
    }

    const fn colour(self) -> Colour {
        match self {
            Self::Storage => ORIGIN,
            Self::Disk => DISK,
            Self::Shared => PEERS,
            Self::Memory => LOCAL,
        }
    }
}

/// A part of a run's time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slot {
    /// Delivered bytes, in the order of [`Tier::ALL`].
    pub bytes: [u64; 4],
    /// How long the trainer waited.
    pub stalled_seconds: f64,
}

/// The start of an epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Epoch {
    /// The epoch, from 0.
    pub number: u64,
    /// Seconds since the start of the run.
    pub at: f64,
}

/// A run in numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunPlot {
    /// The dataset. A long name is cut.
    pub title: String,
    /// Lines below it.
    pub notes: Vec<String>,
    /// The length of each slot.
    pub slot_seconds: f64,
    /// The end of the last slot.
    pub seconds: f64,
    /// The run's time from its start, in slots.
    pub slots: Vec<Slot>,
    /// Starts of epochs, in order.
    pub epochs: Vec<Epoch>,
}

impl RunPlot {
    /// The plot as SVG.
    ///
    /// # Errors
    /// If it cannot be drawn.
    pub fn svg(&self) -> Result<String> {
        let columns = self.columns();
        let time = Axis::from_zero(self.seconds, LEFT, RIGHT);
        paint((WIDTH, HEIGHT), |canvas| {
            canvas.bold(&shortened(&self.title, 70), (24, 16), 18)?;
            for (note, y) in self.notes.iter().zip((42..).step_by(20)).take(2) {
                canvas.text(note, (24, y), 14, INK, (Across::Left, Down::Top))?;
            }
            self.legend(canvas)?;
            for tick in time.ticks() {
                let x = time.at(tick);
                canvas.line(vec![(x, TOP), (x, BOTTOM)], FAINT, 1)?;
                canvas.line(vec![(x, STALL_TOP), (x, STALL_BOTTOM)], FAINT, 1)?;
                let label = (x, STALL_BOTTOM + 6);
                canvas.text(&number(tick), label, 13, INK, (Across::Middle, Down::Top))?;
            }
            let middle = ((LEFT + RIGHT) / 2, STALL_BOTTOM + 28);
            canvas.text("seconds", middle, 14, INK, (Across::Middle, Down::Top))?;
            rates(canvas, time, &columns)?;
            stalls(canvas, time, &columns)?;
            self.boundaries(canvas, time)?;
            for (top, bottom) in [(TOP, BOTTOM), (STALL_TOP, STALL_BOTTOM)] {
                canvas.line(vec![(LEFT, top), (LEFT, bottom), (RIGHT, bottom)], INK, 1)?;
            }
            Ok(())
        })
    }

    /// Slots in groups that are wide enough to be seen.
    fn columns(&self) -> Vec<Column> {
        let group = self.slots.len().div_ceil(MAX_COLUMNS).max(1);
        let slots = self.slots.chunks(group).enumerate();
        let columns = slots.map(|(index, slots)| {
            let from = (index * group) as f64 * self.slot_seconds;
            let to = (from + slots.len() as f64 * self.slot_seconds).min(self.seconds);
            let mut sum = Slot::default();
            for slot in slots {
                sum.bytes.iter_mut().zip(slot.bytes).for_each(|(sum, bytes)| *sum += bytes);
                sum.stalled_seconds += slot.stalled_seconds;
            }
            Column { from, to, sum }
        });
        columns.filter(|column| column.to > column.from).collect()
    }

    /// The tiers that have delivered bytes, and the stalled time.
    fn legend(&self, canvas: &Canvas<'_>) -> Result<()> {
        let stalled: f64 = self.slots.iter().map(|slot| slot.stalled_seconds).sum();
        let tiers = Tier::ALL.into_iter().enumerate().filter_map(|(index, tier)| {
            let bytes: u64 = self.slots.iter().map(|slot| slot.bytes[index]).sum();
            (bytes > 0).then(|| (format!("{} {}", tier.name(), quantity(bytes as f64)), tier.colour()))
        });
        let share = if self.seconds > 0.0 { 100.0 * stalled / self.seconds } else { 0.0 };
        let stall = (format!("stalled {stalled:.1} s ({share:.0} %)"), STALL);
        let mut x = LEFT;
        for (label, colour) in tiers.chain([stall]) {
            canvas.rectangle((x, 90), (x + 14, 104), colour)?;
            canvas.text(&label, (x + 20, 97), 14, INK, (Across::Left, Down::Middle))?;
            x += 44 + 7 * label.chars().count() as i32;
        }
        Ok(())
    }

    /// Lines at the starts of epochs. Labels stand right of them, at the right edge left of them.
    /// Labels that would overlap are left out.
    fn boundaries(&self, canvas: &Canvas<'_>, time: Axis) -> Result<()> {
        let mut free = LEFT - 1;
        for epoch in &self.epochs {
            let x = time.at(epoch.at);
            if x > LEFT {
                canvas.dashed(vec![(x, TOP - 4), (x, STALL_BOTTOM)], (4, 4), INK, 1)?;
            }
            let (from, at, across) = if x + LABEL_WIDTH <= RIGHT {
                (x, x + 2, Across::Left)
            } else {
                (x - LABEL_WIDTH, x - 2, Across::Right)
            };
            if from > free {
                let label = format!("epoch {}", epoch.number);
                canvas.text(&label, (at, TOP - 4), 13, INK, (across, Down::Bottom))?;
                free = from + LABEL_WIDTH;
            }
        }
        Ok(())
    }
}

/// Neighbouring slots.
struct Column {
    from: f64,
    to: f64,
    sum: Slot,
}

impl Column {
    fn rate(&self, bytes: u64) -> f64 {
        bytes as f64 / (self.to - self.from)
    }
}

/// The stacked areas of bytes per second.
fn rates(canvas: &Canvas<'_>, time: Axis, columns: &[Column]) -> Result<()> {
    let most = columns.iter().map(|column| column.rate(column.sum.bytes.iter().sum())).fold(0.0, f64::max);
    let (unit, name) = unit(most);
    let axis = Axis::from_zero(most / unit * 1.05, BOTTOM, TOP);
    for tick in axis.ticks_in(5.0) {
        let y = axis.at(tick);
        canvas.line(vec![(LEFT, y), (RIGHT, y)], FAINT, 1)?;
        canvas.text(&number(tick), (LEFT - 8, y), 13, INK, (Across::Right, Down::Middle))?;
    }
    canvas.text(&format!("{name}/s"), (LEFT - 8, TOP - 14), 14, INK, (Across::Right, Down::Middle))?;
    let mut below = vec![0.0; columns.len()];
    for (index, tier) in Tier::ALL.into_iter().enumerate() {
        if columns.iter().all(|column| column.sum.bytes[index] == 0) {
            continue;
        }
        let above: Vec<f64> = columns
            .iter()
            .zip(&below)
            .map(|(column, below)| below + column.rate(column.sum.bytes[index]) / unit)
            .collect();
        let edge = |heights: &[f64]| -> Vec<(i32, i32)> {
            let steps = columns.iter().zip(heights);
            steps
                .flat_map(|(column, height)| [column.from, column.to].map(|x| (time.at(x), axis.at(*height))))
                .collect()
        };
        let mut points = edge(&above);
        points.extend(edge(&below).into_iter().rev());
        canvas.polygon(points, tier.colour())?;
        below = above;
    }
    Ok(())
}

/// The share of time in which the trainer waited.
fn stalls(canvas: &Canvas<'_>, time: Axis, columns: &[Column]) -> Result<()> {
    let axis = Axis::from_zero(100.0, STALL_BOTTOM, STALL_TOP);
    for tick in [0.0, 50.0, 100.0] {
        let y = axis.at(tick);
        canvas.line(vec![(LEFT, y), (RIGHT, y)], FAINT, 1)?;
        let label = format!("{tick:.0} %");
        canvas.text(&label, (LEFT - 8, y), 13, INK, (Across::Right, Down::Middle))?;
    }
    for column in columns.iter().filter(|column| column.sum.stalled_seconds > 0.0) {
        let share = (100.0 * column.sum.stalled_seconds / (column.to - column.from)).min(100.0);
        let (from, to) = ((time.at(column.from), axis.at(share)), (time.at(column.to), STALL_BOTTOM));
        canvas.rectangle(from, to, STALL)?;
    }
    canvas.text("time stalled", (LEFT, STALL_TOP - 4), 13, INK, (Across::Left, Down::Bottom))
}

/// A unit of bytes in which `most` is short.
fn unit(most: f64) -> (f64, &'static str) {
    const KIB: f64 = 1024.0;
    match most {
        most if most >= KIB.powi(4) => (KIB.powi(4), "TiB"),
        most if most >= KIB.powi(3) => (KIB.powi(3), "GiB"),
        most if most >= KIB.powi(2) => (KIB.powi(2), "MiB"),
        most if most >= KIB => (KIB, "KiB"),
        _ => (1.0, "B"),
    }
}

/// Bytes with a unit, as the command prints them.
fn quantity(bytes: f64) -> String {
    match unit(bytes) {
        (1.0, name) => format!("{bytes:.0} {name}"),
        (unit, name) => format!("{:.1} {name}", bytes / unit),
    }
}

/// The end of a long name: the last parts of a path say more than the first.
fn shortened(name: &str, most: usize) -> String {
    let letters: Vec<char> = name.chars().filter(|letter| !letter.is_control()).collect();
    match letters.len() > most {
        true => format!("...{}", letters[letters.len() + 3 - most..].iter().collect::<String>()),
        false => letters.into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use quick_xml::Reader;
    use quick_xml::events::Event;

    use super::*;

    fn run() -> RunPlot {
        let slot = |index: u64| Slot {
            bytes: [index, 500 - index, 3000, 10_000 * (index % 7)],
            stalled_seconds: 0.02 * (index % 5) as f64,
        };
        RunPlot {
            title: "<b> & \"quotes\"\n".to_owned(),
            notes: vec!["first & last".to_owned(), "second".to_owned()],
            slot_seconds: 0.08,
            seconds: 39.97,
            slots: (0..500).map(slot).collect(),
            epochs: (0..20).map(|number| Epoch { number, at: 2.0 * number as f64 }).collect(),
        }
    }

    /// Parses the plot, checks its numbers, and returns its texts and fills.
    fn read(svg: &str) -> (Vec<String>, Vec<String>) {
        let (mut texts, mut fills) = (Vec::new(), Vec::new());
        let mut reader = Reader::from_str(svg);
        reader.config_mut().check_end_names = true;
        let mut open = String::new();
        loop {
            match reader.read_event().unwrap() {
                Event::Start(tag) | Event::Empty(tag) => {
                    for attribute in tag.attributes() {
                        let attribute = attribute.unwrap();
                        let value = String::from_utf8(attribute.value.to_vec()).unwrap();
                        assert!(!value.contains("NaN") && !value.contains("inf"), "{value}");
                        if attribute.key.as_ref() == b"fill" {
                            fills.push(value);
                        }
                    }
                }
                Event::Text(text) => open.push_str(&text.decode().unwrap()),
                Event::GeneralRef(name) => open.push_str(&format!("&{};", name.decode().unwrap())),
                Event::End(_) => texts.push(std::mem::take(&mut open).trim().to_owned()),
                Event::Eof => break,
                _ => {}
            }
        }
        (texts, fills)
    }

    #[test]
    fn plot_is_valid_xml_with_all_series() {
        let (texts, fills) = read(&run().svg().unwrap());
        for label in ["storage", "disk", "shared cache", "memory", "stalled"] {
            assert!(texts.iter().any(|text| text.starts_with(&format!("{label} "))), "{label}: {texts:?}");
        }
        for colour in Tier::ALL.map(Tier::colour).into_iter().chain([STALL]) {
            let fill = format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2);
            // One in the legend, and at least one in a panel.
            assert!(fills.iter().filter(|it| **it == fill).count() > 1, "{fill}: {fills:?}");
        }
        for text in ["&lt;b&gt; &amp; &quot;quotes&quot;", "first &amp; last", "seconds", "epoch 0", "KiB/s"]
        {
            assert!(texts.iter().any(|it| it == text), "{text}: {texts:?}");
        }
    }

    #[test]
    fn plot_of_an_empty_run_has_axes() {
        let (texts, _) = read(&RunPlot::default().svg().unwrap());
        assert!(texts.iter().any(|text| text == "seconds"), "{texts:?}");
        let (texts, _) = read(&RunPlot { slots: vec![Slot::default()], ..RunPlot::default() }.svg().unwrap());
        assert!(texts.iter().any(|text| text == "stalled 0.0 s (0 %)"), "{texts:?}");
    }

    #[test]
    fn epoch_that_starts_late_in_a_run_has_a_label() {
        let mut run = run();
        run.epochs.retain(|epoch| epoch.number == 0);
        run.epochs[0].at = 0.98 * run.seconds;
        let (texts, _) = read(&run.svg().unwrap());
        assert!(texts.iter().any(|text| text == "epoch 0"), "{texts:?}");
    }

    #[test]
    fn columns_keep_the_sums_and_end_with_the_run() {
        let run = run();
        let columns = run.columns();
        assert!(columns.len() <= MAX_COLUMNS);
        for tier in 0..4 {
            let sum: u64 = run.slots.iter().map(|slot| slot.bytes[tier]).sum();
            assert_eq!(columns.iter().map(|column| column.sum.bytes[tier]).sum::<u64>(), sum);
        }
        assert_eq!(columns.last().map(|column| column.to), Some(run.seconds));
        assert!(columns.windows(2).all(|pair| (pair[0].to - pair[1].from).abs() < 1e-9));
    }

    #[test]
    fn quantities_have_binary_units() {
        let texts = [0.0, 950.0, 1536.0, 54.0 * 1048576.0, 1.5 * 1073741824.0, 3e12].map(quantity);
        assert_eq!(texts, ["0 B", "950 B", "1.5 KiB", "54.0 MiB", "1.5 GiB", "2.7 TiB"]);
    }

    #[test]
    fn long_name_keeps_its_end() {
        let name = format!("/{}/train", "x".repeat(100));
        assert_eq!(shortened(&name, 20), format!("...{}/train", "x".repeat(11)));
        assert_eq!(shortened("s3://bucket/train", 20), "s3://bucket/train");
    }
}
