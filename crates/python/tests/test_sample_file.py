"""A sample as a file: `sample.open()`."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import foreread


@pytest.fixture
def samples(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Samples by name: an array, several arrays, an image, an HDF5 file, bytes."""
    numpy, image, h5py = (pytest.importorskip(name) for name in ("numpy", "PIL.Image", "h5py"))
    array = numpy.arange(300_000, dtype="<i4").reshape(3, -1)
    numpy.save(tmp_path / "array.npy", array)
    numpy.savez(tmp_path / "arrays.npz", a=array, b=array[:1])
    image.fromarray(array.astype("u1")[:, :200].reshape(20, 30, 1).repeat(3, 2)).save(tmp_path / "image.png")
    with h5py.File(tmp_path / "numbers.h5", "w") as file:
        file["x"] = array
    (tmp_path / "lines.bin").write_bytes(b"first\nsecond\nthird")
    with foreread.Loader(tmp_path, batch_size=5, epochs=1, format="files", sampler="sequential") as loader:
        yield {sample.path.partition(".")[0]: sample for sample in next(loader)}


def test_libraries_read_samples_as_files(samples: dict[str, Any], tmp_path: Path) -> None:
    import h5py
    import numpy
    from PIL import Image

    expected = numpy.load(tmp_path / "array.npy")
    assert numpy.array_equal(numpy.load(samples["array"].open()), expected)
    with numpy.load(samples["arrays"].open()) as arrays:
        assert numpy.array_equal(arrays["a"], expected) and arrays["b"].shape == (1, 100_000)
    with Image.open(samples["image"].open()) as ours, Image.open(tmp_path / "image.png") as theirs:
        assert ours.tobytes() == theirs.tobytes()
    with h5py.File(samples["numbers"].open()) as file:
        assert numpy.array_equal(file["x"][1], expected[1])


def test_file_has_the_samples_own_memory(samples: dict[str, Any]) -> None:
    import numpy

    sample = samples["array"]
    with sample.open() as file:
        view = file.getbuffer()
        assert view.readonly and numpy.frombuffer(view, "u1").ctypes.data == numpy.frombuffer(sample, "u1").ctypes.data
        start = bytes(sample)[:6]
        del sample
        samples.clear()
    # The view holds the memory of a closed file, whose sample is gone.
    assert bytes(view[:6]) == start == b"\x93NUMPY"
    with pytest.raises(ValueError, match="closed"):
        file.read()


def test_file_behaves_as_bytes_io(samples: dict[str, Any]) -> None:
    sample = samples["lines"]
    ours, theirs = sample.open(), io.BytesIO(sample)
    room, more = bytearray(7), bytearray(7)
    for do in (
        lambda file: file.read(3),
        lambda file: file.tell(),
        lambda file: file.readline(),
        lambda file: file.seek(-4, os.SEEK_END),
        lambda file: file.read(),
        lambda file: file.read(3),
        lambda file: file.seek(2),
        lambda file: file.readinto(room if file is ours else more),
        lambda file: file.readlines(),
        lambda file: file.seek(100),
        lambda file: file.read(None),
        lambda file: (file.readable(), file.seekable(), file.tell()),
    ):
        assert do(ours) == do(theirs)
    assert room == more
    with pytest.raises(io.UnsupportedOperation):
        ours.write(b"x")
    assert os.pread(ours.fileno(), 5, 0) == b"first"
    ours.close()
