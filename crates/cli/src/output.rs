//! Results on standard output, and errors as one line on standard error.

use std::io::{self, BufWriter, StdoutLock, Write};
use std::process::ExitCode;

use foreread::ErrorKind;

/// Standard output, buffered. A reader that has gone (`| head`) is detected at the next write.
pub fn stdout() -> BufWriter<StdoutLock<'static>> {
    BufWriter::with_capacity(1 << 16, io::stdout().lock())
}

/// Prints `error` as one line on standard error, and returns the exit code.
pub fn fail(error: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(error) {
        // The reader has gone. Other tools end with this code, too.
        return ExitCode::from(128 + 13);
    }
    complain(&chain(error));
    match error.downcast_ref::<foreread::Error>().map(foreread::Error::kind) {
        Some(ErrorKind::Usage) => ExitCode::from(2),
        _ => ExitCode::from(1),
    }
}

/// Prints one line on standard error.
pub fn complain(message: &str) {
    // File names may have line breaks.
    note(&format!("foreread: {}", one_line(message)));
}

/// A text with spaces in place of line breaks and other control characters.
pub fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Prints a line on standard error as one write, because several ranks may share it.
pub fn note(line: &str) {
    // If this cannot be written, there is no other place for it.
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// An error and its causes, each printed once.
fn chain(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |mut line, cause| {
        let cause = cause.to_string();
        if !line.contains(&cause) {
            let separator = if line.is_empty() { "" } else { ": " };
            line.push_str(separator);
            line.push_str(&cause);
        }
        line
    })
}

/// Whether standard output was closed. Only writes there fail with a bare I/O error.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let written = error.downcast_ref::<io::Error>();
    written.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
