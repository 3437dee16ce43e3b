"""LitData: data are written as chunks first."""

from functools import partial
from glob import glob

import litdata
import pandas
from PIL import Image

from common import decode, to_tensor


def table_row(classes, row):
    return {
        "image": Image.open(row["file"]),
        "label": classes.index(row["class"]),
        "caption": row["caption"],
    }


def pair(files):
    return {"image": Image.open(files[0]), "mask": Image.open(files[1])}


def parquet_row(row):
    return {"image": decode(row["image"]), "caption": row["caption"]}


def labelled(classes, file):
    return {"image": Image.open(file), "label": classes.index(file.split("/")[1])}


class Tensors(litdata.StreamingDataset):
    def __getitem__(self, index):
        sample = super().__getitem__(index)
        return {k: to_tensor(v) if isinstance(v, Image.Image) else v for k, v in sample.items()}


def written(fn, inputs, to):
    litdata.optimize(fn=fn, inputs=inputs, output_dir=to, chunk_bytes="64MB", num_workers=1)
    return Tensors(to, shuffle=True)


def loader(data):
    return litdata.StreamingDataLoader(data, batch_size=8)


def table():
    frame = pandas.read_csv("train.csv")
    classes = sorted(frame["class"].unique())
    rows = frame[frame["split"] == "train"].to_dict("records")
    return loader(written(partial(table_row, classes), rows, "lit_table"))


def split():
    files = sorted(glob("images/*/*.png"))
    classes = sorted({file.split("/")[1] for file in files})
    data = written(partial(labelled, classes), files, "lit_images")
    return [loader(part) for part in litdata.train_test_split(data, splits=[0.9, 0.1])]


def masks():
    files = [sorted(glob(f"pairs/{name}/*.png")) for name in ("image", "mask")]
    return loader(written(pair, list(zip(*files)), "lit_pairs"))


def parquet():
    rows = pandas.read_parquet("parquet").to_dict("records")
    return loader(written(parquet_row, rows, "lit_parquet"))
