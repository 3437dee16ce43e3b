"""foreread.image: pixels of Pillow and torchvision, damaged and hostile images, and the same pixels however they are read."""

from __future__ import annotations

import io
import pickle
import random
import shutil
import struct
import tarfile
import warnings
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision")
np = pytest.importorskip("numpy")
Image = pytest.importorskip("PIL.Image")

import foreread
from foreread.torch import DataLoader
from odd_images import odd, picture, png, saved
from torch_images import jpegs  # noqa: F401
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

#: Images of odd kinds. Each kind has the same share.
ODD = 1000

def theirs(data: bytes) -> Any:
    return Image.open(io.BytesIO(data)).convert("RGB")


def ours(data: bytes, height: int, width: int) -> Any:
    """All pixels, without resizing."""
    return foreread.image((height, width), resize="stretch", layout="NHWC", threads=1).decode([data])[0]


# ---- pixels ----


# semantics: IMAGE-1
def test_odd_images_have_the_pixels_of_pillow() -> None:
    for number in range(ODD):
        kind, data = odd(number)
        image = theirs(data)
        assert np.array_equal(ours(data, image.height, image.width), np.asarray(image)), (number, kind, image.size)


# semantics: IMAGE-1
def test_random_crops_differ_from_torchvisions_by_a_level() -> None:
    decoder = foreread.image((61, 67), train=True, layout="NHWC", threads=2)
    changed = []
    for number in range(ODD):
        kind, data = odd(number)
        image = theirs(data)
        top, left, height, width, flipped = decoder.augmentation(*image.size, seed=4, epoch=2, sample=number)
        crop = F.resized_crop(image, top, left, height, width, [61, 67], InterpolationMode.BILINEAR)
        expected = np.asarray(F.hflip(crop) if flipped else crop).astype("int16")
        difference = np.abs(decoder.decode([data], seed=4, epoch=2, ids=[number])[0] - expected)
        assert difference.max() <= 1, (number, kind, image.size, difference.max())
        changed.append((difference > 0).mean())
    # docs/pytorch.md has this figure.
    assert np.mean(changed) < 0.3, np.mean(changed)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
# semantics: IMAGE-1
def test_validation_and_normalising_are_torchvisions(layout: Any) -> None:
    decoder = foreread.image(48, resize=64, mean="imagenet", layout=layout)
    plain = foreread.image(48, resize=64)
    for number in range(120):
        _, data = odd(number)
        crop = F.center_crop(F.resize(theirs(data), 64), 48)
        pixels = plain.decode([data])[0]
        assert np.abs(pixels - np.asarray(crop).astype("int16").transpose(2, 0, 1)).max() <= 1
        # Normalising these pixels gives exactly torchvision's values.
        expected = F.to_tensor(Image.fromarray(pixels.transpose(1, 2, 0)))
        expected = F.normalize(expected, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]).numpy()
        values = decoder.decode([data])[0]
        assert values.dtype == np.float32 and values.shape == decoder.shape
        assert np.array_equal(values if layout == "NCHW" else values.transpose(2, 0, 1), expected)


def test_floats_without_mean_are_to_tensors() -> None:
    _, data = odd(0)
    image = theirs(data)
    values = foreread.image((image.height, image.width), resize="stretch", dtype="float32").decode([data])[0]
    assert np.array_equal(values, F.to_tensor(image).numpy())


# ---- damaged and hostile images ----


# semantics: IMAGE-2
def test_damaged_images_decode_as_by_pillow_or_fail() -> None:
    """Each cut and each flipped byte: equal pixels, or an error. Where Pillow fails in a cut JPEG, so do crops above the cut."""
    cuts = failed = 0
    for number in range(600):
        kind, data = odd(number)
        draw = random.Random(number)
        if cut := number % 2 == 0:
            data = data[: draw.randrange(len(data))]
        else:
            data = bytearray(data)
            for _ in range(draw.choice((1, 3, 10))):
                data[draw.randrange(len(data))] = draw.randrange(256)
            data = bytes(data)
        try:
            expected = np.asarray(theirs(data))
        except Exception:
            expected = None
        if expected is not None and expected.size > 1e7:
            continue
        try:
            if expected is None:
                foreread.image(20, train=True, threads=1).decode([data], seed=number)
                assert not cut, (number, kind, "a part of a file was taken for a whole one")
            else:
                found = ours(data, *expected.shape[:2])
                assert np.array_equal(found, expected), (number, kind)
        except foreread.errors.CorruptError:
            failed += 1
        cuts += cut
    assert cuts == 300 and 200 < failed < 600, (cuts, failed)


