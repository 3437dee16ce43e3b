"""Images to batches, and to a GPU: PyTorch's DataLoader, foreread's, the two together, and where installed SPDL and DALI.

python benches/peers/training.py [--images N] [--workers N...] [--threads N] [--batch N] [--step MILLISECONDS] [--url s3://BUCKET]

Writes JPEGs of ImageNet's sizes, and prints a table of images/s and CPU per image without a model. With a GPU it then trains
ResNet-50 and prints images/s and the share of time in which the trainer waited. Without one, `--step` gives the time of a
step, for which the trainer sleeps. All files are in the page cache.

With `--url` only foreread reads, from a bucket that has the same files: `--directory` writes them, and the example `store`
of `foreread-tier-testing` serves such a directory.

All contenders crop and flip at random, resize to 224 x 224, and normalise. DALI and SPDL do so by libraries of their own, so
pixels differ: by a level from foreread, PyTorch and torchvision's v2 to each other, by more from DALI and SPDL.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import measuring
import numpy
import torch
import torchvision
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

import foreread
import foreread.torch


#: Sizes in ImageNet's proportions: most images have 500 pixels on the longer side.
SIZES = ((500, 375),) * 5 + ((375, 500),) * 2 + ((500, 333), (333, 500), (400, 300), (640, 480), (256, 256))


def write(number: int, root: Path) -> int:
    """A smooth picture with some noise, of 110 KB in the mean."""
    random = numpy.random.default_rng(number)
    width, height = SIZES[random.integers(len(SIZES))]
    coarse = Image.fromarray(random.integers(0, 256, (12, 16, 3), "uint8")).resize((width, height), Image.Resampling.BICUBIC)
    noise = random.normal(0, 25, (height, width, 3))
    pixels = numpy.clip(numpy.asarray(coarse, "float32") + noise, 0, 255).astype("uint8")
    path = root / f"{number % 10}" / f"{number:06}.jpg"
    Image.fromarray(pixels).save(path, quality=90)
    return path.stat().st_size


def make(root: Path, images: int) -> int:
    for label in range(10):
        (root / str(label)).mkdir(parents=True)
    with ProcessPoolExecutor() as pool:
        return sum(pool.map(write, range(images), repeat(root), chunksize=64))


def measured(root: Path) -> int:
    """The bytes of files that an earlier run has written."""
    return sum(path.stat().st_size for path in root.rglob("*.jpg"))


def transform() -> Any:
    normalize = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize]
    return transforms.Compose(steps)


def has_spdl(root: Path) -> bool:
    """Whether SPDL is installed, with FFmpeg's libraries."""
    try:
        import spdl.io

        spdl.io.demux_image(next(str(path) for path in root.rglob("*.jpg")))
    except (ImportError, RuntimeError):
        return False
    return True


def with_spdl(root: Path, options: Any) -> Iterable[Any]:
    """Decoding, cropping and resizing by FFmpeg in threads without the interpreter's lock."""
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    files = ImageFolder(str(root)).samples
    random = numpy.random.default_rng()
    crop = transforms.RandomResizedCrop(224)
    mean, deviation = torch.tensor((123.7, 116.3, 103.5)), torch.tensor((58.4, 57.1, 57.4))

    def batches() -> Iterator[Any]:
        order = random.permutation(len(files))
        for start in range(0, len(files) - options.batch + 1, options.batch):
            yield [files[at] for at in order[start : start + options.batch]]

    def decoded(batch: Any) -> Any:
        frames = []
        for path, _ in batch:
            packets = spdl.io.demux_image(path)
            size = torch.empty(3, packets.codec.height, packets.codec.width)
            top, left, height, width = crop.get_params(size, list(crop.scale), list(crop.ratio))
            flip = ",hflip" if random.random() < 0.5 else ""
            steps = f"crop={width}:{height}:{left}:{top},scale=224:224{flip},format=pix_fmts=rgb24"
            frames.append(spdl.io.decode_packets(packets, filter_desc=steps))
        pixels = spdl.io.to_torch(spdl.io.convert_frames(frames))
        images = ((pixels.float() - mean) / deviation).permute(0, 3, 1, 2).contiguous()
        return images, torch.tensor([label for _, label in batch])

    class Epochs:
        def __iter__(self) -> Iterator[Any]:
            threads = options.threads
            builder = PipelineBuilder().add_source(batches()).pipe(decoded, concurrency=threads).add_sink(2)
            pipeline = builder.build(num_threads=threads)
            with pipeline.auto_stop():
                yield from pipeline

    return Epochs()


