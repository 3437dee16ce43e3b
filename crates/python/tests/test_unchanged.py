"""Programs that are not changed, run by `foreread run`: they read local copies, and see what they see without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

FOREREAD = Path(sys.executable).with_name("foreread")

#: Files that were changed less than two seconds ago are not copied.
SETTLED = 3.1

#: Reads each file as its users do, and prints a digest of what was in it.
READER = """
import hashlib, pathlib, sys
import h5py, lmdb, numpy, pyarrow.parquet, torch
from PIL import Image
digest, root = hashlib.sha256(), pathlib.Path(sys.argv[1])
for path in sorted(root.glob("images/*/*")):
    with Image.open(path) as image:
        digest.update(numpy.asarray(image).tobytes())
digest.update(numpy.load(root / "array.npy").tobytes())
digest.update(numpy.load(root / "array.npy", mmap_mode="r")[7:19].tobytes())
digest.update(numpy.fromfile(root / "array.raw", dtype="f4").tobytes())
with h5py.File(root / "data.h5") as file:
    digest.update(file["x"][:].tobytes())
table = pyarrow.parquet.read_table(root / "table.parquet", memory_map=False)
digest.update(str(table.to_pydict()).encode())
with lmdb.open(str(root / "records"), readonly=True, lock=False) as records, records.begin() as reading:
    for key, value in reading.cursor():
        digest.update(key + value)
digest.update(torch.load(root / "weights.pt")["w"].numpy().tobytes())
print(digest.hexdigest())
"""

#: A training script with workers: a small network, and the sum of its losses.
TRAINING = """
import pathlib, sys
import numpy, torch
from PIL import Image

class Images(torch.utils.data.Dataset):
    def __init__(self, root):
        self.paths = sorted(pathlib.Path(root).glob("images/*/*"))
    def __len__(self):
        return len(self.paths)
    def __getitem__(self, at):
        with Image.open(self.paths[at]) as image:
            return torch.tensor(numpy.asarray(image, dtype="f4") / 255).flatten(), at % 2

torch.manual_seed(0)
network = torch.nn.Linear(3 * 24 * 24, 2)
optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(Images(sys.argv[1]), batch_size=8, shuffle=True, num_workers=2)
for epoch in range(3):
    for images, labels in loader:
        loss = torch.nn.functional.cross_entropy(network(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{float(loss):.9f}")
"""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of the usual kinds, old enough to be copied."""
    root = tmp_path_factory.mktemp("unchanged") / "data"
    random = numpy.random.default_rng(0)
    for number in range(40):
        path = root / f"images/class{number % 2}/{number:03}.{'png' if number % 3 else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (24, 24, 3), dtype="u1")).save(path)
    array = random.random((100, 50), dtype="f4")
    numpy.save(root / "array.npy", array)
    array.tofile(root / "array.raw")
    with h5py.File(root / "data.h5", "w") as file:
        file.create_dataset("x", data=array, chunks=(10, 50), compression="gzip")
    pyarrow.parquet.write_table(pyarrow.table({"a": list(range(500)), "b": ["x" * 20] * 500}), root / "table.parquet")
    with lmdb.open(str(root / "records"), map_size=1 << 20) as records, records.begin(write=True) as writing:
        for number in range(50):
            writing.put(b"%d" % number, b"value" * number)
    import torch

    torch.save({"w": torch.arange(1000.0)}, root / "weights.pt")
    time.sleep(SETTLED)
    return root


def run(root: Path, script: str, disk: Path | None, *options: str) -> tuple[str, dict[str, Any]]:
    """The output of a script, with copies in `disk` or without any, and the report."""
    words = [sys.executable, "-c", script, str(root)]
    if disk is not None:
        words = [str(FOREREAD), "run", "--root", str(root), f"--disk={disk}=100MB", *options, "--report", "json", "--", *words]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=300)
    return done.stdout, json.loads(done.stderr.splitlines()[-1]) if disk is not None else {}


def test_readers_of_all_kinds_see_the_same(dataset: Path, tmp_path: Path) -> None:
    expected, _ = run(dataset, READER, None)
    first, report = run(dataset, READER, tmp_path)
    assert first == expected and report["opens"] >= 46, report
    for _ in range(20):
        found, report = run(dataset, READER, tmp_path)
        assert found == expected
        if report["host"]["copies"] >= 46:
            break
        time.sleep(0.2)
    found, report = run(dataset, READER, tmp_path)
    assert found == expected
    # All but files that a program may write, such as locks.
    assert report["served"] >= 46 and report["served"] >= 0.9 * report["opens"], report


def test_training_has_the_same_losses(dataset: Path, tmp_path: Path) -> None:
    expected, _ = run(dataset, TRAINING, None)
    for options in ([], ["--sampler", "torch:seed=0"], ["--check", "open"]):
        found, report = run(dataset, TRAINING, tmp_path, *options)
        assert found == expected
    # Workers are processes of their own, and are served as well.
    assert report["opens"] >= 120 and report["served"] >= 100, report


def test_user_preloads_stay_first(dataset: Path, tmp_path: Path) -> None:
    script = "import os, sys; print(os.environ['LD_PRELOAD'].split(':')[0])"
    words = [str(FOREREAD), "run", "--root", str(dataset), f"--disk={tmp_path}=100MB", "--", sys.executable, "-c", script]
    own = {**os.environ, "LD_PRELOAD": "/nowhere/own.so"}
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60, env=own)
    assert done.stdout.strip() == "/nowhere/own.so"
