//! `stand-in BACKING MOUNT_POINT [options]`: the file system for tests and benches in other
//! processes. It prints `ready`, runs the commands of its input (`foreread_lustre_testing`), and
//! ends when that closes, or at SIGTERM or SIGINT. Then it unmounts.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};

use foreread_lustre_testing::{StandIn, StandInArguments, USAGE};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

fn main() -> ExitCode {
    let arguments = match StandInArguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("stand-in: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stand-in: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: StandInArguments) -> io::Result<()> {
    let (mut signalled, signal) = UnixStream::pair()?;
    pipe::register(SIGTERM, signal.try_clone()?)?;
    pipe::register(SIGINT, signal)?;
    let StandInArguments { backing, mount_point, options } = arguments;
    let stand_in = Arc::new(StandIn::mount_at(&backing, &mount_point, options)?);
    println!("ready");
    let (ended, end) = mpsc::channel();
    let (commanded, input_ended) = (Arc::downgrade(&stand_in), ended.clone());
    std::thread::spawn(move || {
        let result = match commanded.upgrade() {
            Some(stand_in) => stand_in.run_commands(io::stdin().lock(), io::stdout()),
            None => Ok(()),
        };
        // The receiver is gone if a signal came first.
        let _ = input_ended.send(result);
    });
    std::thread::spawn(move || {
        let result = signalled.read(&mut [0]).map(|_| ());
        let _ = ended.send(result);
    });
    let result = end.recv().unwrap_or(Ok(()));
    stand_in.unmount();
    result
}
