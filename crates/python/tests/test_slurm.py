"""Slurm: the batch script of examples/hpc (signals, restarts, cancellation), and the scripts of packaging/slurm."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")

import commands
import recorded
import slurm_cluster
from documents import ROOT
from waiting import until

# The deadline of a hang, not a measure of speed.
HANG = 120

SAMPLES, EPOCHS, RANKS, BATCH = 192, 2, 4, 4

#: A task that saves nothing and ends on SIGTERM as resume.py does.
TASK = """#!/bin/sh
trap 'exit 143' TERM
echo "task $SLURM_PROCID has started"
sleep 300 &
wait
"""


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables of a cluster."""
    if (why := slurm_cluster.missing()) is not None:
        pytest.skip(why)
    with slurm_cluster.cluster(tmp_path_factory.mktemp("slurm") / "cluster") as found:
        yield found


class Job:
    """The example, submitted with two tasks on each of two nodes."""

    def __init__(self, directory: Path, variables: dict[str, str], python: str, data: Path, *options: object) -> None:
        self.directory = directory
        (directory / "bin").mkdir()
        (directory / "bin" / "python").write_text(python)
        (directory / "bin" / "python").chmod(0o755)
        (directory / "delivered").mkdir()
        (directory / "scratch").mkdir()
        (directory / "examples").symlink_to(ROOT / "examples")
        found = commands.command()
        assert found is not None
        (directory / "bin" / "foreread").symlink_to(found)
        launched = ("RANK", "WORLD", "LOCAL_", "MASTER", "SLURM", "OMPI", "PMI", "FOREREAD", "PYTHONPATH")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(launched)}
        self.environment |= variables | {
            "PATH": f"{directory / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "DISK": f"{directory / 'scratch'}=100MB",
            "FOREREAD_INTERFACE": "lo",
            "FOREREAD_TEST_DELIVERED": str(directory / "delivered"),
            "FOREREAD_TEST_STEP": "0.5",
            "OMP_NUM_THREADS": "1",
        }
        script = "examples/hpc/train.sbatch"
        self.id = self.run("sbatch", "--parsable", "--ntasks-per-node=2", script, data, *options).strip()

    def run(self, *command: object) -> str:
        """The output of one of Slurm's commands."""
        done = subprocess.run(
            list(map(str, command)),
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=HANG,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def field(self, name: str) -> str:
        """A field of `scontrol show job`."""
        fields = self.run("scontrol", "show", "job", "--oneliner", self.id).split()
        return next(field.removeprefix(f"{name}=") for field in fields if field.startswith(f"{name}="))

    def log(self) -> str:
        log = self.directory / f"slurm-{self.id}.out"
        return log.read_text() if log.exists() else ""

    def delivered(self) -> list[str]:
        """The epoch and digest of each delivered sample."""
        return [line for file in (self.directory / "delivered").iterdir() for line in file.read_text().splitlines()]

    def wait(self, ready: Callable[[], bool]) -> None:
        until("Slurm's job is there", lambda: ready() or self.field("JobState") == "FAILED")
        assert ready(), self.log()

    def start_again(self) -> None:
        """Waits until Slurm has put the job back into the queue, and starts it without Slurm's delay."""
        self.wait(lambda: self.field("JobState") == "PENDING" and self.field("Restarts") == "1")
        # Nodes compare in seconds, and refuse a start in the second in which they ended the last one.
        time.sleep(2)
        self.run("scontrol", "update", f"JobId={self.id}", "StartTime=now")


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """Images of five classes, a multiple of the samples of a step."""
    draw = random.Random(2)
    for number in range(SAMPLES):
        path = tmp_path / "data" / f"class{number % 5}" / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.frombytes("RGB", (16, 16), draw.randbytes(16 * 16 * 3)).save(path)
    return tmp_path / "data"


# semantics: PY-2
def test_requeued_job_delivers_each_sample_once(
    variables: dict[str, str], interpreter: str, samples: Path, tmp_path: Path
) -> None:
    python = f'#!/bin/sh\nexec {interpreter} {recorded.__file__} "$@"\n'
    options = ["--classes", 5, "--epochs", EPOCHS, "--batch-size", BATCH, "--memory", 0]
    (tmp_path / "job").mkdir()
    job = Job(tmp_path / "job", variables, python, samples, *options)
    job.wait(lambda: "epoch 0 step 2 " in job.log())
    job.run("scancel", "--signal=TERM", "--batch", job.id)
    job.start_again()
    first = job.delivered()
    assert (tmp_path / "job" / "run.pt").exists()
    assert len(first) % (RANKS * BATCH) == 0 and 0 < len(first) < SAMPLES, job.log()

    job.wait(lambda: job.field("JobState") == "COMPLETED")
    assert job.field("Restarts") == "1" and job.field("ExitCode") == "0:0", job.log()
    digests = {line.split()[1] for line in job.delivered()}
    assert len(digests) == SAMPLES
    assert Counter(job.delivered()) == Counter(f"{epoch} {digest}" for epoch in range(EPOCHS) for digest in digests)
    # The second start reads what the first has left on the disk.
    first_requests, second_requests = map(int, re.findall(r"^# .* (\d+) requests", job.log(), re.MULTILINE))
    assert second_requests < first_requests


def batch_script(directory: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    """Status and errors of the script without Slurm: it ends at its first command of Slurm."""
    environment = {"PATH": f"{directory / 'bin'}{os.pathsep}{os.environ['PATH']}"} | variables
    script = ["bash", ROOT / "examples" / "hpc" / "train.sbatch", *arguments]
    done = subprocess.run(script, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_job_refuses_other_data_and_a_missing_script(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "foreread").write_text('#!/bin/sh\necho "$*" >>calls\n[ "$1" = token ] || touch train.foreread\n')
    (tmp_path / "bin" / "foreread").chmod(0o755)
    status, errors = batch_script(tmp_path, "/data/one")
    assert status == 2 and "there is no file examples/pytorch/resume.py: submit the job in a checkout" in errors
    assert not (tmp_path / "calls").exists()
    script = str(ROOT / "examples" / "pytorch" / "resume.py")
    for _ in range(2):
        status, errors = batch_script(tmp_path, "/data/one", SCRIPT=script)
        assert "SLURM_JOB_NODELIST" in errors
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls.count("index /data/one --output train.foreread") == 1
    status, errors = batch_script(tmp_path, "/data/two", SCRIPT=script)
    assert status == 2 and errors == (
        "train.sbatch: train.foreread was made from /data/one, not from /data/two: use a new directory for a new run\n"
    )
    assert (tmp_path / "train.foreread.source").read_text() == "/data/one\n"


def test_signalled_job_is_requeued_and_cancelled_job_is_not(
    variables: dict[str, str], samples: Path, tmp_path: Path
) -> None:
    (tmp_path / "job").mkdir()
    job = Job(tmp_path / "job", variables, TASK, samples)
    started = "task 3 has started"
    job.wait(lambda: started in job.log())
    # As at the time limit: to the tasks only.
    job.run("scancel", "--signal=TERM", job.id)
    job.start_again()
    job.wait(lambda: job.log().count(started) == 2)
    job.run("scancel", job.id)
    job.wait(lambda: job.field("JobState") == "CANCELLED")
    time.sleep(2)
    assert job.field("JobState") == "CANCELLED" and job.field("Restarts") == "1", job.log()


def test_each_job_has_agents_that_its_epilog_stops(tmp_path: Path) -> None:
    if (why := slurm_cluster.missing()) is not None:
        pytest.skip(why)
    program = commands.command()
    assert program is not None
    data = tmp_path / "data"
    data.mkdir()
    for number in range(50):
        (data / f"{number}.bin").write_bytes(bytes([number]) * 1000)
    site = tmp_path / "site"
    shutil.copytree(ROOT / "packaging" / "slurm", site)
    # A socket's path has at most 107 bytes, Slurm's too.
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        tokens = tmp_path / "tokens"
        tokens.mkdir()
        token = tokens / "root"
        token.write_text(subprocess.run([program, "token"], check=True, capture_output=True, text=True).stdout)
        token.chmod(0o600)
        control = ["control", "serve", "--tokens", str(token), "--listen", "127.0.0.1:0"]
        socket = ["--socket", f"{short}/control/control.sock"]
        with subprocess.Popen([program, *control, *socket]) as serving:
            try:
                check_job(program, data, site, Path(short), tokens, socket, tmp_path)
            finally:
                serving.terminate()


def check_job(
    program: str, data: Path, site: Path, short: Path, tokens: Path, socket: list[str], tmp_path: Path
) -> None:
    """A job of two nodes with agents, which it finds by the variable of its task prolog."""

    def status() -> dict[str, object]:
        command = [program, "control", "status", "--report", "json", *socket]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else {}

    until("the agent answers", lambda: status() != {})
    settings = {
        "FOREREAD": program,
        "FOREREAD_MEMORY": "16MiB",
        "FOREREAD_RUN": short / "run",
        "FOREREAD_CONTROL": status()["address"],
        "FOREREAD_TOKENS": tokens,
    }
    (site / "settings.sh").write_text("".join(f"{name}='{value}'\n" for name, value in settings.items()))
    more = f"Prolog={site}/prolog.sh\nTaskProlog={site}/task_prolog.sh\nEpilog={site}/epilog.sh\nPrologFlags=Alloc\n"
    load = f"{program} load {data} --rank 0 --world-size 1 --epochs 2 --memory 1MB --report json --progress off"
    task = f"{load} > report-$SLURM_PROCID; {program} control status --report json {' '.join(socket)} > status-$SLURM_PROCID"
    with slurm_cluster.cluster(short / "cluster", more) as variables:
        launched = ("RANK", "WORLD", "SLURM", "FOREREAD")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(launched)}
        job = ["sbatch", "--wait", "--nodes=2", "--ntasks-per-node=1", f"--wrap=srun sh -c '{task}'"]
        done = subprocess.run(job, cwd=tmp_path, env=environment | variables, timeout=HANG, check=False)
        printed = "".join(path.read_text() for path in tmp_path.glob("slurm-*.out"))
        assert done.returncode == 0, printed + slurm_cluster.logs(short / "cluster")
        for task_number in range(2):
            report = json.loads((tmp_path / f"report-{task_number}").read_text())
            assert report["agent"]["samples"] >= 50, report
            assert report["agent"]["direct_samples"] == 0
        names = {node["name"].rsplit("-", 1)[0] for node in json.loads((tmp_path / "status-0").read_text())["nodes"]}
        assert names == set(slurm_cluster.NODES)
        # Nothing is left, and nothing stays reserved.
        until("no other node is known", lambda: status()["nodes"] == [])
        until("the agents are stopped", lambda: not list((short / "run").iterdir()))
        agent = str(short / "agent" / "node.sock")
        check_control_job(program, site, tokens / "root", agent, tmp_path, environment | variables)


def check_control_job(
    program: str, site: Path, token: Path, socket: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    """The control process as a job, which an agent of another place finds."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "foreread").symlink_to(program)
    environment = environment | {"PATH": f"{programs}{os.pathsep}{environment['PATH']}"}
    address = f"127.0.0.1:{slurm_cluster.free_ports(1)[0]}"
    script = ["sbatch", "--parsable", "--mem=0", str(site / "control.sbatch"), str(token), address]
    job = subprocess.run(script, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout
    agent = [program, "agent"]
    options = ["--memory", "1MB", "--control", address, "--control-token", str(token), "--node", "elsewhere"]
    subprocess.run([*agent, "start", *options, "--socket", socket], check=True)

    def is_connected() -> bool:
        command = [*agent, "status", "--report", "json", "--socket", socket]
        status = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        return status["control"]["is_connected"]

    try:
        until("the agents are connected", is_connected)
    finally:
        subprocess.run([*agent, "stop", "--socket", socket], check=True)
        subprocess.run(["scancel", job.strip()], env=environment, check=True)


