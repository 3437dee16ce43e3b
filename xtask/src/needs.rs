//! Tools that the steps need in addition to Cargo and a C compiler: name, detection, installation.
//!
//! Convention: tests that need a tool live in a module of the integration tests named after it
//! (`integration-tests/tests/it/needs_torch.rs`), and are marked `#[ignore = "needs PyTorch"]`. So
//! `cargo test` shows what each lacks. An environment variable gives them the tool's path.
//! `cargo xtask test --all` sets the variables and runs the ignored tests, too. Servers are started
//! before and stopped afterwards. A test that did not run is therefore never counted as passed. The
//! price is one name in two places. A house test compares them.

use std::ffi::OsString;
use std::process::Command;

use anyhow::Result;

use crate::cargo::{answers, cargo};
use crate::service::TestServer;
use crate::workspace::Workspace;
use crate::{ceph, dist, emulators, formats, package, unchanged};

/// A tool or right that a step or some tests need.
#[derive(Debug)]
pub struct Need {
    /// Its name in messages.
    pub name: &'static str,
    /// The step that cannot run fully without it.
    pub step: &'static str,
    /// The tests that need it, if any.
    pub tests: Option<Tests>,
    /// How to detect and how to install it.
    pub source: NeedSource,
}

/// Tests that need an outside tool.
#[derive(Debug)]
pub struct Tests {
    /// Their module in the integration tests.
    pub module: &'static str,
    /// The variable with the path of the tool.
    pub variable: &'static str,
    /// Starts the server that the tests need. The variable then has its address.
    pub server: Option<fn(&Workspace) -> Result<TestServer>>,
}

/// How to detect and install a need.
#[derive(Debug)]
pub enum NeedSource {
    /// A component of the Rust toolchain: `cargo <command>`.
    Component { command: &'static str, component: &'static str },
    /// A Debian package that brings a program.
    Program { program: &'static str, package: &'static str },
    /// A Debian package that brings a Python module for the system's Python.
    Module { module: &'static str, package: &'static str },
    /// Pinned Python packages in a virtual environment below the target directory, with or without
    /// Debian's. A word that begins with `-` is an option of pip.
    Environment { directory: &'static str, with_system: bool, packages: &'static [&'static str] },
    /// A probe script that must succeed in an empty directory with one of the command prefixes
    /// `ways`. The tests get that prefix. Needs these Debian packages, and rights that no package
    /// gives.
    Ways {
        ways: &'static [&'static str],
        script: &'static str,
        packages: &'static [&'static str],
        remedy: &'static str,
    },
    /// Debian packages that bring several programs.
    Programs { programs: &'static [&'static str], packages: &'static [&'static str] },
    /// A pinned npm package with a program, installed below the target directory.
    Node { directory: &'static str, package: &'static str, version: &'static str, program: &'static str },
    /// A crate with a program of its name, compiled once and kept under the target directory.
    Crate { name: &'static str, version: &'static str },
}

/// Debian's Python: another interpreter in PATH does not see Debian's packages.
pub const PYTHON: &str = "/usr/bin/python3";

/// Makes Debian's packages visible in a virtual environment.
pub const SYSTEM: &str = "--system-site-packages";

/// Succeeds if every argument, `name==version` or `name[extra]==version`, is installed. Options are
/// left out.
const PINNED: &str = "import sys, importlib.metadata as m\n\
    for pin in sys.argv[1:]:\n    \
        if pin[0] == '-': continue\n    \
        name, version = pin.split('==')\n    \
        assert m.version(name.split('[')[0]) == version";

