"""Runs the jobs of all libraries on the same data, checks their batches, and prints the table of the documents."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import common

HERE = Path(__file__).parent
LIBRARIES = {
    "foreread": "foreread",
    "huggingface": "datasets",
    "litdata": "litdata",
    "mosaic": "mosaicml-streaming",
}
#: What each job does, and the data that it reads.
JOBS = {
    "table": ("a CSV with paths, labels and captions: the rows of `train`", "images"),
    "split": ("one directory for training and validation, 90 : 10 in each class", "images"),
    "masks": ("an image and its mask with one stem", "pairs"),
    "parquet": ("a Parquet file with images and captions", "parquet"),
}


def lines(library: str, job: str) -> int:
    """Lines of code of a job, with its share of what the jobs of the library have in common."""
    text = (HERE / f"jobs_{library}.py").read_text()
    tree = {node.name: node for node in ast.parse(text).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    used, waiting = set(), [job]
    while waiting:
        name = waiting.pop()
        if name in used:
            continue
        used.add(name)
        names = {node.id for node in ast.walk(tree[name]) if isinstance(node, ast.Name)}
        waiting += [other for other in names if other in tree]
    source = text.splitlines()
    return sum(
        bool(line.strip())
        for name in used
        for line in source[tree[name].lineno - 1 : tree[name].end_lineno]
    )


def size(directory: Path) -> int:
    return sum(file.lstat().st_size for file in directory.rglob("*") if file.is_file())


def values(batch: Any) -> list[tuple[int, Any, Any, Any]]:
    """The number in the image, the number in the mask, the label and the caption of each sample."""
    batch = batch if isinstance(batch, dict) else dict(zip(("image", "label"), batch))
    count = len(batch["image"])

    def column(name: str) -> list[Any]:
        found = batch.get(name, [None] * count)
        if name in ("image", "mask") and name in batch:
            return [int(image[0, 0, 0]) for image in found]
        return found.tolist() if hasattr(found, "tolist") else list(found)

    return list(zip(column("image"), column("mask"), column("label"), column("caption")))


def check(job: str, loaders: list[Any]) -> None:
    parts = [[sample for batch in loader for sample in values(batch)] for loader in loaders]
    numbers = [number for number in range(common.COUNT) if job != "table" or number % 6]
    with_label, with_caption = job in ("table", "split"), job in ("table", "parquet")
    expected = [
        (
            number,
            number if job == "masks" else None,
            number % 3 if with_label else None,
            f"{common.KINDS[number % 3]} {number}" if with_caption else None,
        )
        for number in numbers
    ]
    found = sorted(sample for part in parts for sample in part)
    assert found == expected, f"{job}: {len(found)} samples for {len(expected)}"
    if job == "split":
        shares = [[sum(sample[2] == kind for sample in part) for kind in range(3)] for part in parts]
        print("even" if shares == [[36] * 3, [4] * 3] else f"uneven: {shares}", file=sys.stderr)


def one(library: str, job: str) -> None:
    """Runs one job in this process, in the directory of the data."""
    loaders = getattr(importlib.import_module(f"jobs_{library}"), job)()
    check(job, loaders if isinstance(loaders, list) else [loaders])


def main() -> None:
    if len(sys.argv) == 3:
        return one(*sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "data")
        root.mkdir()
        common.make(root)
        versions = {library: importlib.metadata.version(package) for library, package in LIBRARIES.items()}
        print("| job | " + " | ".join(f"{LIBRARIES[library]} {versions[library]}" for library in LIBRARIES) + " |")
        print("|---|" + "--:|" * len(LIBRARIES))
        for job, (title, data) in JOBS.items():
            cells = []
            for library in LIBRARIES:
                cache = Path(folder, f"cache-{library}-{job}")
                environment = {
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
                    "HF_HOME": str(cache),
                    "HF_HUB_OFFLINE": "1",
                }
                before = size(root) + size(cache)
                command = [sys.executable, str(HERE / "run.py"), library, job]
                done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
                assert done.returncode == 0, f"{library}, {job}:\n{done.stdout}\n{done.stderr}"
                written = (size(root) + size(cache) - before) / size(root / data)
                note = ", not in each class" if "uneven" in done.stderr else ""
                cells.append(f"{lines(library, job)} lines, {100 * written:.0f} %{note}")
            print(f"| {title} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
