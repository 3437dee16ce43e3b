"""Runs the shell blocks of a document, in order, in one shell.

    commands.py DOCUMENT IMAGES SCRATCH

What names a place of the reader's is replaced by a place here, and what takes a cluster (a launcher, a scheduler) by a
stand-in of this file, which starts two ranks on this machine as the real one does. A block is left out if the comment above it
says why: `<!-- not run: REASON -->`. `foreread` is the command of this workspace.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from slurm_cluster import free_ports

ROOT = Path(__file__).parents[3]

#: Places and sizes of the reader's, and theirs here.
PLACES = {
    "/lustre/project/imagenet/train": "{images}",
    "/data/train": "{images}",
    "/local/scratch": "{scratch}/disk",
    "http://minio.example.org:9000": "$STORE",
    "--compute-ms 210": "--compute-ms 2",
    "--epochs 90 ": "--epochs 2 ",
    'epochs, "90"': 'epochs, "2"',
    "foreread calibrate ": "foreread calibrate --seconds 3 --origin-bytes 16MiB ",
    "--nnodes 2 --node_rank $N": "--nnodes 1 --node_rank 0",
    "--master_addr node0": "--master_addr 127.0.0.1",
    "/cache=": "{scratch}/cache=",
    "FOREREAD_INTERFACE=ib0": "FOREREAD_INTERFACE=lo",
    "-- python train.py": "-- sh -c 'cat {images}/*/* > read'",
    "-- ./reader ": "-- du --summarize ",
    "--memory 64GiB": "--memory 64MiB",
    "--disk $TMPDIR=": "--disk {scratch}/disk=",
}

#: Documents whose commands are run elsewhere: by `.ci/soak dist`, and where the settings are defined.
ELSEWHERE = {"install.md", "settings.md"}

#: The ranks of each job.
RANKS = 2

BLOCK = re.compile(r"^(?:<!-- not run: (?P<why>[^\n]+) -->\n)?```sh\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(document: Path) -> list[str]:
    """The blocks that are run."""
    return [found["code"] for found in BLOCK.finditer(document.read_text()) if not found["why"]]


def command() -> str | None:
    """The path of `foreread`: the wheel's, or else the workspace's."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    places = [Path(sys.executable).parent, target / "debug"]
    return shutil.which("foreread", path=os.pathsep.join(map(str, places)))


def script(document: Path, images: str, scratch: str) -> str:
    code = "\n".join(blocks(document))
    for place, here in PLACES.items():
        code = code.replace(place, here.format(images=images, scratch=scratch))
    # An agent that a document leaves to the reader's jobs ends here.
    return "set -euo pipefail\ntrap 'foreread agent stop > /dev/null 2>&1 || true' EXIT\n" + code


def run(document: Path, images: Path, scratch: Path) -> subprocess.CompletedProcess[str]:
    """Runs a document's blocks in a directory that has the repository's examples."""
    programs = scratch / "bin"
    programs.mkdir(parents=True)
    for stand_in in STAND_INS:
        program = programs / stand_in
        program.write_text(f"#!/bin/sh\nexec {sys.executable} {__file__} --as {stand_in} \"$@\"\n")
        program.chmod(0o755)
    found = command()
    assert found is not None
    (programs / "foreread").symlink_to(found)
    for name in ["examples", "crates", "xtask"]:
        (scratch / name).symlink_to(ROOT / name)
    (scratch / "disk").mkdir()
    (scratch / "packaging").mkdir()
    (scratch / "packaging" / "dist").symlink_to(programs / "dist")
    launched = ("RANK", "WORLD", "LOCAL_", "MASTER", "SLURM", "OMPI", "PMI", "FOREREAD")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(launched)}
    environment |= {
        "PATH": f"{programs}{os.pathsep}{environment['PATH']}",
        "TMPDIR": str(scratch / "disk"),
        "STORE": environment.get("AWS_ENDPOINT_URL", ""),
        "OMP_NUM_THREADS": "1",
    }
    # An agent of these commands is not that of other tests. Sockets have short paths.
    with tempfile.TemporaryDirectory(dir="/tmp") as runtime:
        return subprocess.run(
            ["bash", "-c", script(document, str(images), str(scratch))],
            cwd=scratch,
            env=environment | {"XDG_RUNTIME_DIR": runtime},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


# ---- stand-ins for what a cluster has; each is a program that the blocks start ----


def together(processes: list[tuple[list[str], dict[str, str]]]) -> int:
    """Starts processes with more variables, and waits for all. The highest status, as of srun."""
    started = [subprocess.Popen(words, env=os.environ | more) for words, more in processes]
    return max(process.wait() for process in started)


def srun(words: list[str]) -> int:
    ranks = int(os.environ.get("SLURM_NTASKS", RANKS))
    while words[0].startswith("--"):
        ranks = int(words.pop(0).removeprefix("--ntasks="))
    job = {"SLURM_NTASKS": str(ranks), "SLURM_JOB_ID": "1", "SLURM_STEP_TASKS_PER_NODE": str(ranks), "SLURM_STEP_NUM_NODES": "1"}
    return together([(words, job | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}) for rank in range(ranks)])