/// All needs, in installation order.
pub const NEEDS: &[Need] = &[
    Need {
        name: "rustfmt",
        step: "fmt",
        tests: None,
        source: NeedSource::Component { command: "fmt", component: "rustfmt" },
    },
    Need {
        name: "clippy",
        step: "clippy",
        tests: None,
        source: NeedSource::Component { command: "clippy", component: "clippy" },
    },
    Need {
        name: "PyTorch",
        step: "test",
        tests: Some(Tests { module: "needs_torch", variable: "FOREREAD_TEST_PYTHON_TORCH", server: None }),
        source: NeedSource::Module { module: "torch", package: "python3-torch" },
    },
    Need {
        name: "strace",
        step: "test",
        tests: Some(Tests { module: "needs_strace", variable: "FOREREAD_TEST_STRACE", server: None }),
        source: NeedSource::Program { program: "strace", package: "strace" },
    },
    Need {
        name: "GNU tar",
        step: "test",
        tests: Some(Tests { module: "needs_tar", variable: "FOREREAD_TEST_TAR", server: None }),
        source: NeedSource::Program { program: "tar", package: "tar" },
    },
    Need {
        name: "the right to mount",
        step: "test",
        tests: Some(Tests { module: "needs_mounts", variable: "FOREREAD_TEST_MOUNTS", server: None }),
        source: NeedSource::Ways {
            // As root, or where users may create namespaces.
            ways: &["unshare --mount", "unshare --map-root-user --mount"],
            script: "mount -t tmpfs tmpfs .",
            packages: &[],
            remedy: "sudo --preserve-env cargo xtask test --all",
        },
    },
    Need {
        name: "the right to make memory cgroups",
        step: "test",
        tests: Some(Tests { module: "needs_cgroup", variable: "FOREREAD_TEST_CGROUP", server: None }),
        source: NeedSource::Ways {
            ways: &["unshare --mount"],
            script: "mkdir on && { mount -t cgroup -o memory cgroup on || mount -t cgroup2 cgroup2 on; } \
                     && mkdir on/foreread-$$ && ls on/foreread-$$ | grep -q -e memory.max -e memory.limit \
                     && rmdir on/foreread-$$",
            packages: &[],
            remedy: "sudo --preserve-env cargo xtask test --all",
        },
    },
    Need {
        name: "the right to mount an ext4 image",
        step: "test",
        tests: Some(Tests { module: "needs_ext4", variable: "FOREREAD_TEST_EXT4", server: None }),
        source: NeedSource::Ways {
            ways: &["unshare --mount"],
            script: "truncate -s 8M image && mkfs.ext4 -q -F image && mkdir on && mount -o loop image on",
            packages: &["e2fsprogs"],
            remedy: "sudo --preserve-env cargo xtask test --all",
        },
    },
    Need {
        name: "the right to mount a btrfs image",
        step: "test",
        tests: Some(Tests { module: "needs_btrfs", variable: "FOREREAD_TEST_BTRFS", server: None }),
        source: NeedSource::Ways {
            ways: &["unshare --mount"],
            script: "truncate -s 128M image && mkfs.btrfs -q image && mkdir on && mount -o loop image on \
                     && btrfs quota enable on",
            packages: &["btrfs-progs"],
            remedy: "sudo apt-get install btrfs-progs && sudo --preserve-env cargo xtask test --all",
        },
    },
    Need {
        name: "bindfs",
        step: "test",
        tests: Some(Tests { module: "needs_bindfs", variable: "FOREREAD_TEST_BINDFS", server: None }),
        source: NeedSource::Ways {
            ways: &["unshare --mount"],
            script: "mkdir from on && bindfs --chmod-ignore from on",
            packages: &["bindfs"],
            remedy: "sudo apt-get install bindfs && sudo --preserve-env cargo xtask test --all",
        },
    },
    Need {
        name: "FUSE, and the right to mount with it",
        step: "test",
        tests: Some(Tests { module: "needs_fuse", variable: "FOREREAD_TEST_FUSE", server: None }),
        source: NeedSource::Ways {
            // As root, or by the program that mounts for users.
            ways: &["unshare --mount", "env"],
            script: "exec 3<>/dev/fuse && mkdir on && { mount -i -t fuse -o \
                     fd=3,rootmode=40000,user_id=0,group_id=0 probe on || { test $(id -u) != 0 && command -v \
                     fusermount3; }; }",
            packages: &["fuse3"],
            remedy: "sudo apt-get install fuse3",
        },
    },
    Need {
        name: "Ceph's S3 gateway",
        step: "test",
        tests: Some(Tests {
            module: "needs_ceph",
            variable: "FOREREAD_TEST_CEPH",
            server: Some(ceph::start),
        }),
        source: NeedSource::Programs { programs: ceph::PROGRAMS, packages: ceph::PACKAGES },
    },
    Need {
        name: "Chromium",
        step: "test",
        tests: Some(Tests { module: "needs_chromium", variable: "FOREREAD_TEST_CHROMIUM", server: None }),
        source: NeedSource::Program { program: "chromium", package: "chromium" },
    },
    Need {
        name: "Open MPI",
        step: "test",
        tests: Some(Tests { module: "needs_mpi", variable: "FOREREAD_TEST_MPIRUN", server: None }),
        source: NeedSource::Program { program: "mpirun", package: "openmpi-bin" },
    },
    Need {
        name: "iproute2",
        step: "test",
        tests: None,
        source: NeedSource::Program { program: "ss", package: "iproute2" },
    },
    Need {
        name: "the right to make network namespaces",
        step: "test",
        tests: Some(Tests { module: "needs_network", variable: "FOREREAD_TEST_NETWORK", server: None }),
        source: NeedSource::Ways {
            // In a PID namespace, so that no process outlives a test.
            ways: &["unshare --net --mount --pid --fork --kill-child"],
            script: "ip netns add foreread-probe && ip netns del foreread-probe && \
                     ip link add probe0 type veth peer name probe1 && tc qdisc add dev probe0 root tbf rate \
                     1gbit burst 512k latency 20ms",
            packages: &[],
            remedy: "sudo --preserve-env cargo xtask test --all",
        },
    },
    Need {
        name: "Python's venv",
        step: "test",
        tests: None,
        source: NeedSource::Module { module: "ensurepip", package: "python3-venv" },
    },
    Need {
        name: "pandas, polars and DuckDB",
        step: "test",
        tests: Some(Tests { module: "needs_arrow", variable: "FOREREAD_TEST_PYTHON_ARROW", server: None }),
        source: NeedSource::Environment {
            directory: "venv",
            with_system: false,
            packages: &["pyarrow==26.0.1", "pandas==3.1.1", "polars==2.1.0", "duckdb==2.0.0"],
        },
    },
    Need {
        name: "moto, an S3 server",
        step: "test",
        tests: Some(Tests {
            module: "needs_moto",
            variable: "FOREREAD_TEST_MOTO",
            server: Some(emulators::moto),
        }),
        source: emulators::MOTO,
    },
    Need {
        name: "npm",
        step: "test",
        tests: None,
        source: NeedSource::Program { program: "npm", package: "npm" },
    },
    Need {
        name: "Azurite, Azure's emulator",
        step: "test",
        tests: Some(Tests {
            module: "needs_azurite",
            variable: "FOREREAD_TEST_AZURITE",
            server: Some(emulators::azurite),
        }),
        source: emulators::AZURITE,
    },
    Need {
        name: "PyTorch for the package",
        step: "python",
        tests: None,
        source: NeedSource::Module { module: "torch", package: "python3-torch" },
    },
    Need {
        name: "torchvision",
        step: "python",
        tests: None,
        source: NeedSource::Module { module: "torchvision", package: "python3-torchvision" },
    },
    Need {
        name: "Python's venv for the package",
        step: "python",
        tests: None,
        source: NeedSource::Module { module: "ensurepip", package: "python3-venv" },
    },
    Need {
        name: "nasm, for JPEGs at full speed",
        step: "python",
        tests: None,
        source: NeedSource::Program { program: "nasm", package: "nasm" },
    },
    Need {
        name: "curl for commands of documents",
        step: "python",
        tests: None,
        source: NeedSource::Program { program: "curl", package: "curl" },
    },
    Need {
        name: "maturin, pytest, mypy and what the package's tests import",
        step: "python",
        tests: None,
        source: crate::python::ENVIRONMENT,
    },
    Need {
        name: "Slurm",
        step: "python",
        tests: None,
        source: NeedSource::Ways {
            // In a PID namespace, so that no job outlives a test.
            ways: &["unshare --pid --mount-proc --fork --kill-child"],
            script: "munged --version && slurmctld -V && slurmd -V && command -v sbatch",
            packages: &["munge", "slurm-client", "slurmctld", "slurmd"],
            remedy: "sudo apt-get install munge slurm-client slurmctld slurmd && \
                     sudo --preserve-env cargo xtask test --all",
        },
    },
    Need {
        name: "the newest PyTorch, and frameworks",
        step: package::STEP,
        tests: None,
        source: package::FRAMEWORKS,
    },
    Need {
        name: "writers of HDF5, LMDB, Arrow and Parquet",
        step: formats::STEP,
        tests: None,
        source: formats::WRITERS,
    },
    Need {
        name: "PyTorch for the writers",
        step: formats::STEP,
        tests: None,
        source: NeedSource::Module { module: "torch", package: "python3-torch" },
    },
    Need {
        name: "Pillow for the writers",
        step: formats::STEP,
        tests: None,
        source: NeedSource::Module { module: "PIL", package: "python3-pil" },
    },
    Need {
        name: "writers of LitData, MDS and Megatron",
        step: formats::STEP,
        tests: None,
        source: formats::TABLES,
    },
    Need {
        name: "programs that `foreread run` serves",
        step: unchanged::STEP,
        tests: None,
        source: unchanged::PROGRAMS,
    },
    Need {
        name: "readers that `foreread run` serves",
        step: unchanged::STEP,
        tests: None,
        source: unchanged::READERS,
    },
    Need {
        name: "PyTorch for its example",
        step: unchanged::STEP,
        tests: None,
        source: NeedSource::Module { module: "torch", package: "python3-torch" },
    },
    Need {
        name: "torchvision for PyTorch's example",
        step: unchanged::STEP,
        tests: None,
        source: NeedSource::Module { module: "torchvision", package: "python3-torchvision" },
    },
    Need {
        name: "nasm, for JPEGs at full speed in wheels",
        step: dist::STEP,
        tests: None,
        source: NeedSource::Program { program: "nasm", package: "nasm" },
    },
    Need { name: "tools for wheels", step: dist::STEP, tests: None, source: dist::ENVIRONMENT },
    Need {
        name: "buildah and podman",
        step: dist::STEP,
        tests: None,
        source: NeedSource::Programs {
            // podman's other runtime, crun, refuses machines with both versions of cgroups.
            programs: &["buildah", "podman", "runc"],
            packages: &["buildah", "podman", "runc"],
        },
    },
    Need {
        name: "cargo-deny",
        step: "deny",
        tests: None,
        source: NeedSource::Crate { name: "cargo-deny", version: "0.20.2" },
    },
];

