//! The comparison of Python loaders: its record, and the pages and the plot that show it.
//!
//! Decision: the bench saves one record (`results/loaders.json`), and every published number is
//! rendered from it. A group that is measured again replaces its part of the record, so that pages,
//! tables and plot never disagree. A test compares the pages with the record. The price is that
//! generated parts of pages have markers and are not edited by hand.

pub mod cases;
pub mod pages;
pub mod plot;
pub mod record;
pub mod targets;
