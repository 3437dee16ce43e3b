//! Servers for tests: started, and stopped in every case.
//!
//! Decision: all files of a server are in one directory below the target directory, and its
//! processes are children of this process. Dropping a [`TestServer`] kills them and removes the
//! directory. So does a signal that ends xtask, which then ends as if it had no handler. If xtask
//! itself is killed, the kernel kills them (`setpriv --pdeathsig`) and the next run removes the
//! directory. SIGKILL is enough, because their data are not needed. The price: the thread that
//! starts a process must outlive it, because the kernel watches that thread.

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

/// All running servers. The signal handler keeps the lock, so that no other one starts until xtask
/// has ended.
static SERVERS: Mutex<Vec<ServerProcesses>> = Mutex::new(Vec::new());

/// A running server: its processes and its directory. Dropping it ends both.
#[derive(Debug)]
pub struct TestServer {
    directory: PathBuf,
    /// The value of the tests' variable.
    test_value: OsString,
}

#[derive(Debug)]
struct ServerProcesses {
    processes: Vec<(String, Child)>,
    directory: TempDir,
    _alive: File,
}

impl ServerProcesses {
    fn end(mut self) {
        for (_, process) in &mut self.processes {
            // It may have ended already.
            let _ = process.kill();
            let _ = process.wait();
        }
        if let Err(error) = self.directory.close() {
            eprintln!("xtask: cannot remove a service's directory: {error}");
        }
    }
}

fn running() -> MutexGuard<'static, Vec<ServerProcesses>> {
    SERVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TestServer {
    /// A server without processes yet, in a new directory below `home`. Directories of dead runs
    /// are removed.
    pub fn new(home: &Path) -> Result<TestServer> {
        end_on_signals()?;
        let mut running = running();
        let cannot = || format!("cannot make a directory in {}", home.display());
        std::fs::create_dir_all(home).with_context(cannot)?;
        // Until its lock is held, another run would remove the new directory as a dead run's.
        let gate = File::create(home.join("gate")).with_context(cannot)?;
        gate.lock().with_context(cannot)?;
        remove_directories_of_dead_runs(home);
        let directory = tempfile::Builder::new().prefix("of-").tempdir_in(home).with_context(cannot)?;
        let alive = File::create(directory.path().join(ALIVE)).with_context(cannot)?;
        alive.lock().with_context(cannot)?;
        let path = directory.path().to_owned();
        running.push(ServerProcesses { processes: Vec::new(), directory, _alive: alive });
        Ok(TestServer { directory: path, test_value: OsString::new() })
    }

    /// The directory of all its files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The value of the tests' variable.
    pub fn test_value(&self) -> &OsStr {
        &self.test_value
    }

    /// Sets the value of the tests' variable.
    pub fn set_test_value(&mut self, value: impl Into<OsString>) {
        self.test_value = value.into();
    }

    /// Starts a process that serves until the service ends. Its output goes to `NAME.out` in the
    /// directory.
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
            .with_context(|| format!("cannot write the output of {name}"))?;
        let err = out.try_clone().with_context(|| format!("cannot write the output of {name}"))?;
        // In a separate process group: Ctrl-C must reach xtask alone, which then ends the server.
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
            if let Some(status) = process.try_wait().with_context(|| format!("cannot check {name}"))? {
                let said = std::fs::read_to_string(self.directory.join(format!("{name}.out")));
                bail!("{name} has ended ({status}); its output: {}", said.unwrap_or_default().trim_end());
            }
        }
        Ok(())
    }

    /// Its processes.
    fn own<'a>(&self, running: &'a mut [ServerProcesses]) -> Result<&'a mut ServerProcesses> {
        let own = running.iter_mut().find(|running| running.directory.path() == self.directory);
        own.context("the service has ended")
    }

    /// Waits until `ready`. An error after `deadline`, or if a process ends.
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

impl Drop for TestServer {
    fn drop(&mut self) {
        let mut running = running();
        let own = running.iter().position(|running| running.directory.path() == self.directory);
        if let Some(own) = own {
            running.swap_remove(own).end();
        }
    }
}

