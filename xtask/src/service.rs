//! Servers of our own for tests: started, and ended whatever happens.
//!
//! Decision: what a server is made of lives in one directory under the target directory, and its processes belong to this
//! one: dropping a [`Service`] kills them and removes the directory; so does a signal that ends xtask, in which case
//! xtask then ends as it would have without us; and where xtask itself is killed, the kernel kills them after it
//! (`setpriv --pdeathsig`), and the next run removes the directory. Killed, not asked to end: nothing of theirs is
//! wanted afterwards, and a kill takes no time. The price is that processes must be started by a thread that lives as
//! long as they do, because that thread's end is what the kernel takes for ours.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use tempfile::TempDir;

use crate::cargo::{cannot_start, shown};

/// The file in a service's directory that is locked as long as its xtask lives.
const ALIVE: &str = "alive";

/// All that runs. Who ends it because of a signal keeps it locked, so that nothing else is begun until xtask has ended.
static RUNNING: Mutex<Vec<Running>> = Mutex::new(Vec::new());

/// A running server: its processes and its directory. Dropping it ends both.
#[derive(Debug)]
pub struct Service {
    directory: PathBuf,
    /// What tests are told, by way of their variable.
    told: OsString,
}

#[derive(Debug)]
struct Running {
    processes: Vec<(String, Child)>,
    directory: TempDir,
    _alive: File,
}

impl Running {
    fn end(mut self) {
        for (_, process) in &mut self.processes {
            // It may have ended by itself, which is as good.
            let _ = process.kill();
            let _ = process.wait();
        }
        if let Err(error) = self.directory.close() {
            eprintln!("xtask: cannot remove a service's directory: {error}");
        }
    }
}

