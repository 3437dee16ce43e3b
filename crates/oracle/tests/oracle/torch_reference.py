"""Writes the ids that PyTorch's DistributedSampler and BatchSampler read, for tests/oracle/torch.rs.

    python3 torch_reference.py CASES MOST_SAMPLES > torch_reference.txt

One case per line: samples, seed, epoch, shuffle, world size, rank, drop_last, batch size (0: none),
and the rank's ids. The stored file was made with PyTorch 1.13 and the arguments 60 60.
"""
import random
import sys

from torch.utils.data import BatchSampler
from torch.utils.data.distributed import DistributedSampler

draw = random.Random(1)
cases, most = int(sys.argv[1]), int(sys.argv[2])
for case in range(cases):
    n = 1 if case % 10 == 0 else draw.randint(1, most)
    world = draw.choice([1, 2, 3, 4, 7, 8, 64, 2 * most])
    seed = draw.choice([0, 1, 7, 2**32 - 1, 2**32, 2**40 + 7, draw.randrange(2**62)])
    epoch, rank = draw.choice([0, 1, 2, 89, 100000]), draw.randrange(world)
    shuffle, drop, batch = draw.random() < 0.85, draw.random() < 0.5, draw.choice([0, 1, 2, 5, 16])
    sampler = DistributedSampler(range(n), world, rank, shuffle=shuffle, seed=seed, drop_last=drop)
    sampler.set_epoch(epoch)
    ids = list(sampler)
    if batch:
        ids = sum(BatchSampler(sampler, batch, drop), [])
    print(n, seed, epoch, int(shuffle), world, rank, int(drop), batch, " ".join(map(str, ids)))
