//! Object stores in one process each, for tests: moto, another S3 server than Ceph's, and Azurite,
//! Microsoft's emulator of Azure Blob Storage. Both keep what they store in memory.
//!
//! Decision: moto does not check signatures, unlike Ceph's gateway and Azurite. It is here because
//! its paging, order, encoding and errors differ from Ceph's.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::needs::NeedSource;
use crate::service::{TestServer, free_ports, status};
use crate::workspace::Workspace;

/// Timeout for the start. It takes seconds, more on a busy machine.
const DEADLINE: Duration = Duration::from_secs(180);

const MOTO_AT: &str = "venv-moto";
const AZURITE_AT: &str = "azurite";
const AZURITE_BLOB: &str = "azurite-blob";

/// The source of moto.
pub const MOTO: NeedSource =
    NeedSource::Environment { directory: MOTO_AT, with_system: false, packages: &["moto[s3,server]==5.2.5"] };

/// The source of Azurite. Later versions need a newer Node.js than Debian's.
pub const AZURITE: NeedSource =
    NeedSource::Node { directory: AZURITE_AT, package: "azurite", version: "3.35.0", program: AZURITE_BLOB };

/// Starts moto. The value for tests is its address.
pub fn moto(workspace: &Workspace) -> Result<TestServer> {
    let program = workspace.environment(MOTO_AT).join("bin/moto_server");
    started("moto", workspace, |port| {
        let mut command = Command::new(program);
        command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
        command
    })
}

/// Starts Azurite. The value for tests is its address. Account and key are the emulators'
/// well-known ones.
pub fn azurite(workspace: &Workspace) -> Result<TestServer> {
    let program = workspace.environment(AZURITE_AT).join("node_modules/.bin").join(AZURITE_BLOB);
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
