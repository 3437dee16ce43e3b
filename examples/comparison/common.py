"""What the jobs of all libraries use, and the data that they read."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy
import pandas
import torch
from PIL import Image

COUNT = 120
KINDS = ["cat", "dog", "eel"]


def to_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(numpy.array(image.convert("RGB"))).permute(2, 0, 1)


def decode(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def picture(number: int, mode: str = "RGB") -> Image.Image:
    """An image whose first pixel tells its number."""
    image = Image.effect_noise((64, 64), 40).convert(mode)
    image.putpixel((0, 0), (number, 0, 0) if mode == "RGB" else number)
    return image


def make(root: Path) -> None:
    """Images in classes, a table of them, images with masks, and a Parquet file."""
    rows: list[dict[str, Any]] = []
    for number in range(COUNT):
        kind, split = KINDS[number % 3], "train" if number % 6 else "test"
        file = root / "images" / kind / f"{number:03}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        picture(number).save(file)
        rows.append({"file": f"images/{kind}/{number:03}.png", "class": kind, "split": split, "caption": f"{kind} {number}"})
        for folder, mode in (("image", "RGB"), ("mask", "L")):
            pair = root / "pairs" / folder / f"{number:03}.png"
            pair.parent.mkdir(parents=True, exist_ok=True)
            picture(number, mode).save(pair)
    pandas.DataFrame(rows).to_csv(root / "train.csv", index=False)
    images = [(root / row["file"]).read_bytes() for row in rows]
    frame = pandas.DataFrame({"image": images, "caption": [row["caption"] for row in rows]})
    (root / "parquet").mkdir()
    frame.to_parquet(root / "parquet" / "train.parquet")
