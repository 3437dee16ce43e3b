//! Object stores in one process each, for tests: moto, another S3 server than Ceph's, and Azurite, Microsoft's emulator
//! of Azure Blob Storage. Both keep what they store in memory.
//!
//! Decision: moto does not check signatures, which Ceph's gateway does. It is here because it pages, orders, encodes and
//! refuses in its own way. Azurite checks them.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::needs::Source;
use crate::service::{Service, free_ports, status};
use crate::workspace::Workspace;

/// How long one may take to start: seconds, and more where the machine is busy.
const DEADLINE: Duration = Duration::from_secs(180);

const MOTO_AT: &str = "venv-moto";
const AZURITE_AT: &str = "azurite";
const AZURITE_BLOB: &str = "azurite-blob";

/// Where moto comes from.
pub const MOTO: Source =
    Source::Environment { directory: MOTO_AT, with_system: false, packages: &["moto[s3,server]==5.2.5"] };

/// Where Azurite comes from. Later versions need a newer Node.js than Debian's.
pub const AZURITE: Source =
    Source::Node { directory: AZURITE_AT, package: "azurite", version: "3.35.0", program: AZURITE_BLOB };

/// Starts moto; the service tells its address.
pub fn moto(workspace: &Workspace) -> Result<Service> {
    let program = workspace.environment(MOTO_AT).join("bin/moto_server");
    started("moto", workspace, |port| {
        let mut command = Command::new(program);
        command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
        command
    })
}

/// Starts Azurite; the service tells its address. Its account and key are those that all emulators have.
pub fn azurite(workspace: &Workspace) -> Result<Service> {
    let program = workspace.environment(AZURITE_AT).join("node_modules/.bin").join(AZURITE_BLOB);
    started("Azurite", workspace, |port| {
        let mut command = Command::new(program);
        command.args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string()]);
        command.args(["--inMemoryPersistence", "--disableTelemetry", "--silent", "--skipApiVersionCheck"]);
        command
    })
}

fn started(name: &str, workspace: &Workspace, command: impl FnOnce(u16) -> Command) -> Result<Service> {
    let start = || -> Result<Service> {
        let mut service = Service::new(&workspace.services())?;
        let [port] = free_ports()?;
        let mut command = command(port);
        service.start(name, &mut command)?;
        service.wait(name, DEADLINE, || status(port).is_some())?;
        service.tell(format!("http://127.0.0.1:{port}"));
        Ok(service)
    };
    start().with_context(|| format!("{name} cannot be started"))
}