def bomb(kind: str) -> bytes:
    """A short file of a large image."""
    if kind == "PNG":
        def chunk(name: bytes, data: bytes) -> bytes:
            return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

        header = chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0))
        return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1 << 20))) + chunk(b"IEND", b"")
    data = bytearray(saved(picture(random.Random(0), 64, 64), "JPEG"))
    start = data.index(b"\xff\xc0")
    data[start + 5 : start + 9] = struct.pack(">HH", 60_000, 60_000)
    return bytes(data)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
# semantics: IMAGE-3
def test_decompression_bombs_are_refused(kind: str) -> None:
    with pytest.raises(foreread.errors.CorruptError, match=r"60000 x 60000 pixels: more than max_pixels=89478485 are refused"):
        foreread.image(224, train=True).decode([bomb(kind)])


# semantics: IMAGE-3
def test_long_images_do_not_become_bombs_by_resizing() -> None:
    line = saved(picture(random.Random(0), 8000, 1), "PNG")
    with pytest.raises(foreread.errors.CorruptError, match="after resizing is too large"):
        foreread.image(224).decode([line])
    assert foreread.image(224, train=True).decode([line]).shape == (1, 3, 224, 224)


@pytest.mark.parametrize("size", [(1_500_000, 1), (1, 1_500_000)])
# semantics: IMAGE-3
def test_long_sides_do_not_become_bombs_by_stretching(size: tuple[int, int]) -> None:
    with pytest.raises(foreread.errors.CorruptError, match="a side is too long to be resized to 224 x 224"):
        foreread.image(224, resize="stretch").decode([saved(Image.new("RGB", size), "PNG")])


# semantics: IMAGE-2
def test_end_of_a_thumbnail_is_not_the_end_of_a_file() -> None:
    thumbnail = saved(picture(random.Random(1), 32, 32), "JPEG")
    data = saved(picture(random.Random(0), 500, 375), "JPEG")
    header = b"\xff\xe1" + struct.pack(">H", 8 + len(thumbnail)) + b"Exif\0\0" + thumbnail
    data = data[:2] + header + data[2:]
    cut = data[: data.index(b"\xff\xda", len(header)) + 2000]
    decoder = foreread.image(64, train=True, threads=1)
    for epoch in range(300):
        with pytest.raises(foreread.errors.CorruptError, match="truncated"):
            decoder.decode([cut], epoch=epoch)
    assert decoder.decode([data]).shape == (1, 3, 64, 64)


def test_data_after_a_progressive_jpeg_are_not_scans() -> None:
    data = saved(picture(random.Random(0), 64, 64), "JPEG", progressive=True)
    assert np.array_equal(ours(data + b"\xff\xda" * 1000, 64, 64), np.asarray(theirs(data)))


# semantics: IMAGE-3
def test_a_jpeg_of_many_scans_is_refused() -> None:
    data = saved(picture(random.Random(0), 64, 64), "JPEG", progressive=True)
    scan = data.index(b"\xff\xda")
    with pytest.raises(foreread.errors.CorruptError, match="more than 100 scans"):
        foreread.image(224, train=True).decode([data[:scan] + data[scan:-2] * 100 + data[-2:]])


