"""Mosaic Streaming: shards in its format (MDS), which it downloads and keeps."""

import os

from data import environment, files


def convert(job):
    from streaming import MDSWriter

    with MDSWriter(out=job["to"], columns={"x": "bytes"}) as writer:
        for path in files(job):
            with open(path, "rb") as file:
                writer.write({"x": file.read()})
    return {}


def mosaic(job):
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory
    from torch.utils.data import DataLoader

    from packing import BATCH, pack, unpack, workers

    clean_stale_shared_memory()
    if job["local"]:
        place = {"local": job["mds"]}
    else:
        os.environ.update(environment(job))
        place = {"remote": job["mds"], "local": os.path.join(job["scratch"], "mds")}
    dataset = StreamingDataset(**place, shuffle=True, batch_size=BATCH)

    def together(samples):
        return pack([sample["x"] for sample in samples])

    loader = DataLoader(dataset, batch_size=BATCH, collate_fn=together, **workers(job["setting"]))
    return lambda: unpack(loader)
