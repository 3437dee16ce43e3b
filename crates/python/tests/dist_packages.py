"""The packages of `packaging/dist`, installed and run. `.ci/soak dist` makes them and runs this."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bucket import bucket
from documents import ROOT

#: The directory of the packages.
PACKAGES = Path(os.environ["FOREREAD_DIST"])

# The deadline of a hang, not a measure of speed.
HANG = 300

#: A build from nothing on a machine of two cores.
BUILD = 3600

#: The versions of Python that the wheel promises.
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]

#: The sections of docs/install.md with shell blocks: where they run, and the program that they need.
SECTIONS = {
    "The wheel": ("packages", "python3"),
    "Pip from source": ("checkout", "cargo"),
    "The static binary": ("packages", "install"),
    "The container image": ("packages", "podman"),
    "Apptainer": ("packages", "apptainer"),
    "From source": ("checkout", "cargo"),
    "Build without a network": ("packages", "cargo"),
    "Check the files": ("packages", "sha256sum"),
}


def package(pattern: str) -> Path:
    """The package of that name."""
    found = sorted(PACKAGES.glob(pattern))
    if not found:
        pytest.skip(f"{pattern}: `packaging/dist` has not made it")
    return found[-1]


def done(*command: object, **options: object) -> str:
    """The output of a command that succeeds."""
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=HANG, check=False, **options)  # type: ignore[call-overload]
    assert ran.returncode == 0, f"{ran.stdout}{ran.stderr}"
    return str(ran.stdout)


def interpreter_of(version: str) -> str | None:
    """An interpreter of that version: from PATH, or pyenv's."""
    pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python{version}"))
    candidates = [found for found in [shutil.which(f"python{version}"), *map(str, pyenv)] if found]
    for candidate in candidates:
        # pyenv's shims exist for versions that are not chosen.
        if subprocess.run([candidate, "-c", "import venv, ensurepip"], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


@pytest.mark.parametrize("version", PYTHONS)
def test_wheel_works_in_a_clean_environment(version: str, directory: Path, tmp_path: Path) -> None:
    wheel = package("*_x86_64.whl")
    interpreter = interpreter_of(version)
    if interpreter is None:
        pytest.skip(f"needs Python {version} with venv")
    done(interpreter, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    done(python, "-m", "pip", "install", "--no-index", "--disable-pip-version-check", wheel)
    script = (
        "import sys, foreread\n"
        "with foreread.Loader(sys.argv[1], batch_size=8, epochs=2, seed=0) as loader:\n"
        "    print(sum(len(batch) for batch in loader), foreread.__version__)"
    )
    count, shown = done(python, "-c", script, directory, cwd=tmp_path).split()
    assert count == "200"
    assert done(tmp_path / "venv" / "bin" / "foreread", "--version", cwd=tmp_path).split()[:2] == ["foreread", shown]


@pytest.fixture
def root_directory(tmp_path: Path, directory: Path) -> Path:
    """A root directory with the static binary and a dataset, nothing else."""
    root = tmp_path / "root"
    root.mkdir()
    shutil.copy(package("*-x86_64-linux"), root / "foreread")
    (root / "foreread").chmod(0o755)
    shutil.copytree(directory, root / "data")
    return root


def inside(root: Path, *arguments: object, **environment: str) -> str:
    """The output of the command in that root directory."""
    change = ["chroot"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "chroot"]
    return done(*change, root, "/foreread", *arguments, env=environment | {"PATH": os.environ["PATH"]})


def test_static_binary_runs_in_an_empty_root_directory(root_directory: Path) -> None:
    assert inside(root_directory, "--version").startswith("foreread ")
    report = inside(root_directory, "load", "/data", "--epochs", "2", "--batch-size", "8", "--report", "json")
    assert '"samples"' in report
    (root_directory / "tmp").mkdir()
    assert "lower bound" in inside(root_directory, "demo")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_static_binary_reads_a_bucket(root_directory: Path, directory: Path, host: str) -> None:
    (root_directory / "etc").mkdir()
    # A name needs the file of names: without one, glibc asks a DNS server.
    (root_directory / "etc" / "hosts").write_text("127.0.0.1 localhost\n")
    with bucket("my-bucket", "train", directory) as environment:
        store = environment | {"AWS_ENDPOINT_URL": environment["AWS_ENDPOINT_URL"].replace("127.0.0.1", host)}
        inside(root_directory, "index", "s3://my-bucket/train", "--output", "/train.foreread", **store)
        read = ["load", "/train.foreread", "--epochs", "1", "--batch-size", "8", "--report", "json", "--digest"]
        from_bucket = inside(root_directory, *read, **store)
    assert '"digest"' in from_bucket


@pytest.fixture
def containers(tmp_path: Path) -> dict[str, str]:
    """Settings under which podman runs as root without more rights: no overlay mounts, no own network, no own limits."""
    limits = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    hard = {name: min(resource.getrlimit(which)[1] % (1 << 63), 4096) for name, which in limits.items()}
    ulimits = ", ".join(f'"{name}={most}:{most}"' for name, most in hard.items())
    settings = tmp_path / "containers.conf"
    settings.write_text(f'[containers]\nnetns = "host"\ndefault_ulimits = [{ulimits}]\n[engine]\nruntime = "runc"\n')
    return {"CONTAINERS_CONF": str(settings), "STORAGE_DRIVER": "vfs"}


def blocks() -> Iterator[tuple[str, str]]:
    """The shell blocks of docs/install.md, with their sections."""
    heading, code, within = "", list[str](), False
    for line in (ROOT / "docs" / "install.md").read_text().splitlines():
        if within and line == "```":
            yield heading, "\n".join(code)
            within, code = False, []
        elif within:
            code.append(line)
        elif line == "```sh":
            within = True
        elif line.startswith("## "):
            heading = line.removeprefix("## ")


def test_every_section_with_commands_is_known() -> None:
    assert [heading for heading, _ in blocks()] == list(SECTIONS)


@pytest.mark.parametrize(("heading", "block"), [pytest.param(*block, id=block[0]) for block in blocks()])
def test_commands_of_the_document_run(
    heading: str, block: str, tmp_path: Path, directory: Path, containers: dict[str, str]
) -> None:
    where, program = SECTIONS[heading]
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")
    home = tmp_path / "home"
    home.mkdir()
    if where == "packages":
        working = tmp_path / "packages"
        shutil.copytree(PACKAGES, working, copy_function=os.link if same_device(tmp_path) else shutil.copy)
    else:
        working = tmp_path / "checkout"
        done("git", "clone", "--quiet", "--shared", ROOT, working)
    # Cargo and rustup stay where they are, whatever the home directory is.
    real = Path.home()
    tools = {"CARGO_HOME": str(real / ".cargo"), "RUSTUP_HOME": str(real / ".rustup")}
    environment = tools | os.environ | containers | {"HOME": str(home)}
    if where == "checkout":
        # Both ways of the checkout compile the same dependencies.
        environment["CARGO_TARGET_DIR"] = str(ROOT / "target")
        block = block.replace("target/release", f"{ROOT}/target/release")
    code = block.replace("/data/train:", f"{directory}:").replace("python3 -m", f"{sys.executable} -m")
    command = ["bash", "-eu", "-c", code]
    if heading == "Build without a network":
        # A namespace without a network: what is missing in the archive cannot be fetched.
        command = ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--net", *command]
        environment["CARGO_HOME"] = str(home / "cargo")
    ran = subprocess.run(
        command, cwd=working, env=environment, capture_output=True, text=True, timeout=BUILD, check=False
    )
    assert ran.returncode == 0, f"{ran.stdout}{ran.stderr}"


def same_device(directory: Path) -> bool:
    """Whether files of the packages can be linked there."""
    return directory.stat().st_dev == PACKAGES.stat().st_dev
