"""The names of the package: few at the top, and old ones that name their successors."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import warnings
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

import foreread

#: The most names at the top level.
MOST = 24


def test_top_level_has_few_names_that_exist() -> None:
    assert len(foreread.__all__) <= MOST
    assert all(hasattr(foreread, name) for name in foreread.__all__)
    with pytest.raises(AttributeError, match="module 'foreread' has no attribute 'NoError'"):
        foreread.NoError  # type: ignore[attr-defined]


def test_moved_exceptions_warn_once_each() -> None:
    code = (
        "import warnings, foreread\n"
        "with warnings.catch_warnings(record=True) as found:\n"
        "    warnings.simplefilter('always')\n"
        "    from foreread import ConfigError\n"
        "    assert ConfigError is foreread.ConfigError is foreread.errors.ConfigError\n"
        "    foreread.ClosedError\n"
        "print(*(f'{one.category.__name__} {one.lineno}: {one.message}' for one in found), sep='\\n')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "DeprecationWarning 4: foreread.ConfigError is deprecated: use foreread.errors.ConfigError",
        "DeprecationWarning 6: foreread.ClosedError is deprecated: use foreread.errors.ClosedError",
    ]


def replaced(old: Callable[[], Any], new: str) -> Any:
    """What an old name returns, with one warning that has the new one."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        result = old()
    assert [(one.category, one.filename) for one in found] == [(DeprecationWarning, __file__)]
    assert str(found[0].message).endswith(f" is deprecated: use {new}")
    return result


def test_old_names_of_classes_warn(directory: Path) -> None:
    with foreread.Loader(directory, batch_size=4, epochs=1) as loader, foreread.Source(directory) as source:
        assert replaced(lambda: loader.labels, "Loader.classes") == loader.classes == ["class0", "class1", "class2", "class3"]
        assert replaced(lambda: source.labels, "Source.classes") == source.classes == loader.classes
        catalog = loader.catalog
        assert replaced(lambda: catalog.labels, "Catalog.classes") == catalog.classes == loader.classes


def test_old_names_of_values_and_fields_warn(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    with tarfile.open(tmp_path / "a.tar", "w") as shard:
        for name, content in [("0.txt", b"abc"), ("0.cls", b"7")]:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            shard.addfile(member, BytesIO(content))
    with foreread.Source(tmp_path / "a.tar") as source:
        sample = source.get(0)
        assert replaced(sample.fields, "Sample.field_names") == sample.field_names == ["txt", "cls"]
        assert replaced(sample.values, "Sample.value_names") == sample.value_names == []
        assert replaced(lambda: sample.value("cls"), "sample[name]") is None
        assert bytes(sample["cls"]) == bytes(sample.field("cls")) == b"7"
        with pytest.raises(TypeError, match="the field 'txt' has no known type"):
            sample.field("txt").array()
        with pytest.raises(TypeError, match="no fields of known types"), pytest.warns(DeprecationWarning):
            sample.arrays()
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["images"], file["sizes"] = numpy.arange(12, dtype="<u2").reshape(3, 4), numpy.arange(6, dtype=">f4").reshape(3, 2)
    with foreread.Source(foreread.index(tmp_path / "b.h5", field=["images", "sizes"])) as source:
        sample = source.get(2)
        arrays = replaced(sample.arrays, "sample.field(name).array()")
        assert list(arrays) == sample.field_names == ["images", "sizes"]
        for name in sample.field_names:
            array = sample[name].array()
            assert (array.dtype, array.shape) == (arrays[name].dtype, arrays[name].shape)
            assert numpy.array_equal(array, arrays[name]) and not array.flags.owndata
