"""foreread: without a framework, as a PyTorch loader, and around an existing DataLoader."""

import os
from itertools import islice

from data import environment, files

BATCH = 64

#: Memory for all samples and the look-ahead.
ALL = "6GiB"

#: Seconds of the calibration of a store.
CALIBRATING = 6.0


def place(job, form="raw"):
    if not job["local"]:
        os.environ.update(environment(job))
    return job[form]


def catalog(job):
    """Indexes the shards and calibrates their store. This is not measured, like the peers' conversions."""
    import foreread

    target = place(job, "tar")
    foreread.index(target).save(job["catalog"])
    foreread.calibrate(target, seconds=CALIBRATING, output=job["catalog"] + ".calibration")
    return {}


def bare(job, target=None, **settings):
    import foreread

    loader = foreread.Loader(target or place(job), batch_size=BATCH, **settings)
    return lambda: islice(loader, -(-loader.samples // BATCH))


def loader(job):
    return bare(job, memory=0)


def memory(job):
    return bare(job, memory=ALL)


def shards(job):
    place(job)
    return bare(job, job["catalog"], memory=ALL, calibration=job["catalog"] + ".calibration")


def torch(job):
    from foreread.torch import DataLoader

    # Samples of different lengths do not fit a tensor, so a batch is a list.
    made = DataLoader(place(job), batch_size=BATCH, decode="bytes", collate_fn=list, memory=0)
    return lambda: ([sample for sample, _ in batch] for batch in made)


def wrap(job):
    import torch.utils.data
    from foreread.torch import Dataset
    from foreread.torch import wrap as wrapped
    from packing import pack, unpack, workers

    if job["local"]:

        class Files(torch.utils.data.Dataset):
            root, samples = job["raw"], [(path, 0) for path in files(job)]

            def __len__(self):
                return len(self.samples)

            def __getitem__(self, index):
                with open(self.samples[index][0], "rb") as file:
                    return file.read()

        dataset = Files()
    else:
        dataset = Dataset(place(job), decode="bytes", transform=bytes, memory=0)

    def together(samples):
        return pack([sample[0] if isinstance(sample, tuple) else sample for sample in samples])

    plain = torch.utils.data.DataLoader(
        dataset, batch_size=BATCH, shuffle=True, collate_fn=together, **workers(job["setting"])
    )
    made = wrapped(plain, memory=0) if job["local"] else wrapped(plain)
    return lambda: unpack(made)
