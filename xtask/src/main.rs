//! The project own commands.
fn main() {}
