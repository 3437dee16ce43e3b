//! The colours of plots.

use crate::Colour;

/// The background.
pub const WHITE: Colour = Colour(255, 255, 255);
/// Text and axes.
pub const INK: Colour = Colour(40, 40, 40);
/// Grid lines.
pub const FAINT: Colour = Colour(205, 205, 205);
/// Stalls, and unknown times.
pub const STALL: Colour = Colour(153, 153, 153);
/// Reads from storage.
pub const ORIGIN: Colour = Colour(213, 94, 0);
/// Reads from other ranks or workers.
pub const PEERS: Colour = Colour(86, 180, 233);
/// Reads from disks.
pub const DISK: Colour = Colour(230, 159, 0);
/// Reads from memory, or from any cache of a worker.
pub const LOCAL: Colour = Colour(0, 158, 115);
/// Lower bounds.
pub const BOUND: Colour = Colour(0, 0, 0);

/// The colours of lines.
pub const LINES: [Colour; 7] = [
    Colour(0, 114, 178),
    Colour(213, 94, 0),
    Colour(0, 158, 115),
    Colour(204, 121, 167),
    Colour(230, 159, 0),
    Colour(86, 180, 233),
    Colour(120, 120, 120),
];