def with_dali(root: Path, options: Any) -> Iterable[Any]:
    """NVIDIA's pipeline on the CPU. Labels are numbers of directories, as in the others."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

    @pipeline_def(batch_size=options.batch, num_threads=options.threads, device_id=None)
    def pipeline() -> Any:
        files, labels = fn.readers.file(file_root=str(root), random_shuffle=True, name="files")
        images = fn.decoders.image_random_crop(files, device="cpu", output_type=types.RGB)
        images = fn.resize(images, size=(224, 224), interp_type=types.INTERP_LINEAR, antialias=True)
        mean, deviation = [123.7, 116.3, 103.5], [58.4, 57.1, 57.4]
        flip = fn.random.coin_flip()
        return fn.crop_mirror_normalize(images, mirror=flip, mean=mean, std=deviation, dtype=types.FLOAT), labels

    class Epochs:
        batches: Any = None

        def __iter__(self) -> Iterator[Any]:
            if self.batches is None:
                policy = LastBatchPolicy.DROP
                names = ["images", "labels"]
                self.batches = DALIGenericIterator(pipeline(), names, reader_name="files", last_batch_policy=policy)
            for batch in self.batches:
                yield batch[0]["images"], batch[0]["labels"].squeeze(1)
            self.batches.reset()

    return Epochs()


class Tensors(ImageFolder):
    """torchvision's v2 transforms of tensors, which its own decoder makes."""

    def __init__(self, root: str) -> None:
        from torchvision.io import ImageReadMode, decode_image
        from torchvision.transforms import v2

        normalize = v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        crop = v2.RandomResizedCrop(224, antialias=True)
        steps = [crop, v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True), normalize]
        super().__init__(root, v2.Compose(steps), loader=lambda path: decode_image(path, ImageReadMode.RGB))


def loaders(root: Path, options: Any, pin: bool) -> dict[str, Callable[[], Iterable[Any]]]:
    """A function for each contender. Each call of its result is one epoch's batches."""
    torch.manual_seed(0)
    threads = options.threads

    def plain(workers: int, data: Any) -> Any:
        return DataLoader(
            data(),
            options.batch,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=pin,
            drop_last=True,
        )

    def pillow() -> Any:
        return ImageFolder(str(root), transform())

    def ours(**how: Any) -> Any:
        return foreread.torch.DataLoader(
            options.url or str(root), batch_size=options.batch, seed=0, pin_memory=pin, drop_last=True, memory=options.memory,
            epochs=options.epochs, **how,
        )  # fmt: skip

    def image() -> Any:
        return ours(decode=foreread.image(224, train=True, mean="imagenet", threads=threads))

    native = f"foreread.image, {threads} threads"
    if options.url:
        return {f"{native}, {options.url}": image}
    contenders: dict[str, Callable[[], Iterable[Any]]] = {}
    for workers in options.workers:
        contenders[f"DataLoader, {workers} workers"] = partial(plain, workers, pillow)
    for workers in options.workers:
        contenders[f"DataLoader, torchvision v2 of tensors, {workers} workers"] = partial(plain, workers, partial(Tensors, str(root)))
    if has_spdl(root):
        contenders[f"SPDL, {threads} threads"] = lambda: with_spdl(root, options)
    if importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.dali"):
        contenders[f"DALI on the CPU, {threads} threads"] = lambda: with_dali(root, options)
    contenders[f"foreread, Pillow, {threads} threads"] = lambda: ours(transform=transform(), num_workers=threads)
    contenders[f"foreread.wrap, {threads} workers"] = lambda: foreread.torch.wrap(plain(threads, pillow), memory=options.memory)
    return contenders | {native: image}


