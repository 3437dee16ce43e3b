"""A dataset of Hugging Face that foreread reads has the items of the plain one."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest

datasets = pytest.importorskip("datasets")
np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")

import foreread.huggingface
import foreread.torch
from torch.utils.data import DataLoader

pytestmark = pytest.mark.frameworks

SAMPLES = 41
FEATURES = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64"), "text": datasets.Value("string")})


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    datasets.disable_progress_bars()
    yield


def picture(number: int) -> bytes:
    """A PNG file, of varying length."""
    file = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 255, (4, 5, 3), np.uint8)
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


@pytest.fixture
def files(tmp_path: Path) -> Any:
    """A dataset of image files."""
    paths = [tmp_path / f"class{number % 3}" / f"{number:02}.png" for number in range(SAMPLES)]
    for number, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(picture(number))
    labels = [number % 3 for number in range(SAMPLES)]
    rows = {"image": list(map(str, paths)), "label": labels, "text": [path.name for path in paths]}
    return datasets.Dataset.from_dict(rows, features=FEATURES)


@pytest.fixture
def shards(tmp_path: Path) -> Any:
    """A dataset in three Arrow files, as ``load_dataset`` and ``save_to_disk`` leave it."""
    rows = {
        "image": [{"bytes": picture(number), "path": f"{number}.png"} for number in range(SAMPLES)],
        "label": [number % 3 for number in range(SAMPLES)],
        "text": [f"text {number}" for number in range(SAMPLES)],
    }
    datasets.Dataset.from_dict(rows, features=FEATURES).save_to_disk(tmp_path / "saved", num_shards=3)
    return datasets.load_from_disk(tmp_path / "saved")


@pytest.fixture(params=["files", "shards"])
def plain(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def comparable(item: Any) -> Any:
    """An item with arrays in place of images."""
    if isinstance(item, dict):
        return {name: comparable(value) for name, value in item.items()}
    if isinstance(item, (list, tuple)):
        return [comparable(value) for value in item]
    if isinstance(item, Image.Image):
        return [item.mode, item.size, item.format, np.asarray(item).tolist()]
    return item.tolist() if hasattr(item, "tolist") else item


def tensors(batch: dict[str, Any]) -> dict[str, Any]:
    """A transform."""
    pixels = [torch.from_numpy(np.array(image)).float() for image in batch["image"]]
    return {"pixels": pixels, "label": batch["label"], "text": batch["text"]}


VIEWS = {
    "plain": lambda data: data,
    "shuffled": lambda data: data.shuffle(seed=2),
    "selected": lambda data: data.select([30, 3, 3, 20, 7]),
    "sliced": lambda data: data.select(range(11, 38)).select(range(2, 20)),
    "sharded": lambda data: data.shuffle(seed=1).shard(3, 1),
    "concatenated": lambda data: datasets.concatenate_datasets([data.select(range(20, 30)), data.select(range(5))]),
    "renamed": lambda data: data.rename_column("label", "target").remove_columns("text"),
    "numpy": lambda data: data.with_format("numpy"),
    "torch": lambda data: data.with_format("torch", columns=["label"], output_all_columns=True),
    "transformed": lambda data: data.shuffle(seed=3).with_transform(tensors),
}


@pytest.mark.parametrize("view", VIEWS)
def test_items_are_the_plain_ones(plain: Any, view: str) -> None:
    theirs = VIEWS[view](plain)
    with foreread.huggingface.wrap(theirs, memory="16MiB") as ours:
        assert len(ours) == len(theirs)
        keys = [0, len(theirs) - 1, -1, slice(1, 4), slice(None, None, 2), [2, 0, 2], range(1, 4), np.array([3, 1])]
        for key in keys:
            assert comparable(ours[key]) == comparable(theirs[key]), key
        assert comparable(ours.__getitems__([4, 1])) == comparable(theirs.__getitems__([4, 1]))
        assert ours.features == theirs.features
        for name in set(theirs.column_names) - {"image"}:
            if view != "transformed":
                assert comparable(ours[name][:]) == comparable(theirs[name][:])
        with pytest.raises(IndexError):
            ours[len(theirs)]
        # The bytes came from foreread.
        assert ours.engine.source.report()["asked"] is not None
        assert ours.engine.source.report()["origin_requests"] > 0


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_give_the_plain_batches(plain: Any, workers: int, wrapped: bool) -> None:
    def loader(data: Any) -> Any:
        generator = torch.Generator().manual_seed(4)
        return DataLoader(data, 8, shuffle=True, num_workers=workers, generator=generator)

    theirs = plain.shuffle(seed=3).with_transform(tensors)
    expected = [comparable(list(epoch)) for other in [loader(theirs)] for epoch in (other, other)]
    data = foreread.huggingface.wrap(theirs, memory="16MiB")
    first = data.engine.source.report()["direct"]["origin"].get("samples", 0)
    ours = foreread.torch.wrap(loader(data)) if wrapped else loader(data)
    assert [comparable(list(ours)) for _ in range(2)] == expected
    report = data.engine.source.report()
    # Each sample is read once, and ahead if the order is known.
    assert report["origin_requests"] == SAMPLES
    direct = sum(tier.get("samples") or 0 for tier in report["direct"].values()) - first
    assert direct == (0 if wrapped else 2 * SAMPLES)
    data.close()


def test_later_transforms_are_followed(plain: Any) -> None:
    with foreread.huggingface.wrap(plain) as ours:
        plain.set_transform(lambda batch: {"sizes": [image.size for image in batch["image"]]})
        assert ours[3] == {"sizes": (5, 4)}
        ours.reset_format()
        assert ours[3]["label"] == 0


def test_bytes_of_shards_without_decoding(shards: Any) -> None:
    theirs = shards.cast_column("image", datasets.Image(decode=False))
    with foreread.huggingface.wrap(theirs) as ours:
        assert ours[5] == theirs[5]
        assert ours[5]["image"]["bytes"] == picture(5)


def test_rewritten_files_are_read_by_datasets(files: Any) -> None:
    with foreread.huggingface.wrap(files) as ours:
        path = files.cast_column("image", datasets.Image(decode=False))[4]["image"]["path"]
        Path(path).write_bytes(picture(1000))
        os.utime(path, ns=(1, 1))
        assert comparable(ours[4]["image"]) == comparable(Image.open(io.BytesIO(picture(1000))))


def test_failed_read_names_the_file(files: Any) -> None:
    with foreread.huggingface.wrap(files) as ours:
        os.unlink(files.cast_column("image", datasets.Image(decode=False))[4]["image"]["path"])
        with pytest.raises(FileNotFoundError, match="04.png"):
            ours[4]


def test_audio_gets_its_bytes(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.wav" for number in range(3)]
    for number, path in enumerate(paths):
        path.write_bytes(b"sound %d" % number)
    data = datasets.Dataset.from_dict({"audio": list(map(str, paths))}).cast_column("audio", datasets.Audio())
    with foreread.huggingface.wrap(data) as ours:
        # Decoding needs torchcodec. So the Arrow rows are compared.
        rows = ours._made([2, 0], [2, 0])._data.column("audio").to_pylist()
    assert rows == [{"bytes": b"sound 2", "path": str(paths[2])}, {"bytes": b"sound 0", "path": str(paths[0])}]


def test_rows_without_an_image_are_none(files: Any) -> None:
    paths = [row["path"] for row in files.cast_column("image", datasets.Image(decode=False))["image"]]
    rows = {"image": [paths[0], None, paths[2]], "number": [0, 1, 2]}
    plain = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
    with foreread.huggingface.wrap(plain) as ours:
        assert ours[1] == plain[1] == {"image": None, "number": 1}
        assert [image is None for image in ours[:]["image"]] == [False, True, False]
        assert [item["image"] is None for item in ours.__getitems__([1, 2])] == [True, False]


def test_undecodable_image_names_its_path(files: Any, tmp_path: Path) -> None:
    (tmp_path / "class1" / "04.png").write_bytes(b"no image")
    with foreread.huggingface.wrap(files) as ours:
        for take in (lambda: ours[4], lambda: ours[2:6], lambda: ours[[3, 4]], lambda: ours.__getitems__([3, 4])):
            with pytest.raises(Exception) as caught:
                take()
            assert "row 4 (class1/04.png) cannot be decoded" in caught.value.__notes__[0]


def test_unknown_locations_are_named(files: Any, shards: Any, tmp_path: Path) -> None:
    def refused(data: Any, match: str, **arguments: Any) -> None:
        with pytest.raises(foreread.errors.ConfigError, match=match):
            foreread.huggingface.wrap(data, **arguments)

    refused(files.remove_columns("image"), "no column of images")
    refused(files, "expected one of", column="label")
    refused(files.cast_column("image", datasets.Image(decode=False)), "serves them")
    refused(files, "set root=", root=tmp_path / "saved")
    refused(files.add_column("other", files.data.column("image").combine_chunks(), feature=datasets.Image()), "pass column=")
    rows = {"image": [{"bytes": picture(1), "path": None}]}
    in_memory = datasets.Dataset.from_dict(rows, features=datasets.Features({"image": datasets.Image()}))
    refused(in_memory, "save_to_disk")
    images = datasets.Features({"image": datasets.Image()})
    refused(datasets.Dataset.from_dict({"image": ["https://example.org/1.png"]}, features=images), "remote files")
    with pytest.raises(TypeError, match="streaming=True"):
        foreread.huggingface.wrap(files.to_iterable_dataset())
    with pytest.raises(TypeError, match="one split"):
        foreread.huggingface.wrap(datasets.DatasetDict({"train": files}))
