"""How a batch goes from a PyTorch worker to the trainer: as one tensor in shared memory, as PyTorch's own collation does it.

Pickled bytes, which would be less to write, take twice the time.
"""

import warnings

import torch
import torch.utils.data

BATCH = 64

warnings.filterwarnings("ignore", message="The given buffer is not writable")
warnings.filterwarnings("ignore", message="This DataLoader will create")


def pack(samples):
    """In a worker: one tensor and the samples' lengths. In the trainer's process nothing is moved."""
    if torch.utils.data.get_worker_info() is None:
        return samples
    parts = [torch.frombuffer(sample, dtype=torch.uint8) for sample in samples]
    lengths = [len(part) for part in parts]
    storage = parts[0]._typed_storage()._new_shared(sum(lengths))
    return torch.cat(parts, out=parts[0].new(storage)), lengths


def unpack(batches):
    """Lists of buffers, from batches that were packed or not."""
    for batch in batches:
        if not isinstance(batch[0], torch.Tensor):
            yield batch
            continue
        whole, at = memoryview(batch[0].numpy()), 0
        samples = []
        for length in batch[1]:
            samples.append(whole[at : at + length])
            at += length
        yield samples


def workers(number):
    """The worker settings of a PyTorch loader. Workers persist: starting them would be most of a short epoch."""
    return {"num_workers": number, "persistent_workers": number > 0}


def torch_loader(dataset, number, shuffle):
    """A plain DataLoader, as a function that begins an epoch."""
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=BATCH, shuffle=shuffle, collate_fn=pack, **workers(number)
    )
    return lambda: unpack(loader)
