//! The container image with the command, and the definition for Apptainer.
//!
//! Decision: the image holds the static command and root certificates, and nothing else, so it is
//! built without a base image. buildah makes it, because it needs no daemon. The `Dockerfile` is an
//! ordinary one, and its first stage compiles the command where base images can be fetched. The
//! price: there is no shell in the image.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::{Part, Release, scratch, succeed, wheel};
use crate::cargo::answers;

/// The root certificates of this machine, as Debian and others have them.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Options that work without a daemon, namespaces or overlay mounts.
const STORAGE: &[&str] = &["--storage-driver", "vfs"];

/// Builds the image from the static command, as an archive that `docker load` and `podman load`
/// read.
pub fn make(release: &Release<'_>) -> Result<Part> {
    let skipped = |why: &str| Ok(Part::Skipped(why.to_owned()));
    if !answers(Command::new("buildah").arg("--version")) {
        return skipped("needs buildah: `apt-get install buildah`");
    }
    let binary = release.output.join(format!("foreread-{}-x86_64-linux", release.version));
    if !binary.exists() {
        return skipped("needs the static binary: `cargo xtask dist`");
    }
    if !Path::new(CERTIFICATES).exists() {
        return skipped("needs root certificates: `apt-get install ca-certificates`");
    }
    let context = scratch(release.workspace, "image")?;
    std::fs::copy(&binary, context.join("foreread")).context("cannot copy the command")?;
    std::fs::copy(CERTIFICATES, context.join("ca-certificates.crt")).context("cannot copy certificates")?;
    let name = format!("foreread:{}", release.version);
    let mut build = Command::new("buildah");
    build.args(STORAGE).args(["build", "--isolation", "chroot", "--target", "prebuilt", "--tag", &name]);
    build.arg("--file").arg(release.workspace.root.join("Dockerfile"));
    succeed(build.arg(&context))?;
    let made = release.output.join(format!("foreread-{}-image.tar", release.version));
    // buildah does not replace an archive.
    if made.exists() {
        std::fs::remove_file(&made).context("cannot replace the last image")?;
    }
    let mut push = Command::new("buildah");
    push.args(STORAGE).args(["push", &name]).arg(format!("docker-archive:{}:{name}", made.display()));
    succeed(&mut push)?;
    Ok(Part::Made(made, "x86-64, for `docker load` and `podman load`".to_owned()))
}

/// Copies the definition that adds the wheel to an image with Python. Apptainer is in no
/// distribution that the tests run on, so the definition is not tested.
pub fn apptainer(release: &Release<'_>) -> Result<Part> {
    if wheel::wheel_for(release, "x86_64").is_none() {
        return Ok(Part::Skipped("needs the wheel: `cargo xtask dist`".to_owned()));
    }
    let made = release.output.join("foreread.def");
    let definition = release.workspace.root.join("packaging/foreread.def");
    std::fs::copy(definition, &made).context("cannot copy the definition")?;
    let command = "apptainer build --build-arg base=train.sif foreread.sif foreread.def";
    Ok(Part::Made(made, format!("untested; next to the wheel: `{command}`")))
}
