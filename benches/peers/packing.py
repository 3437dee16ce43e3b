"""Transfer of a batch from a PyTorch worker to the trainer: one tensor in shared memory, as in PyTorch's collation.

Pickled bytes would be simpler and take twice the time.
"""

import warnings

import torch
import torch.utils.data

BATCH = 64

warnings.filterwarnings("ignore", message="The given buffer is not writable")
warnings.filterwarnings("ignore", message="This DataLoader will create")


def pack(samples):
    """In a worker: one tensor and the samples' lengths. In the training process: the samples unchanged."""
    if torch.utils.data.get_worker_info() is None:
        return samples
    parts = [torch.frombuffer(sample, dtype=torch.uint8) for sample in samples]
    lengths = [len(part) for part in parts]
    # PyTorch 1 has no private name for it, and later releases warn of the public one.
    storage = getattr(parts[0], "_typed_storage", parts[0].storage)()._new_shared(sum(lengths))
    return torch.cat(parts, out=parts[0].new(storage)), lengths


def unpack(batches):
    """Lists of buffers, from packed and unpacked batches."""
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
    """Arguments of a PyTorch loader for its workers. They persist, because their start would dominate a short epoch."""
    return {"num_workers": number, "persistent_workers": number > 0}


def torch_loader(dataset, number, shuffle):
    """A plain DataLoader, as a function that starts an epoch."""
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=BATCH, shuffle=shuffle, collate_fn=pack, **workers(number)
    )
    return lambda: unpack(loader)
