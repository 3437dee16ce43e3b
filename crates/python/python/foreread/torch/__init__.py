"""foreread for PyTorch: three ways in, from the fewest changes to the most speed.

* ``wrap(loader)``: your ``DataLoader`` as it is; its dataset's files are read ahead by foreread, in the order in which its
  sampler will ask for them.
* ``Dataset(url)``: a map-style dataset for your own ``DataLoader``, workers included, over a directory or a bucket.
* ``DataLoader(url, ...)``: foreread's own loader, with PyTorch's names and PyTorch's order.
"""

from ._dataset import Dataset
from ._loader import DataLoader
from ._wrap import Wrapped, wrap

__all__ = ["DataLoader", "Dataset", "Wrapped", "wrap"]