impl Need {
    /// The program, if it is installed and runs. For a server with several programs: all of them.
    pub fn find(&self, workspace: &Workspace) -> Option<OsString> {
        let program = match &self.source {
            NeedSource::Component { command, .. } => {
                return answers(&mut cargo(workspace, [*command, "--version"])).then(|| (*command).into());
            }
            NeedSource::Program { program, .. } => OsString::from(program),
            NeedSource::Module { module, .. } => {
                let import = format!("import {module}");
                return answers(Command::new(PYTHON).args(["-c", &import])).then(|| PYTHON.into());
            }
            NeedSource::Environment { directory, packages, .. } => {
                let python = workspace.environment(directory).join("bin/python");
                let there = answers(Command::new(&python).args(["-c", PINNED]).args(*packages));
                return there.then(|| python.into_os_string());
            }
            NeedSource::Ways { ways, script, .. } => {
                return ways.iter().find(|way| works(way, script)).map(OsString::from);
            }
            NeedSource::Programs { programs, .. } => {
                let there = |program: &&str| answers(Command::new(program).arg("--version"));
                return programs.iter().all(there).then(|| programs.join(" ").into());
            }
            NeedSource::Node { directory, package, version, program } => {
                let modules = workspace.environment(directory).join("node_modules");
                let about = std::fs::read_to_string(modules.join(package).join("package.json")).ok()?;
                let about: serde_json::Value = serde_json::from_str(&about).ok()?;
                let pinned = about.get("version").and_then(|found| found.as_str()) == Some(version);
                return pinned.then(|| modules.join(".bin").join(program).into_os_string());
            }
            NeedSource::Crate { name, .. } => {
                let own = workspace.tools().join("bin").join(name);
                if own.exists() { own.into_os_string() } else { OsString::from(name) }
            }
        };
        answers(Command::new(&program).arg("--version")).then_some(program)
    }

