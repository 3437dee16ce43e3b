//! Passes the library's log events to Python's `logging`.
//!
//! Events of `tracing` are formatted on the thread that emits them, which knows nothing of Python,
//! and wait in a short queue. The next call of foreread passes them to the logger
//! `foreread.<crate>.<module>`. So no thread of foreread ever waits for the GIL. The price is that
//! a line appears at the next call, at the latest with the next batch. A flood is cut: dropped
//! lines are counted and reported. The level is that of `logging.getLogger("foreread")`, read when
//! a loader is created and periodically afterwards, unless [`set_level`] has set another.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, Once};

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The maximum number of queued lines.
const MAX_LINES: usize = 4096;

static LINES: Mutex<VecDeque<LogLine>> = Mutex::new(VecDeque::new());
static HAS_LINES: AtomicBool = AtomicBool::new(false);
static DROPPED: AtomicU64 = AtomicU64::new(0);
/// Events below this Python level are disabled.
static MIN_LEVEL: AtomicU8 = AtomicU8::new(30);
/// Whether the user has set the level, which then overrides the logger's.
static LEVEL_IS_SET: AtomicBool = AtomicBool::new(false);

struct LogLine {
    level: u8,
    target: &'static str,
    text: String,
}

/// Python's number of a level.
fn number(level: Level) -> u8 {
    match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG => 10,
        Level::TRACE => 5,
    }
}

/// The subscriber that queues lines.
struct LogSubscriber;

impl Subscriber for LogSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && number(*metadata.level()) >= MIN_LEVEL.load(Ordering::Relaxed)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match MIN_LEVEL.load(Ordering::Relaxed) {
            0..=5 => LevelFilter::TRACE,
            6..=10 => LevelFilter::DEBUG,
            11..=20 => LevelFilter::INFO,
            21..=30 => LevelFilter::WARN,
            31..=40 => LevelFilter::ERROR,
            _ => LevelFilter::OFF,
        })
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        // Spans are never enabled, so any id will do.
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = LogText::default();
        event.record(&mut text);
        let metadata = event.metadata();
        push(number(*metadata.level()), metadata.target(), text.line());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Queues a line for Python.
pub(crate) fn push(level: u8, target: &'static str, text: String) {
    // The lock is held for a push or a swap only. A longer wait happens in a forked child, whose
    // parent's thread held the lock.
    let queued = LINES.try_lock().or_else(|_| {
        std::thread::yield_now();
        LINES.try_lock()
    });
    match queued {
        Ok(mut lines) if lines.len() < MAX_LINES => {
            lines.push_back(LogLine { level, target, text });
            HAS_LINES.store(true, Ordering::Release);
        }
        _ => {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// An event's message, followed by its fields.
#[derive(Default)]
struct LogText {
    message: String,
    fields: String,
}

impl LogText {
    fn line(self) -> String {
        if self.fields.is_empty() { self.message } else { format!("{}{}", self.message, self.fields) }
    }
}

impl Visit for LogText {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = match field.name() {
            "message" => self.message.write_str(value),
            name => write!(self.fields, " {name}={value}"),
        };
    }
}

/// Installs the subscriber, once, and reads the level from Python.
pub(crate) fn set_up(py: Python<'_>) -> PyResult<()> {
    static LISTENING: Once = Once::new();
    update_level(py)?;
    // This copy of `tracing` belongs to this module, so no other library has a subscriber in it.
    LISTENING.call_once(|| tracing::subscriber::set_global_default(LogSubscriber).unwrap_or_default());
    Ok(())
}

/// Reads the level of `logging.getLogger("foreread")`, unless the user has set one. Returns the
/// exception of a signal handler, for example on Ctrl-C.
pub(crate) fn update_level(py: Python<'_>) -> PyResult<()> {
    if LEVEL_IS_SET.load(Ordering::Relaxed) {
        return Ok(());
    }
    let logger = py.import("logging")?.call_method1("getLogger", ("foreread",))?;
    let level: i64 = logger.call_method0("getEffectiveLevel")?.extract()?;
    change(level.clamp(0, 255) as u8);
    Ok(())
}

/// Disables lines below this level (one of Python's numbers).
pub(crate) fn set_level(level: u8) {
    LEVEL_IS_SET.store(true, Ordering::Relaxed);
    change(level);
}

fn change(level: u8) {
    if MIN_LEVEL.swap(level, Ordering::Relaxed) != level {
        tracing::callsite::rebuild_interest_cache();
    }
}

/// Passes queued lines to Python's loggers. Returns the exception of a signal handler. Handlers of
/// `logging` handle their own failures.
pub(crate) fn drain(py: Python<'_>) -> PyResult<()> {
    if !HAS_LINES.swap(false, Ordering::Acquire) {
        return Ok(());
    }
    match LINES.try_lock().map(|mut lines| std::mem::take(&mut *lines)) {
        Ok(lines) => log_lines(py, lines),
        Err(_) => {
            // Another thread is adding a line: the next call will pass it.
            HAS_LINES.store(true, Ordering::Release);
            Ok(())
        }
    }
}

fn log_lines(py: Python<'_>, lines: VecDeque<LogLine>) -> PyResult<()> {
    let loggers = py.import("logging")?.getattr("getLogger")?;
    for LogLine { level, target, text } in lines {
        loggers.call1((logger(target),))?.call_method1("log", (level, "%s", text))?;
    }
    match DROPPED.swap(0, Ordering::Relaxed) {
        0 => Ok(()),
        dropped => {
            let message = format!("{dropped} log lines were dropped: Python did not read them in time");
            loggers.call1(("foreread",))?.call_method1("warning", ("%s", message)).map(drop)
        }
    }
}

/// Maps `foreread_loader::driver` to `foreread.loader.driver`, and other crates to names below
/// `foreread`.
fn logger(target: &str) -> String {
    let name = target.replace("::", ".");
    match name.strip_prefix("foreread").map(|rest| rest.trim_start_matches('_')) {
        Some("") => "foreread".to_owned(),
        Some(rest) => format!("foreread.{}", rest.trim_start_matches('.')),
        None => format!("foreread.{name}"),
    }
}
