"""A Slurm cluster on this machine, with two nodes, from Debian's packages.

    slurm_cluster.py DIRECTORY        runs a cluster until Ctrl-C, and prints the variable that selects it

All files are in one directory, with a key of its own. The machine's own Slurm and munge are not used.

Decision: the daemons run in a PID namespace, whose first process ends with this one. So no job outlives a test, however the
test ends. The price is that only root can start it. The nodes are called 127.0.0.1 and 127.0.0.2, because a node's name must
be resolved, and no other name is an address on every machine.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

#: The nodes, by their addresses.
NODES = ["127.0.0.1", "127.0.0.2"]

PROGRAMS = ["munged", "slurmctld", "slurmd", "sbatch", "unshare"]

# The deadline of a hang, not a measure of speed.
HANG = 60

#: The resources of a node are those that the example asks for, whatever this machine has.
CONFIGURATION = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
GresTypes=gpu
MailProg=/bin/true
FirstJobId={first}
NodeName=127.0.0.1 Port={ports[1]} CPUs=32 RealMemory=131072 Gres=gpu:4
NodeName=127.0.0.2 Port={ports[2]} CPUs=32 RealMemory=131072 Gres=gpu:4
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

#: The first process of the namespace. Its arguments are the directory and the nodes.
DAEMONS = """
directory=$1
shift
# By force, because users other than root cannot reach its socket in a private directory.
munged --foreground --force --socket "$directory/munge.socket" --key-file "$directory/munge.key" \\
    --pid-file "$directory/munge.pid" --log-file "$directory/munge.log" --seed-file "$directory/munge.seed" &
slurmctld -D -f "$directory/slurm.conf" >"$directory/slurmctld.log" 2>&1 &
for node; do
    slurmd -D -N "$node" -f "$directory/slurm.conf" >"$directory/$node.log" 2>&1 &
done
wait
"""


def missing() -> str | None:
    """Why no cluster can be started here."""
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent or os.geteuid() != 0:
        return f"needs Slurm ({', '.join(absent) or 'as root'}): `.ci/tools` installs it"
    return None


def free_ports(count: int) -> list[int]:
    """Distinct free ports."""
    with ExitStack() as held:
        made = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in made:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in made]


def configure(directory: Path, more: str) -> None:
    ports = free_ports(1 + len(NODES))
    # Jobs of two clusters have different numbers, on which ports depend.
    text = CONFIGURATION.format(directory=directory, ports=ports, first=1 + secrets.randbelow(1 << 20))
    (directory / "slurm.conf").write_text(text + more)
    # Devices that every machine has, in the place of GPUs: Slurm counts them, and opens none.
    (directory / "gres.conf").write_text("Name=gpu File=/dev/null,/dev/zero,/dev/full,/dev/urandom\n")
    key = directory / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    for name in ["state", *NODES]:
        (directory / name).mkdir()


@contextmanager
def cluster(directory: Path, more: str = "") -> Iterator[dict[str, str]]:
    """Starts a cluster in a new directory, with more lines of its configuration. The variables that select it, for Slurm's
    commands.
    """
    directory.mkdir(mode=0o755)
    configure(directory, more)
    variables = {"SLURM_CONF": str(directory / "slurm.conf")}
    namespace = ["setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--mount-proc", "--fork", "--kill-child"]
    daemons = subprocess.Popen(
        [*namespace, "sh", "-c", DAEMONS, "sh", str(directory), *NODES],
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + HANG
        while states(variables) != ["idle"] * len(NODES):
            if daemons.poll() is not None or time.monotonic() > deadline:
                raise TimeoutError(f"no cluster after {HANG} s\n{logs(directory)}")
            time.sleep(0.2)
        yield variables
    finally:
        daemons.kill()
        daemons.wait()


def states(variables: dict[str, str]) -> list[str]:
    """The states of the nodes. Empty without a controller."""
    command = ["sinfo", "--noheader", "--Node", "--format", "%T"]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=HANG, check=False)
    return done.stdout.split()


def logs(directory: Path) -> str:
    """The ends of the daemons' logs."""
    return "\n".join(f"{log.name}: {log.read_text()[-2000:]}" for log in sorted(directory.glob("*.log")))


def main() -> None:
    with cluster(Path(sys.argv[1])) as variables:
        for name, value in variables.items():
            print(f"export {name}={value}", flush=True)
        with suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
