//! The `foreread` command.
fn main() {}
