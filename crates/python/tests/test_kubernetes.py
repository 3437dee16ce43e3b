"""The manifests for Kubernetes: they are valid, fit together, and their commands run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import foreread
from waiting import until

yaml = pytest.importorskip("yaml")
kubernetes_validate = pytest.importorskip("kubernetes_validate")

FOREREAD = Path(sys.executable).with_name("foreread")
MANIFESTS = Path(__file__).parents[3] / "packaging" / "kubernetes"

#: The oldest version that still gets fixes in long-term support, and the newest known one.
VERSIONS = ["1.30", "1.37"]


def objects(name: str, namespace: str = "research") -> list[dict[str, Any]]:
    text = (MANIFESTS / name).read_text().replace("NAMESPACE", namespace)
    return [found for found in yaml.safe_load_all(text) if found]


def pod(name: str) -> dict[str, Any]:
    """The pod of the manifest's last object."""
    spec: dict[str, Any] = objects(name)[-1]["spec"]["template"]["spec"]
    return spec


def argument(container: dict[str, Any], name: str) -> str:
    """The value of an argument of the container's command."""
    (value,) = [word.removeprefix(f"--{name}=") for word in container["args"] if word.startswith(f"--{name}=")]
    return str(value)


def volume(spec: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    """The pod's volume that has a path of its container, and the path in it."""
    (container,) = spec["containers"]
    for mount in container["volumeMounts"]:
        above = mount["mountPath"]
        if path == above or path.startswith(above + "/"):
            (found,) = [one for one in spec["volumes"] if one["name"] == mount["name"]]
            return found, str(Path(mount.get("subPath", "")) / path.removeprefix(above).lstrip("/"))
    raise AssertionError(f"no volume has {path}")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", sorted(path.name for path in MANIFESTS.glob("*.yaml")))
def test_manifests_are_valid(name: str, version: str) -> None:
    for found in objects(name):
        kubernetes_validate.validate(found, version, strict=True)


def test_misspelled_manifest_is_invalid() -> None:
    wrong = objects("agent.yaml")[-1]
    wrong["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_jobs_find_the_agent_of_their_namespace_only() -> None:
    agent, job = pod("agent.yaml"), pod("job.yaml")
    (agent_container,), (job_container,) = agent["containers"], job["containers"]
    environment = {one["name"]: one["value"] for one in job_container["env"]}
    assert f"--socket={environment['FOREREAD_AGENT']}" in agent_container["args"]
    assert f"--socket={environment['FOREREAD_AGENT']}" in agent_container["readinessProbe"]["exec"]["command"]
    # Credentials are compared, and HOME with them.
    assert {"name": "HOME", "value": environment["HOME"]} in agent_container["env"]
    assert agent["serviceAccountName"] == job["serviceAccountName"] == objects("agent.yaml")[0]["metadata"]["name"]

    def directory(spec: dict[str, Any], name: str) -> str:
        (path,) = [volume["hostPath"]["path"] for volume in spec["volumes"] if volume["name"] == name]
        return str(path)

    def mounted(container: dict[str, Any], name: str) -> str:
        (path,) = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == name]
        return str(path)

    assert directory(agent, "socket") == directory(job, "socket") == "/run/foreread/research"
    assert mounted(agent_container, "socket") == mounted(job_container, "socket")
    assert environment["FOREREAD_AGENT"].startswith(mounted(job_container, "socket") + "/")
    other = objects("agent.yaml", "other")[-1]["spec"]["template"]["spec"]
    for name in ["socket", "cache"]:
        assert directory(other, name) != directory(agent, name)


def test_limit_of_memory_holds_the_cache() -> None:
    (container,) = pod("agent.yaml")["containers"]
    (memory,) = [re.fullmatch(r"--memory=(\d+)GiB", word) for word in container["args"] if "--memory" in word]
    (limit,) = re.findall(r"^(\d+)Gi$", container["resources"]["limits"]["memory"])
    assert memory and int(limit) >= int(memory[1]) + 8


def test_agents_find_the_control_process_of_their_namespace() -> None:
    agent, control = pod("agent.yaml"), pod("control.yaml")
    (agent_container,), (control_container,) = agent["containers"], control["containers"]
    policy, service, deployment = objects("control.yaml")
    host, _, port = argument(agent_container, "control").rpartition(":")
    (served,), (listening,) = service["spec"]["ports"], control_container["ports"]
    assert (service["kind"], service["metadata"]["name"]) == ("Service", host)
    assert str(served["port"]) == str(listening["containerPort"]) == port
    assert argument(control_container, "listen").endswith(f":{port}") and served["targetPort"] == listening["name"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    # Two processes would each give out the whole limit.
    assert deployment["spec"]["replicas"] == 1 and deployment["spec"]["strategy"]["type"] == "Recreate"

    secrets = [
        (agent, argument(agent_container, "control-token"), "foreread-control-token", "token"),
        (control, argument(control_container, "tokens"), "foreread-control", "tokens"),
    ]
    for spec, path, name, key in secrets:
        found, inside = volume(spec, path)
        assert found["secret"] == {"secretName": name, "defaultMode": 0o400} and inside == key
        # The commands in the manifest create it.
        assert f"generic {name} --namespace research --from-literal={key}=" in (MANIFESTS / "control.yaml").read_text()
    found, inside = volume(control, argument(control_container, "policy"))
    assert found["configMap"]["name"] == policy["metadata"]["name"] and list(policy["data"]) == [inside]
    assert tomllib.loads(policy["data"][inside])["cluster"]["limit"]
    # The mounted directory is open to all users, so the socket is in one below it.
    socket = argument(control_container, "socket")
    found, inside = volume(control, socket)
    assert found["emptyDir"]["medium"] == "Memory" and len(Path(inside).parts) == 2
    assert f"--socket={socket}" in control_container["readinessProbe"]["exec"]["command"]

    (variable,) = re.findall(r"^\$\((\w+)\)$", argument(agent_container, "node"))
    (source,) = [one["valueFrom"] for one in agent_container["env"] if one["name"] == variable]
    assert source == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert control["serviceAccountName"] == agent["serviceAccountName"]
    for key in ["image", "securityContext"]:
        assert control_container[key] == agent_container[key]


def here(container: dict[str, Any], root: Path, others: dict[str, str]) -> Callable[[str], str]:
    """Gives a container's words the directories of this machine, and other texts. Creates the directories."""
    mounts = {}
    for mount in container["volumeMounts"]:
        (root / mount["name"]).mkdir()
        mounts[mount["mountPath"]] = root / mount["name"] / mount.get("subPath", "")

    def word_here(word: str) -> str:
        for mount, path in mounts.items():
            word = re.sub(rf"(^|=){re.escape(mount)}(?=[=/]|$)", rf"\g<1>{path}", word)
        for text, other in others.items():
            word = word.replace(text, other)
        return word

    return word_here


@contextlib.contextmanager
def serving(
    container: dict[str, Any], word: Callable[[str], str], environment: dict[str, str]
) -> Iterator[list[str | Path]]:
    """Runs a container's command in the block, once its probe succeeds. Yields the probe's command."""
    probe = [word(one) for one in container["readinessProbe"]["exec"]["command"]]
    assert probe[0] == "foreread" and foreread.__version__ in container["image"]
    ready: list[str | Path] = [FOREREAD, *probe[1:]]
    process = subprocess.Popen([FOREREAD, *map(word, container["args"])], env=environment)

    def is_ready() -> bool:
        return subprocess.run(ready, env=environment, capture_output=True, timeout=60).returncode == 0

    try:
        until(f"{container['name']} is ready", is_ready)
        yield ready
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 0
    assert not is_ready()


def printed(words: list[str | Path], environment: dict[str, str]) -> Any:
    """The report of a command."""
    command = [*words, "--report", "json"]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
    return json.loads(done.stdout)


def test_commands_run(directory: Path, tmp_path: Path) -> None:
    (agent,), (control,), (job,) = (pod(name)["containers"] for name in ["agent.yaml", "control.yaml", "job.yaml"])
    token = subprocess.run([FOREREAD, "token"], check=True, capture_output=True, text=True, timeout=60).stdout

    def write_token(path: str) -> None:
        Path(path).write_text(token)
        Path(path).chmod(0o400)

    # Free ports.
    at_control = here(control, tmp_path, {"[::]:7400": "127.0.0.1:0", "127.0.0.1:9465": "127.0.0.1:0"})
    write_token(at_control(argument(control, "tokens")))
    policy = objects("control.yaml")[0]["data"]["agent.toml"]
    Path(at_control(argument(control, "policy"))).write_text(policy)
    environment = dict(os.environ)
    with serving(control, at_control, environment) as control_status:
        address = printed(control_status, environment)["address"]
        # A smaller machine than a node.
        others = {"200GiB": "8MiB", "2TB": "50MB", "$(NODE_NAME)": "node-7", argument(agent, "control"): address}
        at_agent = here(agent, tmp_path, others)
        write_token(at_agent(argument(agent, "control-token")))
        variables = [one for one in [*agent["env"], *job["env"]] if "value" in one]
        of_job = environment | {one["name"]: at_agent(one["value"]) for one in variables}
        with serving(agent, at_agent, of_job):
            report = printed([FOREREAD, "load", directory, "--epochs", "2"], of_job)
            assert report["agent"]["samples"] > 0 and report["origin_bytes"] == 0
            status = printed(control_status, environment)
    assert [(node["name"], node["is_connected"]) for node in status["nodes"]] == [("node-7", True)]
    limits = tomllib.loads(policy)["cluster"]["limit"]
    shown = {value["key"]: value["value"] for value in status["policy"]}
    assert {f"limit@{store}": limit for store, limit in limits.items()}.items() <= shown.items()
