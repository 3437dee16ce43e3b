"""Hugging Face datasets: tables are copied to Arrow files in its cache."""

from glob import glob

import datasets
from torch.utils.data import DataLoader

from common import to_tensor


def tensors(*names):
    return lambda rows: rows | {name: [to_tensor(image) for image in rows[name]] for name in names}


def table():
    data = datasets.load_dataset("csv", data_files="train.csv", split="train")
    data = data.class_encode_column("class").filter(lambda row: row["split"] == "train")
    data = data.cast_column("file", datasets.Image()).rename_columns({"file": "image", "class": "label"})
    return DataLoader(data.with_transform(tensors("image")), batch_size=8, shuffle=True)


def split():
    data = datasets.load_dataset("imagefolder", data_dir="images", split="train")
    parts = data.train_test_split(0.1, stratify_by_column="label", seed=0)
    parts = parts.with_transform(tensors("image"))
    return [DataLoader(parts[name], batch_size=8, shuffle=True) for name in ("train", "test")]


def masks():
    files = {name: sorted(glob(f"pairs/{name}/*.png")) for name in ("image", "mask")}
    data = datasets.Dataset.from_dict(files)
    data = data.cast_column("image", datasets.Image()).cast_column("mask", datasets.Image())
    return DataLoader(data.with_transform(tensors("image", "mask")), batch_size=8, shuffle=True)


def parquet():
    data = datasets.load_dataset("parquet", data_files="parquet/*.parquet", split="train")
    data = data.cast_column("image", datasets.Image())
    return DataLoader(data.with_transform(tensors("image")), batch_size=8, shuffle=True)
