//! Plots as SVG: a canvas with axes, the plot of a run, and the timeline of a trainer.
//!
//! Decision: one crate draws all SVG, with plotters, and depends on no other crate of the
//! workspace. So the simulator stays pure, and a build without plots leaves one crate out. The
//! price: callers convert their reports to plain numbers.
//!
//! Axes are laid out in pixels and not by plotters' charts. Rows with names on the left and values
//! on the right take less code this way. Text stays text, so it can be selected and searched.
//! Backgrounds are white, so plots are readable in light and dark pages. Colours are those of Okabe
//! and Ito, which colour-blind readers can distinguish.

mod axis;
mod canvas;
pub mod colours;
mod run;
mod timeline;

pub use axis::{Axis, number};
pub use canvas::{Across, Canvas, Colour, Down, PlotError, Result, paint};
pub use run::{Epoch, RunPlot, Slot, Tier};
pub use timeline::{Timeline, TimelineRow};