class Trainer:
    """ResNet-50 on a GPU, or a pause."""

    def __init__(self, step: float | None) -> None:
        self.step, self.model = step, None
        if torch.cuda.is_available():
            self.model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
            self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
            torch.backends.cudnn.benchmark = True

    def __call__(self, images: Any, labels: Any) -> None:
        if self.model is None:
            time.sleep((self.step or 0) / 1000)
            return
        images = images.cuda(non_blocking=True).to(memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(self.model(images), labels.cuda(non_blocking=True))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        # The time of a step ends when the GPU has done it.
        torch.cuda.synchronize()

    def alone(self, batch: int) -> float:
        """Seconds of a step whose batch is there."""
        images, labels = torch.randn(batch, 3, 224, 224), torch.zeros(batch, dtype=torch.long)
        if self.model is not None:
            images, labels = images.cuda(), labels.cuda()
        for _ in range(5):
            self(images, labels)
        start = time.perf_counter()
        for _ in range(20):
            self(images, labels)
        return (time.perf_counter() - start) / 20


def epochs(loader: Any, trainer: Callable[[Any, Any], None] | None, count_of_epochs: int) -> Iterator[tuple[float, float, float]]:
    """Images per second of each epoch, the part of its time in which the trainer waited, and CPU seconds per image."""
    for epoch in range(count_of_epochs):
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        count, waited, used, start = 0, 0.0, measuring.cpu(), time.perf_counter()
        batches = iter(loader)
        while True:
            asked = time.perf_counter()
            batch = next(batches, None)
            waited += time.perf_counter() - asked
            if batch is None:
                break
            count += len(batch[0])
            if trainer is not None:
                trainer(*batch)
        seconds = time.perf_counter() - start
        yield count / seconds, waited / seconds, (measuring.cpu() - used) / count


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--images", type=int, default=8192)
    arguments.add_argument("--workers", type=int, nargs="+", default=[0, 2, 4], help="of PyTorch's DataLoader")
    arguments.add_argument("--threads", type=int, default=os.cpu_count(), help="of the others")
    arguments.add_argument("--batch", type=int, default=256)
    arguments.add_argument("--epochs", type=int, default=3)
    arguments.add_argument("--memory", default="auto", help="foreread's memory tier")
    arguments.add_argument("--only", default="", help="contenders whose names contain this")
    arguments.add_argument("--step", type=float, help="milliseconds of a step, without a GPU")
    arguments.add_argument("--url", help="a bucket with the same files, for foreread alone")
    arguments.add_argument("--directory", help="where the files are written, and stay")
    options = arguments.parse_args()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    print(f"{platform.processor() or platform.machine()}, {gpu}, torch {torch.__version__}, Pillow {Image.__version__}")
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(options.directory or scratch) / "images"
        size = measured(root) if root.exists() else make(root, options.images)
        print(f"{options.images} JPEGs, {size / options.images / 1000:.0f} KB each\n", flush=True)
        print("| loader | trainer | first epoch, images/s | later epochs, images/s | CPU per image | waiting |", flush=True)
        print("|---|---|--:|--:|--:|--:|", flush=True)
        trainer = Trainer(options.step)
        modes: list[tuple[str, Any]] = [("none", None)]
        if trainer.model is not None or options.step:
            alone = trainer.alone(options.batch)
            name = "ResNet-50" if trainer.model is not None else "a pause"
            print(f"| none: one batch again and again | {name}, {alone * 1000:.0f} ms | | {options.batch / alone:,.0f} | | 0 % |")
            modes.append((name, trainer))
        for name, mode in modes:
            contenders = loaders(root, options, pin=torch.cuda.is_available())
            for contender, loader in ((one, loader) for one, loader in contenders.items() if options.only in one):
                (first, _, _), *later = epochs(loader(), mode, options.epochs)
                rate, waiting, used = max(later)
                print(f"| {contender} | {name} | {first:,.0f} | {rate:,.0f} | {used * 1e6:,.0f} us | {waiting:.0%} |", flush=True)


if __name__ == "__main__":
    main()
