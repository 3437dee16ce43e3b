//! The stand-in for tests in other processes: arguments, and commands as lines of text.
//!
//! | command | effect |
//! |---|---|
//! | `counts`, `reset` | the counts as one line of JSON, all to 0 |
//! | `hang OST`, `resume OST`, `slow OST FACTOR` | as of [`StandIn`] |
//! | `evict all\|mdt\|OST ERRNO [REQUESTS]`, `reconnect` | the same, the error by its number |
//! | `release PATH MILLISECONDS\|never`, `recalled PATH` | the same, `never` until `recalled` |
//! | `waiting PROCESS` | a line of JSON: the threads of the process that wait for each OST |
//!
//! Every command is answered by one line: `ok`, JSON or `error: ...`.

use std::fmt::Display;
use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use rustix::io::Errno;

use crate::options::StandInOptions;
use crate::spec::LayoutSpec;
use crate::stand_in::{EvictedFrom, Recall, StandIn};

/// The arguments of the program `stand-in`.
#[derive(Debug)]
pub struct StandInArguments {
    /// The directory whose files are served.
    pub backing: PathBuf,
    /// The directory to mount on.
    pub mount_point: PathBuf,
    /// The settings.
    pub options: StandInOptions,
}

/// How the program is used.
pub const USAGE: &str = "usage: stand-in BACKING MOUNT_POINT [--osts=4] [--metadata-ms=0] [--read-ms=0] \
                         [--bandwidth=BYTES_PER_SECOND] [--stripe-count=1] [--stripe-size=1048576] [--dom=0] \
                         [--open-slots=7] [--getattr-slots=8] [--read-slots=8] [--locks] [--glimpses] \
                         [--cached]";

impl StandInArguments {
    /// Parses arguments without the program's name.
    ///
    /// # Errors
    /// A line that names the argument.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut options = StandInOptions::default();
        let (mut places, mut stripe_count, mut stripe_size, mut dom) = (Vec::new(), 1, 1 << 20, 0);
        for argument in arguments {
            let Some(option) = argument.strip_prefix("--") else {
                places.push(PathBuf::from(argument));
                continue;
            };
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let text = value;
            match name {
                "osts" => options.osts = number(text)?,
                "metadata-ms" => options.metadata_latency = milliseconds(text)?,
                "read-ms" => options.read_latency = milliseconds(text)?,
                "bandwidth" => options.ost_bandwidth = Some(number(text)?),
                "stripe-count" => stripe_count = number(text)?,
                "stripe-size" => stripe_size = number(text)?,
                "dom" => dom = number(text)?,
                "open-slots" => options.open_slots = number(text)?,
                "getattr-slots" => options.getattr_slots = number(text)?,
                "read-slots" => options.read_slots = number(text)?,
                "locks" => options.lock_latency = true,
                "glimpses" => options.glimpses = true,
                "cached" => options.cached = true,
                _ => return Err(format!("unknown option --{name}")),
            }
        }
        if options.osts == 0 || stripe_count == 0 || stripe_count > options.osts {
            return Err("expected at least one OST, and at most one stripe for each".to_owned());
        }
        if stripe_size == 0 || stripe_size % (64 << 10) != 0 || dom % (64 << 10) != 0 {
            return Err("expected multiples of 65536 for --stripe-size and --dom".to_owned());
        }
        let options = options.with_stripes(stripe_count, stripe_size);
        let striped = options.layout.clone();
        let options = options.with_layout(move |path, size| LayoutSpec::with_dom(striped(path, size), dom));
        match <[PathBuf; 2]>::try_from(places) {
            Ok([backing, mount_point]) => Ok(Self { backing, mount_point, options }),
            Err(_) => Err("expected two directories".to_owned()),
        }
    }
}

fn number<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error| format!("invalid number '{text}': {error}"))
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    let milliseconds: f64 = number(text)?;
    Duration::try_from_secs_f64(milliseconds / 1000.0)
        .map_err(|error| format!("invalid time '{text}': {error}"))
}

