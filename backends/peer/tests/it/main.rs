//! Ranks that ask each other, over real sockets and over a network in memory.

mod asking;
mod budgets;
mod contents;
mod hostile;
mod support;
