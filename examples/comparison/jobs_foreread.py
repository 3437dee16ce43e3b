"""foreread: files and tables stay as they are."""

import foreread
from foreread.torch import DataLoader

from common import to_tensor


def table():
    catalog = foreread.index(
        ".", table="train.csv", path="file", label="class", filters=[("split", "==", "train")]
    )
    return DataLoader(catalog, batch_size=8, transform=to_tensor, columns=["caption"], epochs=1)


def split():
    train, validation = foreread.index("images").random_split([0.9, 0.1], seed=0, stratify=True)
    return [DataLoader(part, batch_size=8, transform=to_tensor, epochs=1) for part in (train, validation)]


def pair(sample):
    return {name: to_tensor(image) for name, image in sample.items()}


def masks():
    catalog = foreread.index("pairs", path={"image": "image/", "mask": "mask/"})
    return DataLoader(catalog, batch_size=8, transform=pair, epochs=1)


def parquet():
    catalog = foreread.index("parquet", field="image", columns=["caption"])
    options = {"decode": "image", "transform": to_tensor, "columns": ["caption"]}
    return DataLoader(catalog, batch_size=8, epochs=1, **options)
