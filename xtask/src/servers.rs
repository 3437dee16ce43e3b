//! The servers of tests: Ceph's gateway (`ceph`), and object stores in one process each. moto is
//! another S3 server than Ceph's. Azurite is Microsoft's emulator of Azure Blob Storage. They keep
//! their objects in memory. `.ci/tools` installs them.
//!
//! Decision: moto does not check signatures, unlike Ceph's gateway and Azurite. It is here because
//! its paging, order, encoding and errors differ from Ceph's.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cargo::{cannot_start, forget_own_package};
use crate::ceph;
use crate::test_server::{TestServer, free_ports, status};
use crate::workspace::Workspace;

/// Timeout for the start. It takes seconds, more on a busy machine.
const DEADLINE: Duration = Duration::from_secs(180);

/// Arguments of `servers`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The command and its arguments. It finds each server by the variable that its tests read
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<String>,
}

/// Runs a command with all servers. True if it succeeded.
pub fn run(args: &Args) -> Result<bool> {
    let workspace = Workspace::load()?;
    let [program, words @ ..] = &args.command[..] else { return Ok(false) };
    let mut command = Command::new(program);
    command.args(words);
    forget_own_package(&mut command);
    // They end when they are dropped.
    let servers = [
        (ceph::VARIABLE, ceph::start(&workspace, ceph::ROOM)?),
        ("FOREREAD_TEST_MOTO", moto(&workspace)?),
        ("FOREREAD_TEST_AZURITE", azurite(&workspace)?),
    ];
    command.envs(servers.iter().map(|(variable, server)| (variable, server.test_value())));
    let status = command.status().with_context(|| cannot_start(&command))?;
    Ok(status.success())
}

/// Starts moto. The value for tests is its address.
fn moto(workspace: &Workspace) -> Result<TestServer> {
    let program = workspace.target.join("moto/bin/moto_server");
    started("moto", workspace, |port| {
        let mut command = Command::new(program);
        command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
        command
    })
}

/// Starts Azurite. The value for tests is its address. Account and key are the emulators'
/// well-known ones.
fn azurite(workspace: &Workspace) -> Result<TestServer> {
    let program = workspace.target.join("azurite/node_modules/.bin/azurite-blob");
    started("Azurite", workspace, |port| {
        let mut command = Command::new(program);
        command.args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string()]);
        command.args(["--inMemoryPersistence", "--disableTelemetry", "--silent", "--skipApiVersionCheck"]);
        command
    })
}

fn started(name: &str, workspace: &Workspace, command: impl FnOnce(u16) -> Command) -> Result<TestServer> {
    let start = || -> Result<TestServer> {
        let mut service = TestServer::new(&workspace.services())?;
        let [port] = free_ports()?;
        let mut command = command(port);
        service.start(name, &mut command)?;
        service.wait(name, DEADLINE, || status(port).is_some())?;
        service.set_test_value(format!("http://127.0.0.1:{port}"));
        Ok(service)
    };
    start().with_context(|| format!("{name} cannot be started"))
}
