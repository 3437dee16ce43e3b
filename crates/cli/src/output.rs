//! Writing results, and saying in one line why there are none.

use std::io::{self, BufWriter, StdoutLock, Write};
use std::process::ExitCode;

use foreread::ErrorKind;

/// Standard output, buffered. A reader that has gone away (`| head`) is found out at the next write.
pub fn stdout() -> BufWriter<StdoutLock<'static>> {
    BufWriter::with_capacity(1 << 16, io::stdout().lock())
}

/// Prints `error` as one line on standard error and says how the program ends.
pub fn fail(error: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(error) {
        // Whoever read the output has seen enough; that the rest was left undone is what other tools say in this way too.
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
    // File names may hold line breaks; the message stays on one line.
    let line: String = message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    // Nothing is left to be done if even this cannot be written.
    let _ = writeln!(io::stderr(), "foreread: {line}");
}

/// An error and its causes, each said once.
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

/// Whether standard output was closed: only what is written there fails with a bare I/O error.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let written = error.downcast_ref::<io::Error>();
    written.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
