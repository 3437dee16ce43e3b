"""foreread for PyTorch: three APIs, from the fewest changes to the most speed.

* ``wrap(loader)``: your unchanged ``DataLoader``. foreread reads its dataset's files ahead, in the order of its sampler.
* ``Dataset(url)``: a map-style dataset for your own ``DataLoader``, workers included, over a directory or a bucket.
* ``DataLoader(url, ...)``: foreread's loader, with PyTorch's interface and order.
"""

from ._dataset import Dataset
from ._loader import DataLoader
from ._wrap import Wrapped, wrap

__all__ = ["DataLoader", "Dataset", "Wrapped", "wrap"]
