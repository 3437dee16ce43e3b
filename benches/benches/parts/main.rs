//! One part at a time.
fn main() {}