fn running() -> MutexGuard<'static, Vec<Running>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Service {
    /// A service without processes yet, in a directory of its own below `home`; what dead runs left there is removed.
    pub fn new(home: &Path) -> Result<Service> {
        end_on_signals()?;
        let mut running = running();
        let cannot = || format!("cannot make a directory in {}", home.display());
        std::fs::create_dir_all(home).with_context(cannot)?;
        // Between making a directory and locking it nobody may take it for a dead run's.
        let gate = File::create(home.join("gate")).with_context(cannot)?;
        gate.lock().with_context(cannot)?;
        remove_what_dead_runs_left(home);
        let directory = tempfile::Builder::new().prefix("of-").tempdir_in(home).with_context(cannot)?;
        let alive = File::create(directory.path().join(ALIVE)).with_context(cannot)?;
        alive.lock().with_context(cannot)?;
        let path = directory.path().to_owned();
        running.push(Running { processes: Vec::new(), directory, _alive: alive });
        Ok(Service { directory: path, told: OsString::new() })
    }

    /// Where everything of it lies.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// What tests are told, by way of their variable.
    pub fn told(&self) -> &OsStr {
        &self.told
    }

    /// Says what tests are told.
    pub fn tell(&mut self, told: impl Into<OsString>) {
        self.told = told.into();
    }

    /// Starts a process that serves until the service ends. Its output goes to `NAME.out` in the directory.
    pub fn start(&self, name: &str, command: &mut Command) -> Result<()> {
        use std::os::unix::process::CommandExt;
        let mut bound = Command::new("setpriv");
        bound.args(["--pdeathsig", "KILL"]).arg(command.get_program()).args(command.get_args());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => bound.env(key, value),
                None => bound.env_remove(key),
            };
        }
        let out = File::create(self.directory.join(format!("{name}.out")))
            .with_context(|| format!("cannot write what {name} says"))?;
        let err = out.try_clone().with_context(|| format!("cannot write what {name} says"))?;
        // In a group of its own: Ctrl-C is for us, and we end it when we are done.
        bound.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
        let mut running = running();
        let own = self.own(&mut running)?;
        let process = bound.spawn().with_context(|| cannot_start(&bound))?;
        own.processes.push((name.to_owned(), process));
        Ok(())
    }

    /// Runs a command to its end and returns its standard output.
    pub fn run(&self, command: &mut Command) -> Result<String> {
        let output = command.stdin(Stdio::null()).output().with_context(|| cannot_start(command))?;
        if !output.status.success() {
            bail!("`{}` failed: {}", shown(command), String::from_utf8_lossy(&output.stderr).trim_end());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// An error where one of the processes has ended.
    pub fn check(&self) -> Result<()> {
        for (name, process) in &mut self.own(&mut running())?.processes {
            if let Some(status) = process.try_wait().with_context(|| format!("cannot look after {name}"))? {
                let said = std::fs::read_to_string(self.directory.join(format!("{name}.out")));
                bail!("{name} has ended ({status}); it said: {}", said.unwrap_or_default().trim_end());
            }
        }
        Ok(())
    }

    /// What runs of it.
    fn own<'a>(&self, running: &'a mut [Running]) -> Result<&'a mut Running> {
        let own = running.iter_mut().find(|running| running.directory.path() == self.directory);
        own.context("the service has ended")
    }

    /// Waits until `ready`, at most for `deadline`; an error where that passes, or a process ends meanwhile.
    pub fn wait(&self, what: &str, deadline: Duration, mut ready: impl FnMut() -> bool) -> Result<()> {
        let began = Instant::now();
        while !ready() {
            self.check()?;
            if began.elapsed() > deadline {
                bail!("{what} is not there after {} s", deadline.as_secs());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let mut running = running();
        let own = running.iter().position(|running| running.directory.path() == self.directory);
        if let Some(own) = own {
            running.swap_remove(own).end();
        }
    }
}

/// The status with which a server on this machine answers `GET /`; none where nothing answers.
pub fn status(port: u16) -> Option<u16> {
    let ask = || -> std::io::Result<String> {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().ok()?.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
}

/// From now on a signal that ends xtask ends all services first.
fn end_on_signals() -> Result<()> {
    static WATCHING: Mutex<bool> = Mutex::new(false);
    let mut watching = WATCHING.lock().unwrap_or_else(PoisonError::into_inner);
    if *watching {
        return Ok(());
    }
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot watch for signals")?;
    // It watches as long as xtask lives: were it to stop, nobody would answer these signals any more.
    std::thread::spawn(move || {
        for signal in signals.forever() {
            let mut running = running();
            running.drain(..).for_each(Running::end);
            let _ = emulate_default_handler(signal);
        }
    });
    *watching = true;
    Ok(())
}

/// Removes directories whose xtask is no more.
fn remove_what_dead_runs_left(home: &Path) {
    for entry in std::fs::read_dir(home).into_iter().flatten().flatten() {
        let Ok(alive) = File::open(entry.path().join(ALIVE)) else { continue };
        if alive.try_lock().is_ok()
            && let Err(error) = std::fs::remove_dir_all(entry.path())
        {
            eprintln!("xtask: cannot remove {}: {error}", entry.path().display());
        }
    }
}

/// Free ports of this machine, different from each other. They may be taken by others at once, so a start that fails is
/// tried again.
pub fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let mut held = Vec::new();
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = TcpListener::bind("127.0.0.1:0").context("no port is free")?;
        *port = listener.local_addr().context("no port is free")?.port();
        held.push(listener);
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tells the test below that it is the process to be ended.
    const HOME: &str = "FOREREAD_XTASK_SERVICE_HOME";
    const PATIENCE: Duration = Duration::from_secs(60);

    fn services(home: &Path) -> Vec<PathBuf> {
        let found = std::fs::read_dir(home).into_iter().flatten().map(|entry| entry.unwrap().path());
        found.filter(|path| path.is_dir()).collect()
    }

    /// The process that wrote its id there, if it is alive. One that was killed by the kernel may wait to be collected.
    fn alive(file: &Path) -> bool {
        let id = std::fs::read_to_string(file).unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", id.trim())).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    }

    fn until(what: &str, mut ready: impl FnMut() -> bool) {
        let began = Instant::now();
        while !ready() {
            assert!(began.elapsed() < PATIENCE, "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn started(home: &Path, id: &Path) -> Service {
        let service = Service::new(home).unwrap();
        let script = format!("echo $$ >{0}.new && mv {0}.new {0} && exec sleep 600", id.display());
        service.start("sleeper", Command::new("sh").args(["-c", &script])).unwrap();
        service.wait("the sleeper", PATIENCE, || id.exists()).unwrap();
        service
    }

    #[test]
    fn dropping_it_ends_its_processes_and_removes_its_directory() {
        let home = tempfile::tempdir().unwrap();
        let (first, second) = (home.path().join("1"), home.path().join("2"));
        let services_of = || services(home.path()).len();
        let one = started(home.path(), &first);
        let other = started(home.path(), &second);
        assert!(alive(&first) && alive(&second) && services_of() == 2);
        drop(one);
        assert!(!alive(&first) && alive(&second) && services_of() == 1);
        drop(other);
        assert!(!alive(&second) && services_of() == 0);
    }

    #[test]
    fn a_process_that_ends_is_an_error_with_its_last_words() {
        let home = tempfile::tempdir().unwrap();
        let service = Service::new(home.path()).unwrap();
        service.start("short", Command::new("sh").args(["-c", "echo no room; exit 3"])).unwrap();
        let error = service.wait("nothing", PATIENCE, || false).unwrap_err().to_string();
        assert!(error.contains("short has ended") && error.contains("no room"), "{error}");
        let error = service.run(Command::new("sh").args(["-c", "echo why >&2; exit 1"])).unwrap_err();
        assert_eq!(error.to_string(), "`sh -c echo why >&2; exit 1` failed: why");
    }

    #[test]
    fn whatever_ends_xtask_ends_the_processes_too() {
        if let Some(home) = std::env::var_os(HOME) {
            let home = PathBuf::from(home);
            let _service = started(&home, &home.join("id"));
            std::fs::write(home.join("ready"), "").unwrap();
            std::thread::sleep(PATIENCE);
            return;
        }
        for signal in ["INT", "TERM", "HUP", "KILL"] {
            let home = tempfile::tempdir().unwrap();
            let this = std::env::current_exe().unwrap();
            let name = "service::tests::whatever_ends_xtask_ends_the_processes_too";
            let mut child = Command::new(this)
                .args(["--exact", name])
                .env(HOME, home.path())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            until("it never began", || home.path().join("ready").exists());
            assert!(alive(&home.path().join("id")));
            let kill = format!("kill -{signal} {}", child.id());
            assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
            let status = child.wait().unwrap();
            assert!(!status.success(), "{signal}: {status}");
            until("its process lives on", || !alive(&home.path().join("id")));
            // Only what cannot be caught leaves the directory, to the next run.
            assert_eq!(services(home.path()).len(), usize::from(signal == "KILL"), "{signal}");
            drop(Service::new(home.path()).unwrap());
            assert_eq!(services(home.path()).len(), 0, "{signal}");
        }
    }

    #[test]
    fn nothing_answers_on_a_free_port() {
        let [port] = free_ports().unwrap();
        assert_eq!(status(port), None);
    }

    #[test]
    fn ports_differ() {
        let ports: [u16; 8] = free_ports().unwrap();
        let distinct: std::collections::BTreeSet<_> = ports.iter().collect();
        assert_eq!(distinct.len(), 8);
    }
}
