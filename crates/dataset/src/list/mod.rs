//! Listing an origin: which of its objects are selected, found and kept, and which format they
//! have.

pub(crate) mod choose_format;
pub(crate) mod directory_markers;
pub(crate) mod found_objects;
pub(crate) mod listing_journal;
pub(crate) mod object_runs;
pub(crate) mod selection;