@pytest.mark.parametrize(("data", "why"), [(b"", "empty"), (b"GIF89a" + bytes(99), "GIF is not supported"), (b"text", "not an image")])
def test_other_formats_are_named(data: bytes, why: str) -> None:
    with pytest.raises(foreread.errors.CorruptError, match=f"sample 7 cannot be decoded: .*{why}"):
        foreread.image(8).decode([data], ids=[7])


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Twelve grey images, of which three are damaged. Sample n is grey of level 20 n."""
    for number in range(12):
        data = saved(Image.new("RGB", (20, 20), (20 * number,) * 3), "PNG")
        path = tmp_path / f"class{number // 6}" / f"{number:02}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data[: len(data) // 2] if number in (1, 4, 5) else data)
    return tmp_path


def levels(loader: Any) -> list[list[tuple[int, int]]]:
    """The samples that the images of each batch show, and their labels."""
    return [[(int(image[0, 0, 0]) // 20, int(label)) for image, label in zip(*batch, strict=True)] for batch in loader]


# semantics: IMAGE-2
def test_damaged_images_are_named_or_omitted_or_replaced(damaged: Path) -> None:
    def read(policy: Any, **more: Any) -> Any:
        with DataLoader(damaged, 4, shuffle=False, decode=foreread.image(8), on_error=policy, epochs=1, **more) as loader:
            return levels(loader), loader.stats().skipped

    with pytest.raises(foreread.errors.CorruptError, match=r"sample 1 \(class0/01\.png\) of epoch 0 cannot be decoded: .*truncated"):
        read("fail")
    # With a transform, images go another way.
    for more in ({}, {"transform": lambda image: image}, {"transform": lambda image: image, "num_workers": 2}):
        with pytest.warns(RuntimeWarning) as warned:
            found = read("skip", **more)
        assert [str(one.message).partition(" of epoch 0")[0] for one in warned] == [
            "sample 1 (class0/01.png)", "sample 4 (class0/04.png)", "sample 5 (class0/05.png)"
        ]  # fmt: skip
        assert found == ([[(0, 0), (2, 0), (3, 0)], [(6, 1), (7, 1)], [(8, 1), (9, 1), (10, 1), (11, 1)]], 3)
        with pytest.warns(RuntimeWarning):
            found, skipped = read("substitute", **more)
        assert found[0] == [(0, 0), (0, 0), (2, 0), (3, 0)] and found[1][2:] == [(6, 1), (7, 1)] and skipped == 3
        assert found[1][:2] == [(6, 1), (6, 1)]


def test_batches_without_readable_samples_are_omitted(jpegs: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(jpegs, tmp_path / "own"))
    with DataLoader(root, 1, shuffle=False, decode=foreread.image(8), on_error="skip", epochs=1, look_ahead=1, memory=0) as loader:
        next(iter(loader))
    paths = sorted(root.rglob("*.jpg"))
    with DataLoader(root, 1, shuffle=False, decode=foreread.image(8), on_error="skip", epochs=1, look_ahead=1, memory=0) as loader:
        paths[50].unlink()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert len(list(loader)) == 95


# semantics: IMAGE-2
def test_epoch_of_damaged_images_alone_is_an_error(jpegs: Path) -> None:
    with DataLoader(jpegs, 8, decode=foreread.image(8, max_pixels=9), on_error="skip", epochs=1) as loader:
        with pytest.raises(foreread.errors.CorruptError, match="no sample of epoch 0 can be decoded"), pytest.warns(RuntimeWarning):
            list(loader)


def test_later_iteration_loses_no_batch_to_an_earlier_one(jpegs: Path) -> None:
    for transform in (None, lambda image: image):
        for workers in (0, 2):
            how: dict[str, Any] = {"decode": foreread.image(8), "transform": transform, "num_workers": workers}
            with DataLoader(jpegs, 8, shuffle=False, epochs=3, **how) as loader:
                first, expected = iter(loader), 12
                next(first)
                second = iter(loader)
                found = 1 + bool(next(second))
                with pytest.raises(foreread.errors.ClosedError):
                    next(first)
                assert found + len(list(second)) == expected + 1


def test_threads_that_decode_live_as_long_as_their_batch() -> None:
    _, data = odd(0)
    decoder = foreread.image(300, threads=1)
    pending = decoder.pool.begin_samples([data] * 50, list(range(50)), 0, 0)
    del decoder
    assert pending.finish()[1] == []
    # Threads of Python that come first at once share the decoder's threads.
    decoder = pickle.loads(pickle.dumps(foreread.image(16, threads=64)))
    with ThreadPoolExecutor(4) as many:
        assert len({id(pool) for pool in many.map(lambda _: decoder.pool, range(8))}) == 1


def test_members_and_labels_of_packed_samples(tmp_path: Path) -> None:
    """WebDataset: the label is a member, and comes first."""
    with tarfile.open(tmp_path / "shard-0.tar", "w") as shard:
        for number in range(9):
            image = saved(Image.new("RGB", (9, 9), (20 * number,) * 3), "PNG")
            for name, content in (("cls", str(number % 4).encode()), ("png", image)):
                entry = tarfile.TarInfo(f"{number:04}.{name}")
                entry.size = len(content)
                shard.addfile(entry, io.BytesIO(content))
    for transform in (None, lambda image: image):
        with DataLoader(
            tmp_path, 4, shuffle=False, decode=foreread.image(8), labels="cls", transform=transform, epochs=1
        ) as loader:  # fmt: skip
            assert sum(levels(loader), []) == [(number, number % 4) for number in range(9)]
    with pytest.raises(foreread.errors.ConfigError, match="fields"):
        DataLoader(tmp_path, 4, decode=foreread.image(8), labels="txt")


def test_batch_without_good_images_gets_an_earlier_image(damaged: Path) -> None:
    decoder = foreread.image(8)
    with DataLoader(damaged, 2, shuffle=False, decode=decoder, on_error="substitute", epochs=1) as loader, pytest.warns(RuntimeWarning):
        assert levels(loader)[2] == [(3, 0), (3, 0)]


# ---- the same pixels, however they are read ----


def epoch(loader: Any) -> Iterator[tuple[Any, Any]]:
    for images, labels in loader:
        yield images.clone(), labels


def reference(jpegs: Path, epochs: int, batch: int = 6) -> list[tuple[Any, Any]]:
    """The batches of one rank and one thread."""
    with DataLoader(jpegs, batch, seed=3, decode=foreread.image(32, train=True, threads=1), epochs=epochs) as loader:
        return [pair for _ in range(epochs) for pair in epoch(loader)]


# semantics: IMAGE-4
def test_pixels_do_not_depend_on_threads_ranks_or_batches(jpegs: Path) -> None:
    one = reference(jpegs, 2)
    assert not torch.equal(one[0][0], one[16][0])
    for threads, ahead, transform in ((4, 5, None), (2, 1, None), (3, 2, lambda image: image)):
        decoder = foreread.image(32, train=True, threads=threads)
        workers = 3 if transform else 0
        with DataLoader(
            jpegs, 6, seed=3, decode=decoder, epochs=2, prefetch_factor=ahead, transform=transform, num_workers=workers
        ) as loader:  # fmt: skip
            for expected, found in zip(one, [*epoch(loader), *epoch(loader)], strict=True):
                assert torch.equal(expected[0], found[0]) and torch.equal(expected[1], found[1])
    for ranks in (2, 3):
        shares = []
        for rank in range(ranks):
            decoder = foreread.image(32, train=True)
            with DataLoader(jpegs, 6 // ranks, seed=3, decode=decoder, rank=rank, world_size=ranks, peers="off", epochs=1) as loader:
                shares.append(list(epoch(loader)))
        for step, expected in enumerate(one[:16]):
            # DistributedSampler deals samples in turn.
            together = torch.stack([share[step][0] for share in shares], 1).flatten(0, 1)
            assert torch.equal(together, expected[0])


# semantics: IMAGE-4
def test_pixels_after_a_resume_are_those_of_the_whole_run(jpegs: Path) -> None:
    whole = reference(jpegs, 2)
    decoder = foreread.image(32, train=True)
    with DataLoader(jpegs, 6, seed=3, decode=decoder, epochs=2) as loader:
        batches = iter(loader)
        for _ in range(7):
            next(batches)
        state = loader.state_dict()
    # On two ranks, from the middle of the epoch.
    shares = []
    for rank in range(2):
        with DataLoader(jpegs, 3, seed=3, decode=decoder, epochs=2, rank=rank, world_size=2, peers="off") as loader:
            loader.load_state_dict(state)
            shares.append([*epoch(loader), *epoch(loader)])
    for step, expected in enumerate(whole[7:]):
        together = torch.stack([share[step][0] for share in shares], 1).flatten(0, 1)
        assert torch.equal(together, expected[0]), step


# semantics: IMAGE-1
def test_regions_of_incomplete_progressive_images_are_equal() -> None:
    """Where scans are missing, libjpeg smooths over neighbours, also over those outside of a region."""
    data = saved(picture(random.Random(3), 160, 120), "JPEG", progressive=True, quality=50)
    scans = [at for at in range(len(data)) if data[at : at + 2] == b"\xff\xda"]
    data = data[: scans[3]] + b"\xff\xd9"
    # Releases of libjpeg-turbo smooth differently, so these are its own pixels.
    image = Image.fromarray(ours(data, theirs(data).height, theirs(data).width))
    decoder = foreread.image((40, 40), train=True, layout="NHWC")
    for number in range(50):
        top, left, height, width, flipped = decoder.augmentation(*image.size, sample=number)
        crop = F.resized_crop(image, top, left, height, width, [40, 40], InterpolationMode.BILINEAR)
        expected = np.asarray(F.hflip(crop) if flipped else crop).astype("int16")
        assert np.abs(decoder.decode([data], ids=[number])[0] - expected).max() <= 1, number


# semantics: IMAGE-1
def test_grey_of_16_bits_with_transparency_has_pillows_pixels() -> None:
    values = np.array([[10, 200, 300, 40000]], "u2")
    plain = png(values, 16, 0)
    chunk = b"tRNS" + struct.pack(">H", 200)
    at = plain.index(b"IDAT") - 4
    data = plain[:at] + struct.pack(">I", 2) + chunk + struct.pack(">I", zlib.crc32(chunk)) + plain[at:]
    assert ours(data, 1, 4)[0, :, 0].tolist() == np.asarray(theirs(data))[0, :, 0].tolist() == [10, 200, 255, 255]


def test_other_seeds_and_epochs_have_other_crops() -> None:
    decoder = foreread.image(32, train=True)
    drawn = {decoder.augmentation(500, 375, seed=seed, epoch=epoch, sample=1) for seed in range(9) for epoch in range(9)}
    assert len(drawn) == 81


# ---- loaders ----


def test_transforms_follow_and_targets_change(jpegs: Path) -> None:
    decoder = foreread.image(16, threads=1)
    with DataLoader(jpegs, 6, shuffle=False, decode=decoder, epochs=1) as loader:
        plain = list(epoch(loader))
    with DataLoader(
        jpegs, 6, shuffle=False, decode=decoder, epochs=1, transform=lambda image: image.float() / 255, target_transform=lambda label: -label
    ) as loader:  # fmt: skip
        for (images, labels), (expected, numbers) in zip(loader, plain, strict=True):
            assert torch.equal(images, expected.float() / 255) and torch.equal(labels, -numbers)


@pytest.mark.parametrize("transform", [None, lambda image: image])
def test_batches_are_moved_to_a_device(jpegs: Path, transform: Any) -> None:
    settings: dict[str, Any] = {"decode": foreread.image(16), "epochs": 1, "transform": transform}
    # This device has no memory, so only kind and shape tell.
    with DataLoader(jpegs, 6, device="meta", **settings) as loader:
        found = [(images.device.type, labels.device.type, tuple(images.shape)) for images, labels in loader]
        assert found == [("meta", "meta", (6, 3, 16, 16))] * 16 and loader.stats().waits["transfer"] > 0
    # As batches of PyTorch's own collation are.
    with DataLoader(jpegs, 6, **settings) as loader:
        assert {type(batch) for batch in loader} == {list}
    with DataLoader(jpegs, 6, shuffle=False, device="cpu", **settings) as ours, DataLoader(jpegs, 6, shuffle=False, **settings) as plain:
        assert all(torch.equal(one[0], other[0]) for one, other in zip(ours, plain, strict=True))


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU: cuda_image.py tests it")
def test_missing_gpus_are_named(jpegs: Path) -> None:
    with pytest.raises(foreread.errors.ConfigError, match="finds no GPU"):
        DataLoader(jpegs, 6, device="cuda")


def test_memory_of_a_batch_is_reused_only_when_the_batch_is_gone(jpegs: Path) -> None:
    with DataLoader(jpegs, 6, seed=3, decode=foreread.image(32, train=True), epochs=3) as loader:
        kept = [pair for _ in range(3) for pair in loader]
    for (images, _), (expected, _) in zip(kept, reference(jpegs, 3), strict=True):
        assert torch.equal(images, expected)
    # It is the caller's own.
    kept[0][0].zero_()
    decoder = foreread.image(32, train=True)
    with DataLoader(jpegs, 6, seed=3, decode=decoder, epochs=9) as loader:
        places = {images.data_ptr() for _ in range(9) for images, _ in loader}
    assert len(places) <= 8, len(places)


# semantics: IMAGE-5
def test_waits_are_split_by_their_cause(jpegs: Path) -> None:
    with DataLoader(jpegs, 6, decode=foreread.image(200, train=True, threads=1), memory="64MiB") as loader:
        list(loader)
        loader.stats()
        for _ in range(5):
            for _ in range(3):
                list(loader)
            stats = loader.stats()
            # A busy machine may delay one of the threads in all three epochs.
            if stats.waits["decode"] > 0.2 > stats.waits["storage"]:
                break
    assert set(stats.waits) == {"storage", "decode", "transform", "collate", "transfer"}
    assert stats.waits["decode"] > 0.2 > stats.waits["storage"], stats.waits
    assert stats.limiting == "decode" and "decode" in str(stats), str(stats)
    assert stats.report["waits"] == stats.waits


def test_decoder_in_datasets_and_processes(jpegs: Path) -> None:
    decoder = pickle.loads(pickle.dumps(foreread.image(16)))
    data = foreread.torch.Dataset(jpegs, decode=decoder)
    from torch.utils.data import DataLoader as Plain

    expected = [np.asarray(image) for image, _ in data]
    for context in ("fork", "spawn"):
        with_workers = Plain(data, 9, num_workers=2, multiprocessing_context=get_context(context))
        found = [image.numpy() for images, _ in with_workers for image in images]
        assert all(np.array_equal(*pair) for pair in zip(expected, found, strict=True))
    data.engine.close()
    with pytest.raises(foreread.errors.ConfigError, match="use foreread.torch.DataLoader"):
        foreread.image(16, train=True)(b"")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"size": 0}, "1 to 65535 pixels a side"),
        ({"size": 8, "train": True, "scale": (0.5, 2.0)}, "scale"),
        ({"size": 8, "train": True, "ratio": (2.0, 1.0)}, "ratio"),
        ({"size": 8, "train": True, "flip": 2.0}, "flip"),
        ({"size": 8, "train": True, "resize": 9}, "random crops"),
        ({"size": 8, "resize": 4}, "at least the size, 8"),
        ({"size": 8, "mean": (0.5, 0.5, 0.5)}, "mean and std belong together"),
        ({"size": 8, "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.0, 0.5)}, "each std above 0"),
        ({"size": 8, "mean": "imagenet", "dtype": "uint8"}, "float32"),
        ({"size": 8, "mean": (123.0, 116.0, 103.0), "std": (58.0, 57.0, 57.0)}, "not to 255"),
        ({"size": 8, "flip": 0.5}, "only random crops"),
        ({"size": 8, "threads": 0}, "threads=0"),
        ({"size": 8, "max_pixels": -1}, "max_pixels=-1"),
        ({"size": 8, "layout": "CHWN"}, "NCHW"),
    ],
)
def test_invalid_options_are_refused(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(foreread.errors.ConfigError, match=why):
        foreread.image(**arguments)


@pytest.mark.parametrize("size", ["224", 2.5, (1, 2, 3), None])
def test_sizes_of_wrong_types_are_named(size: Any) -> None:
    with pytest.raises(TypeError, match="size must be a number of pixels"):
        foreread.image(size)
    assert foreread.image(np.int64(8)).shape == (3, 8, 8)


def test_decoder_that_was_not_made_is_named(jpegs: Path) -> None:
    with pytest.raises(foreread.errors.ConfigError, match=r"call it, such as foreread.image\(224\)"):
        DataLoader(jpegs, 8, decode=foreread.image)
    with pytest.raises(foreread.errors.ConfigError, match="width=0: at least 1"):
        foreread.image(8).augmentation(0, 8)
