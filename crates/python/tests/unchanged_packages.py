"""Readers of PyPI under `foreread run`. Run by `.ci/soak unchanged`, in an environment with them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from serving import Dataset

#: Python with PyTorch and torchvision.
TORCH = "/usr/bin/python3"

#: `imagenet/main.py` of PyTorch's examples, as it is. No registry has it, so the user gives its path.
EXAMPLE = os.environ.get("FOREREAD_TEST_IMAGENET")

#: Writes the dataset, by the packages that read it.
WRITER = """
import os, pathlib, sys
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import numpy, safetensors.numpy, tensorflow as tf, tifffile, webdataset
from PIL import Image
root, random = pathlib.Path(sys.argv[1]), numpy.random.default_rng(0)

def images(folder, count, side):
    for number in range(count):
        path = root / folder / f"class{number % 2}/{number:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (side, side, 3), dtype="u1")).save(path)

images("images", 40, 48)
images("imagenet/train", 24, 80)
images("imagenet/val", 8, 80)
for name in ("records", "shards", "weights", "tiff"):
    (root / name).mkdir()
for number in range(6):
    with tf.io.TFRecordWriter(str(root / f"records/{number}.tfrecord")) as file:
        for _ in range(10):
            file.write(random.bytes(700))
    with webdataset.TarWriter(str(root / f"shards/{number}.tar")) as file:
        for sample in range(8):
            file.write({"__key__": f"{number}-{sample}", "bin": random.bytes(500), "cls": sample})
    arrays = {name: random.random((20, 30), dtype="f4") for name in "ab"}
    safetensors.numpy.save_file(arrays, root / f"weights/{number}.safetensors")
    pages = random.integers(0, 999, (3, 40, 30), dtype="u2")
    tifffile.imwrite(root / f"tiff/{number}.tif", pages, photometric="minisblack")
"""

#: What all readers begin and end with.
BEGIN = """
import hashlib, os, pathlib
import numpy
digest, root = hashlib.sha256(), pathlib.Path(os.environ["DATA"])
def names(pattern):
    return sorted(map(str, root.glob(pattern)))
def add(array):
    digest.update(numpy.ascontiguousarray(array).tobytes())
"""
END = "\nprint(digest.hexdigest())"

#: A reader's name, its script, and the opens that find copies at least.
READERS = [
    (
        "tf.io.read_file",
        """
import tensorflow as tf
decoded = lambda name: tf.io.decode_jpeg(tf.io.read_file(name))
for image in tf.data.Dataset.from_tensor_slices(names("images/*/*")).map(decoded, num_parallel_calls=4):
    add(image)
""",
        40,
    ),
    (
        "tf.keras.utils.image_dataset_from_directory",
        """
import tensorflow as tf
images = tf.keras.utils.image_dataset_from_directory(root / "images", image_size=(48, 48), batch_size=8, shuffle=False)
for epoch in range(2):
    for batch, labels in images:
        add(batch), add(labels)
""",
        80,
    ),
    (
        "tf.data.TFRecordDataset",
        """
import tensorflow as tf
for record in tf.data.TFRecordDataset(names("records/*"), num_parallel_reads=3):
    digest.update(record.numpy())
for record in tf.data.Dataset.list_files(names("records/*"), shuffle=False).interleave(tf.data.TFRecordDataset):
    digest.update(record.numpy())
""",
        12,
    ),
    (
        "DALI fn.readers.file, fn.decoders.image",
        """
from nvidia.dali import fn, pipeline_def

@pipeline_def(batch_size=8, num_threads=2, device_id=None)
def images():
    files, labels = fn.readers.file(file_root=str(root / "images"), name="files")
    return fn.decoders.image(files, device="cpu"), labels

pipeline = images()
pipeline.build()
for _ in range(5):
    batch, labels = pipeline.run()
    for number in range(8):
        add(batch.at(number)), add(labels.at(number))
""",
        40,
    ),
    (
        "cv2.imread",
        """
import cv2
for name in names("images/*/*"):
    add(cv2.imread(name))
""",
        40,
    ),
    (
        "webdataset",
        """
import webdataset
for sample in webdataset.WebDataset(names("shards/*"), shardshuffle=False):
    digest.update(sample["__key__"].encode() + sample["bin"] + sample["cls"])
""",
        6,
    ),
    (
        "safetensors",
        """
import safetensors.numpy
for name in names("weights/*"):
    for _, array in sorted(safetensors.numpy.load_file(name).items()):
        add(array)
    with safetensors.safe_open(name, framework="numpy") as file:
        add(file.get_slice("a")[3:7])
""",
        12,
    ),
    (
        "tifffile",
        """
import tifffile
for name in names("tiff/*"):
    add(tifffile.imread(name))
    add(tifffile.memmap(name, mode="r")[1])
    with tifffile.TiffFile(name) as file:
        add(file.pages[2].asarray())
""",
        18,
    ),
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    dataset = Dataset(tmp_path_factory.mktemp("unchanged"))
    subprocess.run([sys.executable, "-c", WRITER, dataset.root], check=True, capture_output=True, timeout=300)
    dataset.settle()
    return dataset


@pytest.mark.parametrize(("name", "script", "served"), READERS, ids=[name for name, _, _ in READERS])
def test_reader_of_pypi_is_served(dataset: Dataset, name: str, script: str, served: int) -> None:
    (dataset.directory / "reader.py").write_text(BEGIN + script + END)
    dataset.compare(name, f"{shlex.quote(sys.executable)} ../reader.py", served)


def test_example_of_pytorch_has_the_same_losses(dataset: Dataset) -> None:
    if EXAMPLE is None:
        pytest.skip("set FOREREAD_TEST_IMAGENET to the path of imagenet/main.py of github.com/pytorch/examples")
    # Without the times. The checkpoints are compared as well.
    options = "--arch=resnet18 --epochs=2 --batch-size=8 --workers=2 --print-freq=1 --seed=1"
    train = f"OMP_NUM_THREADS=1 {TORCH} {shlex.quote(str(Path(EXAMPLE).resolve()))} {options} $DATA/imagenet"
    dataset.compare("imagenet/main.py", f"{train} > log && sed 's/Time.*Loss/Loss/' log && rm log", 2 * (24 + 8))
