"""Images, and plain PyTorch over them as the reference."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision")
np = pytest.importorskip("numpy")
Image = pytest.importorskip("PIL.Image")

from foreread.torch import wrap

SAMPLES = 103


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prime number of images of five classes, in ImageFolder's layout."""
    root = tmp_path_factory.mktemp("images")
    draw = random.Random(1)
    for number in range(SAMPLES):
        path = root / f"class{number % 5}" / f"{number:05}.png"
        path.parent.mkdir(exist_ok=True)
        Image.frombytes("RGB", (16, 16), draw.randbytes(16 * 16 * 3)).save(path)
    return root


@pytest.fixture(scope="session")
def jpegs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """96 JPEGs of different sizes in three classes."""
    from odd_images import picture, saved

    root = tmp_path_factory.mktemp("jpegs")
    for number in range(96):
        draw = random.Random(number)
        path = root / f"class{number % 3}" / f"{number:03}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(saved(picture(draw, draw.randrange(40, 160), draw.randrange(40, 160)), "JPEG"))
    return root


def to_tensor(image: Any) -> Any:
    """torchvision's ToTensor."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


@pytest.fixture
def folder(images: Path) -> Any:
    """torchvision's dataset over them."""
    return torchvision.datasets.ImageFolder(str(images), transform=to_tensor)


@pytest.fixture(autouse=True)
def generators() -> Iterator[None]:
    """Seeds the global generators before each test."""
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    yield


def served(loader: Any, root: Any = None, **settings: Any) -> Any:
    """wrap() with a memory tier, so that foreread serves the files and does not leave them to the page cache."""
    return wrap(loader, root, **{"memory": "16MiB", **settings})


def batches(loader: Any) -> list[tuple[Any, Any]]:
    """The batches of an epoch."""
    return [(x.clone(), y.clone()) for x, y in loader]


def assert_same(ours: list[tuple[Any, Any]], theirs: list[tuple[Any, Any]]) -> None:
    """Asserts equal batches, bit for bit."""
    assert len(ours) == len(theirs)
    for (x, y), (their_x, their_y) in zip(ours, theirs, strict=True):
        assert torch.equal(y, their_y)
        assert torch.equal(x, their_x)
