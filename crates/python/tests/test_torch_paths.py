"""The paths by which a dataset opens its files, and the modes: wrap() serves what Python's open would give."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import foreread
from foreread.torch import wrap
from foreread.torch._files import Serving
from torch.utils.data import DataLoader
from torch_images import served


class Opened(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
    """What a function makes of each path."""

    def __init__(self, paths: list[Any], make: Callable[[Any], Any]) -> None:
        self.paths, self.make = paths, make

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return self.make(self.paths[index])


def content(path: Any) -> bytes:
    with open(path, "rb") as file:
        return file.read()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Twelve files and a link to their directory."""
    made = tmp_path / "data" / "val"
    made.mkdir(parents=True)
    for number in range(12):
        (made / f"{number:02}.txt").write_text(f"ä {number}\r\nsecond\n", encoding="utf-8", newline="")
    (tmp_path / "link").symlink_to(made)
    (tmp_path / "elsewhere").mkdir()
    return made


def counted(dataset: Any, root: Any, paths: Any, workers: int = 0) -> tuple[list[Any], int]:
    """The samples, and how many files foreread served."""
    loader = DataLoader(dataset, 4, collate_fn=list, num_workers=workers)
    with served(loader, root, paths=paths) as ours:
        found = [one for batch in ours for one in batch]
        return found, ours.stats().samples


SPELLINGS: dict[str, Callable[[str], Any]] = {
    "same": str,
    "pathlib": Path,
    "bytes": os.fsencode,
    "double slash": lambda path: path.replace("/val/", "//val//"),
    "dot": lambda path: path.replace("/val/", "/./val/././"),
    "parent": lambda path: path.replace("/val/", "/val/../val/"),
    "relative": os.path.relpath,
    "link": lambda path: path.replace("/data/val/", "/link/"),
}


@pytest.mark.parametrize("opened", SPELLINGS)
# semantics: PY-14
def test_path_may_be_spelled_otherwise(root: Path, opened: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root.parent)
    files = sorted(map(str, root.iterdir()))
    data = Opened([SPELLINGS[opened](path) for path in files], content)
    for named, spelled in SPELLINGS.items():
        found, count = counted(data, root, [spelled(path) for path in files])
        assert found == [content(path) for path in files] and count == len(files), named


# semantics: PY-14
def test_root_may_be_a_link_or_relative(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = sorted(map(str, root.iterdir()))
    monkeypatch.chdir(root.parents[1] / "elsewhere")
    for spelled in ("../link", "../link/../val", root.parents[1] / "link", f"{root}//."):
        found, count = counted(Opened(files, content), spelled, files)
        assert found == [content(path) for path in files] and count == len(files), spelled


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("at", ["/", ".", "../elsewhere"])
def test_relative_paths_may_be_relative_to_root(
    root: Path, at: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root.parent)
    monkeypatch.chdir(at)
    names = sorted(path.name for path in root.iterdir())
    data = Opened(names, lambda name: content(os.path.join(root, name)))
    found, count = counted(data, root, names, workers)
    assert found == [content(root / name) for name in names] and count == len(names)


# semantics: PY-14
def test_relative_path_is_of_the_current_directory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = sorted(path.name for path in root.iterdir())
    other = root.parent / "other"
    shutil.copytree(root, other)
    (other / names[0]).write_text("other")
    monkeypatch.chdir(root)
    with served(DataLoader(Opened(names, content), 4, collate_fn=list), root, paths=names) as ours:
        assert next(iter(ours))[0] == content(root / names[0])
        monkeypatch.chdir(other)
        assert next(iter(ours))[0] == b"other"
    # By text, the path would be root's.
    (root / "away").symlink_to(other)
    (root.parent / names[1]).write_text("parent's")
    data = Opened([f"{root}/away/../{names[1]}"], content)
    found, _ = counted(data, root, [str(root / names[1])])
    assert found == [b"parent's"]


READERS: dict[str, Callable[[Any], Any]] = {
    "text": lambda path: open(path, encoding="utf-8").read(),
    "lines": lambda path: list(open(path, "rt", encoding="utf-8", newline="")),
    "latin-1": lambda path: open(path, "tr", 1, "latin-1").readlines(),
    "errors": lambda path: open(path, encoding="ascii", errors="replace").read(),
    "io": lambda path: io.open(path, encoding="utf-8", newline="\n").readline(),
    "pathlib": lambda path: Path(path).read_text("utf-8"),
    "bytes": lambda path: Path(path).read_bytes(),
    "br": lambda path: open(path, "br", 16).read(3),
    "name": lambda path: [(file.name, file.mode, file.encoding) for file in [open(path, "r", encoding="utf8")]],
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("reader", READERS)
# semantics: PY-14
def test_text_is_served_as_open_decodes_it(root: Path, reader: str) -> None:
    files = sorted(map(str, root.iterdir()))
    data = Opened(files, READERS[reader])
    found, count = counted(data, root, files)
    assert found == [READERS[reader](path) for path in files] and count == len(files)


@pytest.mark.parametrize(
    "arguments", [("r", 0), ("rb", -1, "utf-8"), ("rt", -1, "nonsense"), ("rbt",), ("rr",), ("rb", -1, None, None, "")]
)
def test_invalid_arguments_of_open_fail_as_usual(root: Path, arguments: tuple[Any, ...]) -> None:
    path = str(root / "00.txt")
    with Serving({path: lambda: b"x"}):
        with pytest.raises((ValueError, LookupError)) as ours:
            open(path, *arguments)
    with pytest.raises((ValueError, LookupError)) as theirs:
        open(path, *arguments)
    assert (ours.type, str(ours.value)) == (theirs.type, str(theirs.value))


def test_file_of_another_opener_is_not_served(root: Path) -> None:
    path = str(root / "00.txt")
    with Serving({path: lambda: b"x"}):
        with open(path, "rb", opener=lambda _, flags: os.open(root / "01.txt", flags)) as file:
            assert file.read() == content(root / "01.txt")


@pytest.mark.parametrize("workers", [0, 2])
# semantics: PY-14
def test_all_files_of_a_sample_are_served(root: Path, workers: int) -> None:
    files = sorted(map(str, root.iterdir()))
    # A pair, three of a sample, one, and one twice.
    groups: list[Any] = [tuple(files[:2]), files[2:5], files[5], [files[6], files[6]], [*files[7:]]]
    data = Opened(groups, lambda group: [content(path) for path in ([group] if isinstance(group, str) else group)])
    for paths in (groups, groups.__getitem__):
        found, count = counted(data, root, paths, workers)
        assert found == [data[at] for at in range(len(data))] and count == len(files)
    with wrap(DataLoader(data, 2, collate_fn=list, shuffle=True), root, paths=groups) as ours:
        assert sum(len(one) for batch in ours for one in batch) == len(files) + 1
        assert ours._pages is not None and ours._pages._numbers.count(-1) == 5 * len(groups) - len(files)


def test_wrong_paths_are_named(root: Path) -> None:
    files = sorted(map(str, root.iterdir()))
    data = Opened(files, content)
    with pytest.raises(TypeError, match=r"paths: sample 0 has {'image': .*expected a path, or a list or tuple of paths"):
        served(DataLoader(data, 4), root, paths=[{"image": path} for path in files])
    with pytest.raises(foreread.errors.ConfigError, match="names the files of 11 samples, and the dataset has 12"):
        served(DataLoader(data, 4), root, paths=files[1:])
    data.samples = [{"image": path} for path in files]
    with pytest.raises(foreread.errors.ConfigError, match="Opened does not name its samples' files.*pass paths="):
        served(DataLoader(data, 4), root)
