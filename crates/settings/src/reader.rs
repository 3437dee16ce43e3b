//! The readers of settings, as bits: the commands that have options, and the Python package.

/// `load`.
pub const LOAD: u16 = 1;
/// `plan`.
pub const PLAN: u16 = 1 << 1;
/// `order`.
pub const ORDER: u16 = 1 << 2;
/// `index`.
pub const INDEX: u16 = 1 << 3;
/// `warm`.
pub const WARM: u16 = 1 << 4;
/// `calibrate`.
pub const CALIBRATE: u16 = 1 << 5;
/// `simulate`.
pub const SIMULATE: u16 = 1 << 6;
/// `demo`.
pub const DEMO: u16 = 1 << 7;
/// `agent start`, `agent serve` and `agent run`.
pub const AGENT: u16 = 1 << 8;
/// Commands about a process or a cache that is there: `agent status`, `control`, `cache`.
pub const STATUS: u16 = 1 << 9;
/// `token`.
pub const TOKEN: u16 = 1 << 10;
/// Keyword arguments of `foreread.Loader` and others in Python.
pub const PYTHON: u16 = 1 << 11;
