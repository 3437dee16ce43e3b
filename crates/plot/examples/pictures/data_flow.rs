//! How data flow: from the seed to a batch.

use foreread_plot::colours::{DISK, INK, LOCAL, ORIGIN, PEERS};
use foreread_plot::{Across, Canvas, Colour, Down, paint};

use crate::Result;

const WIDTH: i32 = 720;
const HEIGHT: i32 = 496;
const PLAIN: Colour = Colour(236, 240, 244);

/// A box: its upper left corner, size and colour, and two lines of text.
struct Node {
    at: (i32, i32),
    size: (i32, i32),
    edge: Colour,
    name: &'static str,
    note: &'static str,
}

impl Node {
    fn draw(&self, canvas: &Canvas<'_>) -> foreread_plot::Result<()> {
        let ((x, y), (width, height)) = (self.at, self.size);
        canvas.rectangle((x, y), (x + width, y + height), self.edge)?;
        canvas.rectangle((x + 3, y + 3), (x + width - 3, y + height - 3), PLAIN)?;
        let middle = x + width / 2;
        canvas.text(self.name, (middle, y + height / 2 - 11), 18, INK, (Across::Middle, Down::Middle))?;
        canvas.text(self.note, (middle, y + height / 2 + 13), 15, INK, (Across::Middle, Down::Middle))
    }

    fn top(&self) -> (i32, i32) {
        (self.at.0 + self.size.0 / 2, self.at.1)
    }

    fn bottom(&self) -> (i32, i32) {
        (self.at.0 + self.size.0 / 2, self.at.1 + self.size.1)
    }

    fn left(&self) -> (i32, i32) {
        (self.at.0, self.at.1 + self.size.1 / 2)
    }

    fn right(&self) -> (i32, i32) {
        (self.at.0 + self.size.0, self.at.1 + self.size.1 / 2)
    }
}

/// An arrow to `to`, horizontal or vertical at its end.
fn arrow(canvas: &Canvas<'_>, points: &[(i32, i32)]) -> foreread_plot::Result<()> {
    let [.., (from_x, from_y), (x, y)] = *points else { return Ok(()) };
    canvas.line(points.to_vec(), INK, 2)?;
    let (dx, dy) = ((x - from_x).signum(), (y - from_y).signum());
    let base = (x - 12 * dx, y - 12 * dy);
    let head = vec![(x, y), (base.0 - 6 * dy, base.1 - 6 * dx), (base.0 + 6 * dy, base.1 + 6 * dx)];
    canvas.polygon(head, INK)
}

pub fn svg() -> Result<String> {
    let row = |x: i32, name, note| Node { at: (x, 58), size: (200, 72), edge: INK, name, note };
    let seed = row(24, "seed", "42");
    let order = row(260, "order", "of all epochs and ranks");
    let plan = row(496, "plan", "which cache keeps what");
    let tier = |index: i32, name, note, edge| Node {
        at: (24 + 172 * index, 226),
        size: (156, 72),
        edge,
        name,
        note,
    };
    let tiers = [
        tier(0, "memory", "of this rank", LOCAL),
        tier(1, "disk", "of this node", DISK),
        tier(2, "peers", "other ranks' caches", PEERS),
        tier(3, "storage", "S3, Lustre, NFS, ...", ORIGIN),
    ];
    let batch =
        Node { at: (24, 400), size: (320, 72), edge: INK, name: "batches", note: "read ahead, in order" };
    let trainer =
        Node { at: (400, 400), size: (296, 72), edge: INK, name: "training step", note: "does not wait" };
    let svg = paint((WIDTH, HEIGHT), |canvas| {
        canvas.bold("From the seed to a batch", (24, 16), 18)?;
        for node in [&seed, &order, &plan, &batch, &trainer].into_iter().chain(&tiers) {
            node.draw(canvas)?;
        }
        arrow(canvas, &[seed.right(), order.left()])?;
        arrow(canvas, &[order.right(), plan.left()])?;
        // The plan chooses the tier of each read.
        let (bus, from) = (178, plan.bottom());
        canvas.line(vec![from, (from.0, bus)], INK, 2)?;
        canvas.line(vec![(tiers[0].top().0, bus), (tiers[3].top().0, bus)], INK, 2)?;
        for tier in &tiers {
            arrow(canvas, &[(tier.top().0, bus), tier.top()])?;
        }
        let label = "each sample from the fastest tier that has it";
        canvas.text(label, (24, bus - 10), 16, INK, (Across::Left, Down::Bottom))?;
        let bus = 342;
        for tier in &tiers {
            canvas.line(vec![tier.bottom(), (tier.bottom().0, bus)], INK, 2)?;
        }
        canvas.line(vec![(tiers[0].bottom().0, bus), (tiers[3].bottom().0, bus)], INK, 2)?;
        arrow(canvas, &[(batch.top().0, bus), batch.top()])?;
        let label = "before the trainer requests it";
        canvas.text(label, (tiers[3].bottom().0, bus + 10), 16, INK, (Across::Right, Down::Top))?;
        arrow(canvas, &[batch.right(), trainer.left()])
    })?;
    Ok(svg)
}
