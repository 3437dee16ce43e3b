"""Other loaders over the bucket `bench` of a store that speaks S3: two epochs, batch 64, shuffled, 2 workers.

    bucket.py s3torchconnector|litdata|mosaic ENDPOINT

Prints one line of JSON: seconds of each epoch, CPU of all processes, seconds to the first batch.
"""

import json
import os
import resource
import shutil
import sys
import tempfile
import time

WORKERS, BATCH, EPOCHS = 2, 64, 2


def cpu():
    both = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, both))


def loader_of(dataset, shuffle):
    import torch.utils.data

    together = lambda batch: batch  # noqa: E731
    return torch.utils.data.DataLoader(
        dataset, batch_size=BATCH, shuffle=shuffle, num_workers=WORKERS, collate_fn=together
    )


def s3torchconnector(endpoint):
    from s3torchconnector import S3ClientConfig, S3MapDataset

    config = S3ClientConfig(force_path_style=True)
    return loader_of(
        S3MapDataset.from_prefix(
            "s3://bench/",
            region="us-east-1",
            endpoint=endpoint,
            s3client_config=config,
            transform=lambda reader: len(reader.read()),
        ),
        True,
    )


def litdata(_):
    from litdata import StreamingRawDataset
    from litdata.streaming import downloader

    # It has no setting for endpoints without TLS.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    # Keys and endpoint from the environment: its listing and its reading want them under different names.
    dataset = StreamingRawDataset("s3://bench/", cache_dir=scratch, transform=len)
    return loader_of(dataset, True)


def mosaic(endpoint):
    import boto3
    from streaming import MDSWriter, StreamingDataset

    # Converted once, which is not counted.
    client = boto3.client("s3", endpoint_url=endpoint)
    source, shards = {}, os.path.join(scratch, "mds")
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="bench")
    keys = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
    with MDSWriter(out=shards, columns={"x": "bytes"}) as writer:
        for key in keys:
            writer.write({"x": client.get_object(Bucket="bench", Key=key)["Body"].read()})
    for name in os.listdir(shards):
        with open(os.path.join(shards, name), "rb") as file:
            client.put_object(Bucket="mds", Key=name, Body=file.read())
    shutil.rmtree(shards)
    os.environ["S3_ENDPOINT_URL"] = endpoint
    source = StreamingDataset(
        remote="s3://mds/", local=os.path.join(scratch, "local"), shuffle=True, batch_size=BATCH
    )
    return loader_of(source, None)


if __name__ == "__main__":
    who, endpoint = sys.argv[1:]
    scratch = tempfile.mkdtemp()
    try:
        began = time.perf_counter()
        loader = globals()[who](endpoint)
        if who == "mosaic":
            began = time.perf_counter()
        used, first, epochs, samples = cpu(), None, [], 0
        for _ in range(EPOCHS):
            start, samples = time.perf_counter(), 0
            for batch in loader:
                samples += len(batch)
                first = first or time.perf_counter() - began
            epochs.append(time.perf_counter() - start)
        del loader
        print(json.dumps({"epochs": epochs, "cpu": cpu() - used, "first": first, "samples": samples}))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
