"""Bare reads, PyTorch's DataLoader (with AWS's S3 client for PyTorch over a bucket), and SPDL."""

import os
import random
from itertools import count

from data import environment, files

BATCH = 64


def floor(job):
    """The lower bound: one thread of os.open, os.readv into one reused buffer, and os.close."""
    paths = files(job)
    sizes = [os.path.getsize(path) for path in paths]
    room = memoryview(bytearray(max(sizes) * BATCH))

    def epoch():
        order = list(range(len(paths)))
        random.shuffle(order)
        for start in range(0, len(order), BATCH):
            at, batch = 0, []
            for index in order[start : start + BATCH]:
                file = os.open(paths[index], os.O_RDONLY)
                batch.append(room[at : at + sizes[index]])
                os.readv(file, batch[-1:])
                os.close(file)
                at += sizes[index]
            yield batch

    return epoch


def torch(job):
    from torch.utils.data import Dataset

    from packing import torch_loader

    if not job["local"]:
        return s3torchconnector(job)

    paths = files(job)

    class Files(Dataset):
        def __len__(self):
            return len(paths)

        def __getitem__(self, index):
            with open(paths[index], "rb", buffering=0) as file:
                return file.read()

    return torch_loader(Files(), job["setting"], True)


def s3torchconnector(job):
    from s3torchconnector import S3ClientConfig, S3MapDataset

    from packing import torch_loader

    os.environ.update(environment(job))
    dataset = S3MapDataset.from_prefix(
        job["raw"],
        region="us-east-1",
        endpoint=job["endpoint"],
        s3client_config=S3ClientConfig(force_path_style=True),
        transform=lambda reader: reader.read(),
    )
    return torch_loader(dataset, job["setting"], True)


def spdl(job):
    """Threads as in SPDL's documentation: a source of paths or keys, a function that reads one, batches, a buffer."""
    from spdl.pipeline import PipelineBuilder

    if job["local"]:
        names = files(job)

        def read(path):
            with open(path, "rb", buffering=0) as file:
                return file.read()

        def steps(builder, order):
            # A task per sample costs ten times as much as the read, so a task reads a batch.
            batches = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
            return builder.add_source(batches).pipe(
                lambda batch: [read(path) for path in batch], concurrency=job["setting"]
            )

    else:
        # SPDL has no client for buckets. Its documentation uses boto3 in its threads.
        import boto3
        from botocore.config import Config

        bucket = job["raw"].removeprefix("s3://").rstrip("/")
        os.environ.update(environment(job))
        config = Config(max_pool_connections=job["setting"])
        client = boto3.client("s3", endpoint_url=job["endpoint"], region_name="us-east-1", config=config)
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        names = [entry["Key"] for page in pages for entry in page.get("Contents", [])]

        def read(key):
            return client.get_object(Bucket=bucket, Key=key)["Body"].read()

        def steps(builder, order):
            return builder.add_source(order).pipe(read, concurrency=job["setting"]).aggregate(BATCH)

    epochs = count()

    def epoch():
        order = list(names)
        random.Random(next(epochs)).shuffle(order)
        pipeline = steps(PipelineBuilder(), order).add_sink(3).build(num_threads=job["setting"])
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    return epoch