    /// Starts the server, if this need is one. It is stopped on drop.
    pub fn start(&self, workspace: &Workspace) -> Result<Option<TestServer>> {
        self.tests.as_ref().and_then(|tests| tests.server).map(|start| start(workspace)).transpose()
    }

    /// The command that installs it.
    pub fn how_to_get(&self) -> String {
        match &self.source {
            NeedSource::Component { component, .. } => format!("rustup component add {component}"),
            NeedSource::Program { package, .. } | NeedSource::Module { package, .. } => {
                format!("apt-get install {package}")
            }
            NeedSource::Programs { packages, .. } => format!("apt-get install {}", packages.join(" ")),
            NeedSource::Node { directory, package, version, .. } => {
                format!("npm install --prefix target/{directory} {package}@{version}")
            }
            NeedSource::Environment { directory, with_system, packages } => {
                let (packages, system) = (packages.join(" "), if *with_system { SYSTEM } else { "" });
                let at = format!("target/{directory}");
                let venv = ["python3 -m venv", system, &at].map(str::trim).join(" ").replace("  ", " ");
                format!("{venv} && {at}/bin/pip install {packages}")
            }
            NeedSource::Ways { remedy, .. } => (*remedy).to_owned(),
            NeedSource::Crate { name, version } => format!("cargo install --locked {name}@{version}"),
        }
    }

