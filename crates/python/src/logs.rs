//! What the library says, as lines of Python's `logging`.
//!
//! Events of `tracing` are formatted where they happen, on threads that know nothing of Python, and wait in a short queue;
//! whoever calls foreread next hands them to the logger `foreread.<crate>.<module>`. So no thread of foreread ever waits for the
//! interpreter. The price is that a line appears when Python looks, at the latest with the next batch, and that a flood is cut:
//! what did not fit is counted and said. The level is that of `logging.getLogger("foreread")`, looked up when a loader is made
//! and now and then, unless [`set_level`] said otherwise.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, Once};

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Lines that wait at most.
const QUEUE: usize = 4096;

static LINES: Mutex<VecDeque<Line>> = Mutex::new(VecDeque::new());
static WAITING: AtomicBool = AtomicBool::new(false);
static DROPPED: AtomicU64 = AtomicU64::new(0);
/// Lines below this level of Python's are not made.
static LEAST: AtomicU8 = AtomicU8::new(30);
/// Whether a user has said the level, so that loggers are not asked for it.
static SAID: AtomicBool = AtomicBool::new(false);

struct Line {
    level: u8,
    target: &'static str,
    text: String,
}

/// Python's number for a level.
fn number(level: Level) -> u8 {
    match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG => 10,
        Level::TRACE => 5,
    }
}

/// What leaves its lines in the queue.
struct Queue;

impl Subscriber for Queue {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && number(*metadata.level()) >= LEAST.load(Ordering::Relaxed)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match LEAST.load(Ordering::Relaxed) {
            0..=5 => LevelFilter::TRACE,
            6..=10 => LevelFilter::DEBUG,
            11..=20 => LevelFilter::INFO,
            21..=30 => LevelFilter::WARN,
            31..=40 => LevelFilter::ERROR,
            _ => LevelFilter::OFF,
        })
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        // Spans are never enabled; the number says nothing.
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let metadata = event.metadata();
        push(number(*metadata.level()), metadata.target(), text.line());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Leaves a line for Python.
pub(crate) fn push(level: u8, target: &'static str, text: String) {
    // Held for a push or a swap; whoever is held up here for longer is in a fork's child, where its holder is gone.
    let queued = LINES.try_lock().or_else(|_| {
        std::thread::yield_now();
        LINES.try_lock()
    });
    match queued {
        Ok(mut lines) if lines.len() < QUEUE => {
            lines.push_back(Line { level, target, text });
            WAITING.store(true, Ordering::Release);
        }
        _ => {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// An event's message, and its fields behind it.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Text {
    fn line(self) -> String {
        if self.fields.is_empty() { self.message } else { format!("{}{}", self.message, self.fields) }
    }
}

impl Visit for Text {
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

/// Begins to listen, once, and takes the level from Python.
pub(crate) fn set_up(py: Python<'_>) -> PyResult<()> {
    static LISTENING: Once = Once::new();
    ask_level(py)?;
    // This module's alone: another library's subscriber is in another copy of `tracing`.
    LISTENING.call_once(|| tracing::subscriber::set_global_default(Queue).unwrap_or_default());
    Ok(())
}

/// The level of `logging.getLogger("foreread")`, where nobody has said another. Fails as any call of Python does, with Ctrl-C
/// at the latest: what a signal's handler raises must not be lost.
pub(crate) fn ask_level(py: Python<'_>) -> PyResult<()> {
    if SAID.load(Ordering::Relaxed) {
        return Ok(());
    }
    let logger = py.import("logging")?.call_method1("getLogger", ("foreread",))?;
    let level: i64 = logger.call_method0("getEffectiveLevel")?.extract()?;
    change(level.clamp(0, 255) as u8);
    Ok(())
}

/// Only lines of at least this level (Python's numbers) are made from now on.
pub(crate) fn set_level(level: u8) {
    SAID.store(true, Ordering::Relaxed);
    change(level);
}

fn change(level: u8) {
    if LEAST.swap(level, Ordering::Relaxed) != level {
        tracing::callsite::rebuild_interest_cache();
    }
}

/// Hands waiting lines to Python's loggers. Fails with what a signal's handler raises meanwhile; handlers of `logging` see to
/// their own failures.
pub(crate) fn drain(py: Python<'_>) -> PyResult<()> {
    if !WAITING.swap(false, Ordering::Acquire) {
        return Ok(());
    }
    match LINES.try_lock().map(|mut lines| std::mem::take(&mut *lines)) {
        Ok(lines) => hand_over(py, lines),
        Err(_) => {
            // Somebody is adding one; with the next call, then.
            WAITING.store(true, Ordering::Release);
            Ok(())
        }
    }
}

fn hand_over(py: Python<'_>, lines: VecDeque<Line>) -> PyResult<()> {
    let loggers = py.import("logging")?.getattr("getLogger")?;
    for Line { level, target, text } in lines {
        loggers.call1((logger(target),))?.call_method1("log", (level, "%s", text))?;
    }
    match DROPPED.swap(0, Ordering::Relaxed) {
        0 => Ok(()),
        dropped => {
            let said = format!("{dropped} lines were dropped: they came faster than Python looked");
            loggers.call1(("foreread",))?.call_method1("warning", ("%s", said)).map(drop)
        }
    }
}

/// `foreread_loader::driver` as `foreread.loader.driver`; what is not ours comes below ours.
fn logger(target: &str) -> String {
    let name = target.replace("::", ".");
    match name.strip_prefix("foreread").map(|rest| rest.trim_start_matches('_')) {
        Some("") => "foreread".to_owned(),
        Some(rest) => format!("foreread.{}", rest.trim_start_matches('.')),
        None => format!("foreread.{name}"),
    }
}
