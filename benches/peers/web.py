"""WebDataset: tar shards, read sequentially, shuffled by shard and in a buffer."""

import os
import random

from data import environment, files


def convert(job):
    import webdataset

    # In random order, as WebDataset's documentation recommends: a shard must not hold one class.
    paths = files(job)
    random.Random(0).shuffle(paths)
    with webdataset.ShardWriter(os.path.join(job["to"], "%06d.tar"), maxsize=64e6, verbose=0) as writer:
        for number, path in enumerate(paths):
            with open(path, "rb") as file:
                writer.write({"__key__": f"{number:08}", "jpg": file.read()})
    return {}


def shards(job):
    """The shards' paths. In a bucket: commands that open them with curl and signed addresses."""
    if job["local"]:
        return files({"raw": job["tar"]})
    import boto3
    from botocore.config import Config

    os.environ.update(environment(job))
    config = Config(s3={"addressing_style": "path"}, signature_version="s3v4")
    client = boto3.client("s3", endpoint_url=job["endpoint"], region_name="us-east-1", config=config)
    of = job["tar"].removeprefix("s3://").rstrip("/")
    keys = [entry["Key"] for entry in client.list_objects_v2(Bucket=of)["Contents"]]
    sign = client.generate_presigned_url
    return [f"pipe:curl -s -f '{sign('get_object', Params={'Bucket': of, 'Key': key})}'" for key in keys]


def web(job):
    import webdataset

    from packing import BATCH, pack, unpack, workers

    cache = {}
    if not job["local"]:
        cache = {"cache_dir": os.path.join(job["scratch"], "tar")}
        os.mkdir(cache["cache_dir"])
        cache["url_to_name"] = lambda url: url.split("?")[0].rsplit("/")[-1]
    dataset = (
        webdataset.WebDataset(shards(job), shardshuffle=100, **cache)
        .shuffle(1000)
        .map(lambda sample: sample["jpg"])
        .batched(BATCH, collation_fn=pack)
    )
    loader = webdataset.WebLoader(dataset, batch_size=None, **workers(job["setting"]))
    return lambda: unpack(loader)