    /// One line for a skipped step: the need and the command that installs it.
    pub fn line(&self) -> String {
        let getter = match self.step {
            package::STEP | dist::STEP | formats::STEP | unchanged::STEP => self.step,
            _ => "test --all",
        };
        format!("needs {}: `{}`, or let `cargo xtask {getter}` get it", self.name, self.how_to_get())
    }
}

/// The need of a step that is a single tool.
pub fn tool(step: &str) -> Option<&'static Need> {
    NEEDS.iter().find(|need| need.step == step && need.tests.is_none())
}

/// The needs of tests, each with its tests.
pub fn of_tests() -> impl Iterator<Item = (&'static Need, &'static Tests)> {
    NEEDS.iter().filter_map(|need| Some((need, need.tests.as_ref()?)))
}

/// Whether `script` succeeds with the command prefix `way` in an empty directory.
fn works(way: &str, script: &str) -> bool {
    let Ok(directory) = tempfile::tempdir() else { return false };
    let mut words = way.split(' ');
    words.next().is_some_and(|program| {
        answers(Command::new(program).args(words).args(["sh", "-c", script]).current_dir(&directory))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_and_variables_follow_the_convention() {
        let mut modules: Vec<_> = of_tests().map(|(_, tests)| tests.module).collect();
        let mut variables: Vec<_> = of_tests().map(|(_, tests)| tests.variable).collect();
        let count = modules.len();
        assert!(modules.iter().all(|module| module.starts_with("needs_")));
        assert!(variables.iter().all(|variable| variable.starts_with("FOREREAD_TEST_")));
        modules.sort_unstable();
        modules.dedup();
        variables.sort_unstable();
        variables.dedup();
        assert_eq!((modules.len(), variables.len()), (count, count));
    }

    #[test]
    fn every_package_of_the_environment_is_pinned() {
        for need in NEEDS {
            if let NeedSource::Environment { packages, .. } = need.source {
                let is_pinned = |word: &&str| word.contains("==") || word.starts_with('-');
                assert!(packages.iter().all(is_pinned), "{packages:?}");
            }
        }
    }

    #[test]
    fn way_works_if_its_probe_succeeds() {
        assert!(works("env A=b", "test $A = b && touch here"));
        assert!(!works("env A=b", "test $A = c") && !works("foreread-no-such-program", "true"));
    }

    #[test]
    fn skip_line_names_the_need_and_its_remedy() {
        for need in NEEDS {
            let line = need.line();
            assert!(line.contains(need.name) && line.contains(&need.how_to_get()) && !line.contains('\n'));
        }
    }
}
