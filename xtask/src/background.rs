//! Steps that run while the tests do.
//!
//! Tests wait for processes, timeouts and disks, and use less than half of the cores. Compiling
//! uses the rest: at a low priority, one step after the other, because Cargo allows one build at a
//! time. A step's output is printed when it has ended. The price: the measured times of these steps
//! include waiting.

use std::io::{Read, pipe};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::cargo::{cannot_start, shown};
use crate::summary::StepOutcome;

/// The command of a step, or the line of what it needs and is missing.
pub type StepCommand = Result<Command, String>;

/// A step that has ended.
#[derive(Debug)]
pub struct EndedStep {
    /// Its name.
    pub name: String,
    /// Its output and its command.
    pub output: String,
    /// How it ended.
    pub outcome: Result<StepOutcome>,
    /// From its start to its end.
    pub took: Duration,
}

/// Steps that are running, in the order in which they end.
#[derive(Debug)]
pub struct Background(Receiver<EndedStep>);

impl Background {
    /// Starts them on a new thread.
    pub fn start(steps: Vec<(String, StepCommand)>) -> Background {
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            for (name, command) in steps {
                let start = Instant::now();
                let (outcome, output) = match command {
                    Ok(command) => run(at_low_priority(&command)),
                    Err(missing) => (Ok(StepOutcome::Skipped(missing)), String::new()),
                };
                // The receiver is gone only if the run itself has ended.
                let _ = sender.send(EndedStep { name, output, outcome, took: start.elapsed() });
            }
        });
        Background(receiver)
    }

    /// Waits for the next step to end. None after the last.
    pub fn next_ended(&self) -> Option<EndedStep> {
        self.0.recv().ok()
    }
}

/// The same command below `nice`, so that tests come first.
fn at_low_priority(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "10"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        nice.current_dir(directory);
    }
    nice
}

/// Runs it to its end. Its standard output and error in one text, in the order of writing.
fn run(mut command: Command) -> (Result<StepOutcome>, String) {
    let mut output = format!("$ {}\n", shown(&command));
    let outcome = (|| {
        let (mut reader, writer) = pipe().context("cannot make a pipe")?;
        let both = writer.try_clone().context("cannot make a pipe")?;
        let failed = cannot_start(&command);
        let mut child =
            command.stdin(Stdio::null()).stdout(both).stderr(writer).spawn().context(failed.clone())?;
        // The command holds the pipe's writing ends, and reading ends when they are all closed.
        drop(command);
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).context("cannot read what a step printed")?;
        output.push_str(&String::from_utf8_lossy(&bytes));
        Ok(StepOutcome::Ran(child.wait().context(failed)?.success()))
    })();
    (outcome, output)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> StepCommand {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("WORD", "hello").current_dir("/");
        Ok(command)
    }

    #[test]
    fn steps_end_in_their_order_with_output_and_outcome() {
        let steps = [
            ("first", shell("echo $WORD; pwd; echo trouble >&2; exit 3")),
            ("missing", Err("needs a tool".to_owned())),
            ("no program", Ok(Command::new("/foreread/no-such-program"))),
            ("last", shell("nice")),
        ];
        let background = Background::start(steps.map(|(name, step)| (name.to_owned(), step)).into());
        let first = background.next_ended().unwrap();
        assert!(matches!(first.outcome, Ok(StepOutcome::Ran(false))), "{:?}", first.outcome);
        assert!(first.output.ends_with("\nhello\n/\ntrouble\n"), "{}", first.output);
        let missing = background.next_ended().unwrap();
        assert_eq!(missing.name, "missing");
        assert!(matches!(missing.outcome, Ok(StepOutcome::Skipped(line)) if line == "needs a tool"));
        let absent = background.next_ended().unwrap();
        assert!(matches!(absent.outcome, Ok(StepOutcome::Ran(false))), "{:?}", absent.outcome);
        let last = background.next_ended().unwrap();
        assert!(matches!(last.outcome, Ok(StepOutcome::Ran(true))));
        let niceness: u32 = last.output.lines().last().unwrap().parse().unwrap();
        assert!(niceness >= 10, "{}", last.output);
        assert!(background.next_ended().is_none());
    }
}
