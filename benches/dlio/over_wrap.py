"""DLIO's plugin over `foreread.torch.wrap`: DLIO's own loader of PyTorch, with one line more."""

import os

from dlio_benchmark.data_loader.torch_data_loader import TorchDataLoader

from foreread.torch import wrap


class OverWrap(TorchDataLoader):
    def read(self):
        super().read()
        files = [file for file, _ in self._args.train_global_index_map.values()]
        root = os.path.commonpath([os.path.dirname(file) for file in files])
        self._dataset = wrap(self._dataset, memory=os.environ["FOREREAD_MEMORY"], root=root, paths=files)
