//! Faults that were found once, by name.
