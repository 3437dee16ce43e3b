"""The manifests for Kubernetes: they are valid, fit together, and their commands run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import foreread

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


def test_commands_run(directory: Path, tmp_path: Path) -> None:
    (container,) = pod("agent.yaml")["containers"]
    (job,) = pod("job.yaml")["containers"]
    mounts = {mount["mountPath"]: tmp_path / mount["name"] for mount in container["volumeMounts"]}
    for path in mounts.values():
        path.mkdir()

    def here(word: str) -> str:
        """The word with directories of this machine."""
        for mount, path in mounts.items():
            word = re.sub(rf"(^|=){mount}(?=[=/])", rf"\g<1>{path}", word)
        # A smaller machine than a node.
        return word.replace("200GiB", "8MiB").replace("2TB", "50MB")

    values = {one["name"]: here(one["value"]) for one in [*container["env"], *job["env"]]}
    environment = os.environ | values
    words = [here(word) for word in container["args"]]
    serving = subprocess.Popen([FOREREAD, *words], env=environment)
    try:
        probe = [here(word) for word in container["readinessProbe"]["exec"]["command"]]
        assert probe[0] == "foreread"
        ready = [FOREREAD, *probe[1:]]
        deadline = time.monotonic() + 60
        while subprocess.run(ready, env=environment, capture_output=True, timeout=60).returncode != 0:
            assert time.monotonic() < deadline, "the agent is not ready"
            time.sleep(0.1)
        load = [FOREREAD, "load", directory, "--epochs", "2", "--report", "json"]
        done = subprocess.run(load, env=environment, check=True, capture_output=True, timeout=60)
        report = json.loads(done.stdout)
        assert report["agent"]["samples"] > 0 and report["origin_bytes"] == 0
    finally:
        serving.terminate()
        assert serving.wait(timeout=60) == 0
    assert subprocess.run(ready, env=environment, capture_output=True, timeout=60).returncode != 0
    assert foreread.__version__ in container["image"]
