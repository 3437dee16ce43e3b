"""Mosaic Streaming: data are written as MDS shards first."""

from glob import glob

import numpy
import pandas
from streaming import MDSWriter, StreamingDataset
from torch.utils.data import DataLoader

from common import decode, to_tensor


class Tensors(StreamingDataset):
    def __getitem__(self, index):
        sample = super().__getitem__(index)
        images = {name: to_tensor(decode(sample[name])) for name in ("image", "mask") if name in sample}
        return sample | images


def write(to, columns, samples):
    with MDSWriter(out=to, columns=columns) as out:
        for sample in samples:
            out.write(sample)
    return DataLoader(Tensors(local=to, shuffle=True, batch_size=8), batch_size=8)


def content(file):
    with open(file, "rb") as opened:
        return opened.read()


def table():
    frame = pandas.read_csv("train.csv")
    classes = sorted(frame["class"].unique())
    rows = frame[frame["split"] == "train"].to_dict("records")
    samples = (
        {
            "image": content(row["file"]),
            "label": classes.index(row["class"]),
            "caption": row["caption"],
        }
        for row in rows
    )
    return write("mds_table", {"image": "bytes", "label": "int", "caption": "str"}, samples)


def split():
    files = sorted(glob("images/*/*.png"))
    classes = sorted({file.split("/")[1] for file in files})
    chosen = set()
    draw = numpy.random.default_rng(0)
    for name in classes:
        here = [file for file in files if file.split("/")[1] == name]
        chosen.update(draw.choice(here, len(here) // 10, replace=False))
    parts = [[file for file in files if (file in chosen) == is_last] for is_last in (False, True)]
    return [
        write(
            f"mds_images_{number}",
            {"image": "bytes", "label": "int"},
            ({"image": content(f), "label": classes.index(f.split("/")[1])} for f in part),
        )
        for number, part in enumerate(parts)
    ]


def masks():
    files = [sorted(glob(f"pairs/{name}/*.png")) for name in ("image", "mask")]
    samples = ({"image": content(image), "mask": content(mask)} for image, mask in zip(*files))
    return write("mds_pairs", {"image": "bytes", "mask": "bytes"}, samples)


def parquet():
    rows = pandas.read_parquet("parquet").to_dict("records")
    return write("mds_parquet", {"image": "bytes", "caption": "str"}, rows)