def sbatch(words: list[str]) -> int:
    job = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "localhost", "SLURM_NTASKS": str(RANKS), "SLURM_CPUS_PER_TASK": "2"}
    return together([(["bash", *words], job)])


def scontrol(words: list[str]) -> int:
    assert words[:2] == ["show", "hostnames"] or words[0] == "requeue", words
    print("127.0.0.1")
    return 0


def apptainer(words: list[str]) -> int:
    """Runs the command without an image."""
    assert words[:2] == ["exec", "--nv"], words
    options = 4 if words[2] == "--bind" else 2
    assert words[options].endswith("foreread.sif"), words
    return together([(words[options + 1 :], {})])


def mpirun(words: list[str]) -> int:
    assert words[0] == "-n", words
    ranks = min(int(words[1]), RANKS)
    job = {"OMPI_COMM_WORLD_SIZE": str(ranks), "OMPI_COMM_WORLD_LOCAL_SIZE": str(ranks)}
    return together(
        [(words[2:], job | {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank)}) for rank in range(ranks)]
    )


def torchrun(words: list[str]) -> int:
    at = words.index("--nproc_per_node")
    words[at + 1] = str(min(int(words[at + 1]), RANKS))
    # Several documents are run at a time, so each job has a port of its own.
    port = str(free_ports(1)[0])
    if "--master_port" in words:
        words[words.index("--master_port") + 1] = port
    else:
        words = ["--master_addr", "127.0.0.1", "--master_port", port, *words]
    # PyTorch 1.13 knows options with underscores only, so documents use these. On Python 3.11 it fails without redirections.
    return together([([sys.executable, "-m", "torch.distributed.run", "--redirects", "2", "--tee", "1", *words], {})])


def python(words: list[str]) -> int:
    return together([([sys.executable, *words], {})])


def kubectl(words: list[str]) -> int:
    """Keeps a Secret's token and prints its name; runs a PyTorchJob's containers."""
    import yaml

    assert words[0] == "create" and words[-2:] == ["-f", "-"], words
    made = yaml.safe_load(sys.stdin)
    name = made["metadata"]["generateName"] + "1"
    if made["kind"] == "Secret":
        Path(name).write_text(made["stringData"]["token"])
        print(name)
        return 0
    replicas = made["spec"]["pytorchReplicaSpecs"]
    assert set(replicas) == {"Master", "Worker"} and replicas["Worker"]["replicas"] == 7, replicas
    processes = []
    for rank, replica in enumerate(replicas.values()):
        (container,) = replica["template"]["spec"]["containers"]
        variables = {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29417"}
        for variable in container["env"]:
            secret = variable.get("valueFrom", {}).get("secretKeyRef", {}).get("name")
            variables[variable["name"]] = Path(secret).read_text() if secret else variable["value"]
        processes.append(([*container["command"], *container["args"]], variables))
    return together(processes)


def cargo(words: list[str]) -> int:
    """Builds nothing: checks that what is named exists. The demo runs in the command that is built already."""
    if words == ["run", "--release", "--", "demo"]:
        return together([(["foreread", "demo"], {})])
    if words[0] == "install":
        package = tomllib.loads((ROOT / words[words.index("--path") + 1] / "Cargo.toml").read_text())
        features = words[words.index("--features") + 1].split(",") if "--features" in words else []
        assert set(features) <= set(package["features"]), features
        return 0
    if words[0] == "run":
        package, example = words[words.index("-p") + 1], words[words.index("--example") + 1]
        assert (ROOT / "crates" / package.removeprefix("foreread-") / "examples" / f"{example}.rs").exists(), words
        return 0
    # A virtual workspace: without words, Cargo tests its default members.
    assert words == ["test"] and "workspace" in tomllib.loads((ROOT / "Cargo.toml").read_text()), words
    return 0


def dist(words: list[str]) -> int:
    """Packs nothing: checks that the parts are there."""
    script = (ROOT / "packaging" / "dist").read_text()
    assert words and all(re.search(rf"^#   {word} ", script, re.MULTILINE) for word in words), words
    return 0


def pip(words: list[str]) -> int:
    assert words == ["install", "."] and (ROOT / "pyproject.toml").exists(), words
    return 0


STAND_INS = {
    stand_in.__name__: stand_in
    for stand_in in [srun, sbatch, scontrol, apptainer, mpirun, torchrun, python, kubectl, cargo, dist, pip]
}


def main() -> None:
    if sys.argv[1] == "--as":
        sys.exit(STAND_INS[sys.argv[2]](sys.argv[3:]))
    document, images, scratch = map(Path, sys.argv[1:])
    done = run(document, images, scratch)
    print(json.dumps({"status": done.returncode, "stdout": done.stdout, "stderr": done.stderr}, indent=1))


if __name__ == "__main__":
    main()