impl StandIn {
    /// Runs commands until the input ends. Each is answered by one line.
    ///
    /// # Errors
    /// Those of the input and output.
    pub fn run_commands(&self, input: impl BufRead, mut output: impl Write) -> io::Result<()> {
        for line in input.lines() {
            let answer = self.command(&line?).unwrap_or_else(|error| format!("error: {error}"));
            writeln!(output, "{answer}")?;
            output.flush()?;
        }
        Ok(())
    }

    fn command(&self, line: &str) -> Result<String, String> {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            ["counts"] => return serde_json::to_string(&self.counts()).map_err(|error| error.to_string()),
            ["waiting", process] => {
                return Ok(format!("{:?}", self.waiting_threads_by_ost(number(process)?)));
            }
            ["reset"] => self.reset_counts(),
            ["hang", ost] => self.hang(self.ost(ost)?),
            ["resume", ost] => self.resume(self.ost(ost)?),
            ["slow", ost, factor] => {
                let factor = number::<f64>(factor)?;
                if !(0.0..=1e6).contains(&factor) {
                    return Err(format!("invalid factor '{factor}': expected 0 to 1000000"));
                }
                self.slow(self.ost(ost)?, factor);
            }
            ["evict", from, errno] => self.evict(self.evicted_from(from)?, error_number(errno)?, None),
            ["evict", from, errno, requests] => {
                self.evict(self.evicted_from(from)?, error_number(errno)?, Some(number(requests)?));
            }
            ["reconnect"] => self.reconnect(),
            ["release", path, "never"] => self.release(path, Recall::OnDemand),
            ["release", path, time] => self.release(path, Recall::After(milliseconds(time)?)),
            ["recalled", path] => self.recalled(path),
            _ => return Err(format!("unknown command '{line}'")),
        }
        Ok("ok".to_owned())
    }

    fn ost(&self, text: &str) -> Result<u32, String> {
        let ost = number(text)?;
        if ost < self.osts() { Ok(ost) } else { Err(format!("there is no OST {ost}")) }
    }

    fn evicted_from(&self, text: &str) -> Result<EvictedFrom, String> {
        match text {
            "all" => Ok(EvictedFrom::All),
            "mdt" => Ok(EvictedFrom::Mdt),
            ost => Ok(EvictedFrom::Ost(self.ost(ost)?)),
        }
    }
}

fn error_number(text: &str) -> Result<Errno, String> {
    let errno: u16 = number(text)?;
    if !(1..4096).contains(&errno) {
        return Err(format!("invalid error number '{text}'"));
    }
    Ok(Errno::from_raw_os_error(i32::from(errno)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<StandInArguments, String> {
        StandInArguments::parse(arguments.iter().map(|&argument| argument.to_owned()))
    }

    #[test]
    fn arguments_set_options_and_layouts() {
        let arguments =
            ["from", "--osts=3", "--read-ms=2.5", "on", "--stripe-count=3", "--dom=65536", "--locks"];
        let parsed = parse(&arguments).unwrap();
        assert_eq!((parsed.backing.to_str(), parsed.mount_point.to_str()), (Some("from"), Some("on")));
        let options = parsed.options;
        assert_eq!((options.osts, options.read_latency), (3, Duration::from_micros(2500)));
        assert!(options.lock_latency && !options.glimpses);
        let layout = (options.layout)("a/b", 9);
        assert_eq!((layout.osts.len(), layout.dom_size), (3, 65_536));
        assert!(layout.osts.iter().all(|&ost| ost < 3));
    }

    #[test]
    fn wrong_arguments_are_one_line() {
        for (arguments, expected) in [
            (&["from"][..], "two directories"),
            (&["from", "on", "--osts=x"], "invalid number 'x'"),
            (&["from", "on", "--osts=0"], "at least one OST"),
            (&["from", "on", "--stripe-count=5"], "one stripe for each"),
            (&["from", "on", "--stripe-size=1000"], "multiples of 65536"),
            (&["from", "on", "--read-ms=-1"], "invalid time '-1'"),
            (&["from", "on", "--verbose"], "unknown option --verbose"),
        ] {
            let error = parse(arguments).unwrap_err();
            assert!(error.contains(expected) && !error.contains('\n'), "{error}");
        }
    }
}
