"""LitData: chunks in its format, which it downloads and keeps, and raw files."""

import os

from data import environment, files


def read(path):
    """Reads a sample, in the conversion's processes."""
    with open(path, "rb") as file:
        return file.read()


def convert(job):
    from litdata import optimize

    optimize(fn=read, inputs=files(job), output_dir=job["to"], num_workers=1, chunk_bytes="64MB")
    return {}


def options(job):
    return {
        "endpoint_url": job["endpoint"],
        "aws_access_key_id": job["access"],
        "aws_secret_access_key": job["secret"],
        "region_name": "us-east-1",
    }


def bucket(job):
    from litdata.streaming import downloader

    # LitData has no setting for endpoints without TLS.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    # Listing and reading use different names for keys and endpoint. Both are in the environment.
    os.environ.update(environment(job))


def chunks(job):
    from litdata import StreamingDataLoader, StreamingDataset

    from packing import BATCH, pack, unpack, workers

    place = {}
    if not job["local"]:
        bucket(job)
        place = {"cache_dir": os.path.join(job["scratch"], "chunks"), "storage_options": options(job)}
        os.mkdir(place["cache_dir"])
    dataset = StreamingDataset(job["chunks"], shuffle=True, drop_last=False, **place)
    loader = StreamingDataLoader(dataset, batch_size=BATCH, collate_fn=pack, **workers(job["setting"]))
    return lambda: unpack(loader)


def raw(job):
    from litdata import StreamingRawDataset

    from packing import torch_loader

    if not job["local"]:
        bucket(job)
    dataset = StreamingRawDataset(job["raw"], cache_dir=job["scratch"])
    return torch_loader(dataset, job["setting"], True)