/// The status of `GET /` on a local port. None without an answer.
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

/// From now on a signal that ends xtask stops all servers first.
fn end_on_signals() -> Result<()> {
    static WATCHING: Mutex<bool> = Mutex::new(false);
    let mut watching = WATCHING.lock().unwrap_or_else(PoisonError::into_inner);
    if *watching {
        return Ok(());
    }
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot watch for signals")?;
    // The thread runs as long as xtask, otherwise these signals would have no effect.
    std::thread::spawn(move || {
        for signal in signals.forever() {
            let mut running = running();
            running.drain(..).for_each(ServerProcesses::end);
            let _ = emulate_default_handler(signal);
        }
    });
    *watching = true;
    Ok(())
}

/// Removes directories whose xtask has ended.
fn remove_directories_of_dead_runs(home: &Path) {
    for entry in std::fs::read_dir(home).into_iter().flatten().flatten() {
        let Ok(alive) = File::open(entry.path().join(ALIVE)) else { continue };
        if alive.try_lock().is_ok()
            && let Err(error) = std::fs::remove_dir_all(entry.path())
        {
            eprintln!("xtask: cannot remove {}: {error}", entry.path().display());
        }
    }
}

/// Distinct free ports. Another process may take them first, so callers retry a failed start.
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
    use foreread_tier_testing::until;

    use super::*;

    /// Marks the child process of the test below.
    const HOME: &str = "FOREREAD_XTASK_SERVICE_HOME";
    const PATIENCE: Duration = Duration::from_secs(60);

    fn services(home: &Path) -> Vec<PathBuf> {
        let found = std::fs::read_dir(home).into_iter().flatten().map(|entry| entry.unwrap().path());
        found.filter(|path| path.is_dir()).collect()
    }

    /// Whether the process whose id is in the file is alive. A zombie is not.
    fn alive(file: &Path) -> bool {
        let id = std::fs::read_to_string(file).unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", id.trim())).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    }

    fn started(home: &Path, id: &Path) -> TestServer {
        let service = TestServer::new(home).unwrap();
        let script = format!("echo $$ >{0}.new && mv {0}.new {0} && exec sleep 600", id.display());
        service.start("sleeper", Command::new("sh").args(["-c", &script])).unwrap();
        service.wait("the sleeper", PATIENCE, || id.exists()).unwrap();
        service
    }

    #[test]
    fn dropped_server_ends_and_removes_its_directory() {
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
    fn ended_process_is_an_error_with_its_output() {
        let home = tempfile::tempdir().unwrap();
        let service = TestServer::new(home.path()).unwrap();
        service.start("short", Command::new("sh").args(["-c", "echo no room; exit 3"])).unwrap();
        let error = service.wait("nothing", PATIENCE, || false).unwrap_err().to_string();
        assert!(error.contains("short has ended") && error.contains("no room"), "{error}");
        let error = service.run(Command::new("sh").args(["-c", "echo why >&2; exit 1"])).unwrap_err();
        assert_eq!(error.to_string(), "`sh -c echo why >&2; exit 1` failed: why");
    }

    #[test]
    fn signal_to_xtask_ends_its_servers() {
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
            let name = "test_server::tests::signal_to_xtask_ends_its_servers";
            let mut child = Command::new(this)
                .args(["--exact", name])
                .env(HOME, home.path())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            until("it begins", || home.path().join("ready").exists());
            assert!(alive(&home.path().join("id")));
            let kill = format!("kill -{signal} {}", child.id());
            assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
            let status = child.wait().unwrap();
            assert!(!status.success(), "{signal}: {status}");
            until("its process ends", || !alive(&home.path().join("id")));
            // Only SIGKILL leaves the directory, for the next run to remove.
            assert_eq!(services(home.path()).len(), usize::from(signal == "KILL"), "{signal}");
            drop(TestServer::new(home.path()).unwrap());
            assert_eq!(services(home.path()).len(), 0, "{signal}");
        }
    }

    #[test]
    fn free_port_gives_no_status() {
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
