"""Writes what PyTorch's WeightedRandomSampler draws, for tests/oracle/torch.rs.

    python3 torch_weighted_reference.py CASES > torch_weighted_reference.txt

One case per line: seed, epoch and number of draws; the weights; the ids. The generator is seeded with seed + epoch, as
DistributedSampler does it. The stored file was made with the argument 48.
"""
import random
import sys

import torch
from torch.utils.data import WeightedRandomSampler

draw = random.Random(1)
for case in range(int(sys.argv[1])):
    count = draw.choice([1, 2, 3, 7, 20])
    weights = [draw.choice([0.0, 1.0, draw.random(), 10 ** draw.uniform(-12, 12)]) for _ in range(count)]
    weights[draw.randrange(count)] = draw.uniform(0.1, 3)
    seed, epoch = draw.choice([0, 1, 2**32 - 1, 2**40 + 7]), draw.choice([0, 1, 89])
    generator = torch.Generator()
    generator.manual_seed((seed + epoch) % 2**32)
    ids = WeightedRandomSampler(weights, draw.choice([2, 5, 40]), replacement=True, generator=generator)
    ids = list(ids)
    print(seed, epoch, len(ids), ";", " ".join(map(repr, weights)), ";", " ".join(map(str, ids)))
