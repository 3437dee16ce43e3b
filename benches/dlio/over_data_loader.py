"""DLIO's plugin over `foreread.torch.DataLoader`: its files, its batch size, its epochs, and the work of its own readers.

DLIO's readers parse each sample and hand over a constant array of the workload's shape. So does this plugin.
"""

import os

import numpy as np
import torch
from dlio_benchmark.common.enumerations import DataLoaderType, DatasetType, FormatType
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader
from PIL import Image

from foreread.torch import DataLoader


class OverDataLoader(BaseDataLoader):
    def __init__(self, format_type, dataset_type, epoch_number):
        super().__init__(format_type, dataset_type, epoch_number, DataLoaderType.PYTORCH)

    def read(self):
        args = self._args
        is_training = self.dataset_type is DatasetType.TRAIN
        files = args.file_list_train if is_training else args.file_list_eval
        is_records = args.format is FormatType.TFRECORD
        self._loader = DataLoader(
            os.path.commonpath([os.path.dirname(file) for file in files]),
            batch_size=self.batch_size,
            seed=args.seed,
            epochs=args.epochs,
            drop_last=True,
            num_workers=args.read_threads,
            prefetch_factor=max(1, args.prefetch_size),
            decode="bytes" if is_records else self._decoded,
            collate_fn=self._parsed if is_records else None,
            memory=os.environ["FOREREAD_MEMORY"],
            format="auto" if is_records else "files",
        )

    def _decoded(self, sample):
        if self._args.format is FormatType.NPZ:
            np.load(sample.open(), allow_pickle=True)["x"][..., 0]
        else:
            np.asarray(Image.open(sample.open()))
        return torch.from_numpy(self._args.resized_image)

    def _parsed(self, samples):
        import tensorflow as tf

        features = {"image": tf.io.FixedLenFeature([], tf.string), "size": tf.io.FixedLenFeature([], tf.int64)}
        tf.io.parse_example([bytes(sample) for sample in samples], features)
        return self._args.resized_image

    def next(self):
        super().next()
        yield from self._loader

    def finalize(self):
        pass
