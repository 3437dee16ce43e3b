"""Accelerate and Lightning train like plain PyTorch, with read-ahead."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from foreread.torch import wrap
from running import EXAMPLES, losses, run
from torch.utils.data import DataLoader
from torch_images import SAMPLES, assert_same, batches, folder, generators, images  # noqa: F401

pytestmark = pytest.mark.frameworks


@pytest.mark.parametrize("ranks", [1, 2])
# semantics: PY-9
def test_accelerates_losses_are_its_own(images: Path, tmp_path: Path, ranks: int) -> None:
    def trained(script: str, way: str, workers: int = 0) -> list[str]:
        command = (EXAMPLES / script, images, "--classes", "5", "--foreread", way, "--workers", workers)
        return losses(sys.executable, tmp_path, ranks, *command)

    plain = trained("train_accelerate.py", "no")
    assert len(plain) == 2 * (4 if ranks == 1 else 2), plain
    for workers in (0, 2):
        assert trained("train_accelerate.py", "wrap", workers) == plain
    # Its shares differ from DistributedSampler's, which foreread's loader follows.
    assert trained("train_accelerate.py", "loader") == (plain if ranks == 1 else trained("train.py", "no"))


@pytest.mark.parametrize("seedable", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_accelerates_share_is_read_ahead(folder: Any, seedable: bool, workers: int) -> None:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    def prepared() -> Any:
        torch.manual_seed(3)
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=seedable))
        return accelerator.prepare(DataLoader(folder, 8, shuffle=True, num_workers=workers))

    plain = prepared()
    theirs = [batches(plain) for _ in range(3)]
    ours = prepared()
    ours.base_dataloader = wrap(ours.base_dataloader, memory="16MiB")
    for other in theirs:
        assert_same(batches(ours), other)
    report = ours.stats().report
    assert report["origin_requests"] == SAMPLES
    assert sum(tier.get("samples") or 0 for tier in report["direct"].values()) == 0
    ours.close()


LIGHTNING = """
import json, os, sys, lightning, torch
from foreread.torch import DataLoader, wrap

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def train_dataloader(self):
        if sys.argv[3] == "wrap":
            from torch.utils.data import DataLoader as Plain, DistributedSampler
            from torchvision.datasets import ImageFolder
            data = ImageFolder(sys.argv[1], lambda image: torch.tensor(list(image.tobytes()[:8]), dtype=torch.uint8))
            sampler = DistributedSampler(data, self.trainer.world_size, self.trainer.global_rank, seed=0)
            return wrap(Plain(data, 8, sampler=sampler), memory="16MiB")
        code = lambda image: torch.tensor(list(image.tobytes()[:8]), dtype=torch.uint8)
        return DataLoader(sys.argv[1], 8, seed=0, transform=code, memory="16MiB", epochs=3)

    def training_step(self, batch, index):
        images, labels = batch
        self.seen.append((self.current_epoch, index, images.tolist()))
        return self.layer(torch.ones(1, 1)).sum()

    def on_train_batch_end(self, *arguments):
        if sys.argv[4] == "stop" and len(self.seen) == 9:
            self.trainer.save_checkpoint(sys.argv[2] + "/middle.ckpt")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

model = Model()
trainer = lightning.Trainer(
    max_epochs=3, accelerator="cpu", devices=int(os.environ["RANKS"]), strategy="ddp" if os.environ["RANKS"] != "1" else "auto",
    use_distributed_sampler=False, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(model, ckpt_path=sys.argv[2] + "/middle.ckpt" if sys.argv[4] == "resume" else None, **({"weights_only": False} if sys.argv[4] == "resume" else {}))
with open(f"{sys.argv[2]}/{trainer.global_rank}.json", "w") as file:
    json.dump([model.seen, trainer.train_dataloader.stats().requests], file)
"""


def lightning(images: Path, directory: Path, ranks: int, way: str, then: str = "end") -> list[Any]:
    """Each rank's steps (epoch, step, and the first pixels of each image), and its reads from the origin."""
    script = directory / "script.py"
    script.write_text(LIGHTNING)
    run(sys.executable, directory, script, images, directory, way, then, RANKS=str(ranks))
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("way", ["loader", "wrap"])
# semantics: PY-9
def test_lightning_gets_each_epoch_in_sampler_order(images: Path, tmp_path: Path, way: str, ranks: int) -> None:
    from torch.utils.data import DistributedSampler
    from torchvision.datasets import ImageFolder

    data = ImageFolder(str(images), lambda image: list(image.tobytes()[:8]))
    found = lightning(images, tmp_path, ranks, way)
    for rank in range(ranks):
        sampler: Any = DistributedSampler(data, ranks, rank, seed=0)
        expected = []
        for epoch in range(3):
            sampler.set_epoch(epoch)
            numbers = list(sampler)
            steps = [numbers[at : at + 8] for at in range(0, len(numbers), 8)]
            expected.extend([epoch, step, [data[number][0] for number in steps[step]]] for step in range(len(steps)))
        assert found[rank][0] == expected
    # Ranks with foreread's loaders cooperate: each sample is read once for both.
    if way == "loader" or ranks == 1:
        assert sum(requests for _, requests in found) == SAMPLES


# semantics: PY-9
def test_lightning_resumes_in_the_middle_of_an_epoch(images: Path, tmp_path: Path) -> None:
    ((whole, _),) = lightning(images, tmp_path, 1, "loader", "stop")
    ((rest, _),) = lightning(images, tmp_path, 1, "loader", "resume")
    assert rest == whole[9:], (len(whole), len(rest), rest[:1])
