"""Frameworks with their own readers, and through foreread: encoded images from the page cache, and their batches of bytes.

python benches/peers/frameworks.py DIRECTORY [--images N]

DIRECTORY has one directory of JPEGs per class, such as `training.py --directory` writes. Prints samples/s and CPU per sample of
the best of three epochs, each contender in a process of its own. Nothing is decoded, except by Hugging Face's datasets, whose
items are images.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import measuring

BATCH, EPOCHS = 64, 3


def tensorflow_own(root: Path) -> Iterator[Iterable[Any]]:
    import tensorflow as tf

    files = [str(path) for path in sorted(root.rglob("*.jpg"))]
    data = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files))
    data = data.map(tf.io.read_file, tf.data.AUTOTUNE).batch(BATCH).prefetch(2)
    for _ in range(EPOCHS):
        yield data


def tensorflow_foreread(root: Path) -> Iterator[Iterable[Any]]:
    import foreread.tf

    data = foreread.tf.dataset(str(root), BATCH, labels=False, epochs=EPOCHS)
    for _ in range(EPOCHS):
        yield data


def grain_batches(source: Any, sampler: Any) -> Iterable[Any]:
    import grain

    elements: list[Any] = []
    for element in grain.DataLoader(data_source=source, sampler=sampler, worker_count=0):
        elements.append(element)
        if len(elements) == BATCH:
            yield elements
            elements = []
    yield elements


def grain_own(root: Path) -> Iterator[Iterable[Any]]:
    import grain

    class Files:
        def __init__(self) -> None:
            self.paths = sorted(root.rglob("*.jpg"))

        def __len__(self) -> int:
            return len(self.paths)

        def __getitem__(self, index: Any) -> bytes:
            return self.paths[index].read_bytes()

    source = Files()
    for epoch in range(EPOCHS):
        yield grain_batches(source, grain.samplers.IndexSampler(len(source), shuffle=True, seed=epoch, num_epochs=1))


def grain_foreread(root: Path) -> Iterator[Iterable[Any]]:
    import foreread.grain
    import grain

    source = foreread.grain.source(str(root), labels=False)
    for epoch in range(EPOCHS):
        sampler = grain.samplers.IndexSampler(len(source), shuffle=True, seed=epoch, num_epochs=1)
        yield grain_batches(source, source.announce(sampler))


def dali_epochs(outputs: Callable[[], Any], batches: int) -> Iterator[Iterable[Any]]:
    from nvidia.dali import pipeline_def

    pipeline = pipeline_def(batch_size=BATCH, num_threads=2, device_id=None)(outputs)()
    pipeline.build()

    def one() -> Iterator[Any]:
        for _ in range(batches):
            (samples,) = pipeline.run()
            yield samples

    for _ in range(EPOCHS):
        yield one()
        try:
            pipeline.run()
        except StopIteration:
            pipeline.reset()


def dali_own(root: Path) -> Iterator[Iterable[Any]]:
    from nvidia.dali import fn

    count = sum(1 for _ in root.rglob("*.jpg"))
    # The reader continues with the next epoch without an end.
    return dali_epochs(lambda: fn.readers.file(file_root=str(root), random_shuffle=True)[0], count // BATCH - 1)


def dali_foreread(root: Path) -> Iterator[Iterable[Any]]:
    import foreread.dali
    from nvidia.dali import fn

    source = foreread.dali.source(str(root), BATCH, labels=False, drop_last=True)
    return dali_epochs(lambda: fn.external_source(source, batch=True, no_copy=True), len(source))


def huggingface(root: Path, wrap: Callable[[Any], Any]) -> Iterator[Iterable[Any]]:
    import datasets
    import torch

    files = [str(path) for path in sorted(root.rglob("*.jpg"))]
    data = datasets.Dataset.from_dict({"image": files}).cast_column("image", datasets.Image())
    loader = torch.utils.data.DataLoader(data, BATCH, shuffle=True, collate_fn=list)
    wrapped = wrap(loader)
    for _ in range(EPOCHS):
        yield wrapped


def huggingface_own(root: Path) -> Iterator[Iterable[Any]]:
    return huggingface(root, lambda loader: loader)


def huggingface_foreread(root: Path) -> Iterator[Iterable[Any]]:
    import foreread.huggingface
    import foreread.torch
    import torch

    def wrapped(loader: Any) -> Any:
        data = foreread.huggingface.wrap(loader.dataset)
        return foreread.torch.wrap(torch.utils.data.DataLoader(data, BATCH, shuffle=True, collate_fn=list))

    return huggingface(root, wrapped)


CONTENDERS = {
    "tf.data": tensorflow_own,
    "foreread.tf": tensorflow_foreread,
    "Grain": grain_own,
    "foreread.grain": grain_foreread,
    "DALI": dali_own,
    "foreread.dali": dali_foreread,
    "datasets (decodes)": huggingface_own,
    "foreread.huggingface (decodes)": huggingface_foreread,
}


def measure(name: str, root: Path) -> None:
    best = (0.0, 0.0)
    for epoch in CONTENDERS[name](root):
        count, used, start = 0, measuring.cpu(), time.perf_counter()
        for batch in epoch:
            count += len(batch)
        rate = count / (time.perf_counter() - start)
        best = max(best, (rate, (measuring.cpu() - used) / count))
    print(f"| {name} | {best[0]:,.0f} | {best[1] * 1e6:,.0f} us |", flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("directory", type=Path)
    arguments.add_argument("--only", help="one contender, in this process")
    options = arguments.parse_args()
    if options.only:
        return measure(options.only, options.directory)
    print("| reader | samples/s | CPU per sample |\n|---|--:|--:|", flush=True)
    quiet = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    for name in CONTENDERS:
        subprocess.run([sys.executable, __file__, options.directory, "--only", name], env=quiet, stderr=subprocess.DEVNULL, check=False)
    return None


if __name__ == "__main__":
    main()
