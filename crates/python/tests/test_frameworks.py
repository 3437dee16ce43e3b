"""Accelerate, Lightning, Transformers, Ray Train and torchdata work with foreread's loaders as with plain PyTorch's, with read-ahead."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import foreread
from foreread.torch import DataLoader as Loader
from foreread.torch import wrap
from running import EXAMPLES, losses, run
from torch.utils.data import DataLoader
from torch_images import SAMPLES, assert_same, batches, folder, generators, images, to_tensor  # noqa: F401

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


ENTRY_POINTS = """
import json, logging, sys, warnings
warnings.simplefilter("ignore")
import lightning, torch
from foreread.torch import DataLoader, wrap
from torch.utils.data import DataLoader as Plain
from torchvision.datasets import ImageFolder
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

code = lambda image: torch.tensor(list(image.tobytes()[:8]), dtype=torch.uint8)

def made(way, shuffle):
    if way == "loader":
        return DataLoader(sys.argv[1], 8, shuffle, transform=code, memory="4MiB")
    plain = Plain(ImageFolder(sys.argv[1], code), batch_size=8, shuffle=shuffle)
    return {"plain": lambda: plain, "wrap": lambda: wrap(plain), "memory": lambda: wrap(plain, memory="4MiB")}[way]()

class Model(lightning.LightningModule):
    def __init__(self, way):
        super().__init__()
        self.way, self.seen, self.layer = way, [], torch.nn.Linear(1, 1)

    def step(self, batch, index):
        self.seen.append(batch[0].tolist())
        return self.layer(torch.ones(1, 1)).sum()

    training_step = validation_step = test_step = predict_step = step

    # From hooks, whose loaders Lightning remembers the arguments of.
    def predict_dataloader(self):
        return made(self.way, False)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

def trainer(**settings):
    return lightning.Trainer(
        max_epochs=2, accelerator="cpu", use_distributed_sampler=False, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, **settings,
    )

ways = {
    "fit and validate": lambda model: trainer().fit(model, made(model.way, False), made(model.way, False)),
    "validate": lambda model: trainer().validate(model, made(model.way, False), verbose=False),
    "test": lambda model: trainer().test(model, made(model.way, False), verbose=False),
    "predict": lambda model: trainer().predict(model, made(model.way, False)),
    "predict by hook": lambda model: trainer().predict(model),
    "overfit": lambda model: trainer(overfit_batches=2).fit(model, made(model.way, False)),
    "overfit a shuffled loader": lambda model: trainer(overfit_batches=2).fit(model, made(model.way, True)),
}
found = {}
for name, work in ways.items():
    for way in ("plain", "wrap", "memory", "loader"):
        model = Model(way)
        try:
            work(model)
            found.setdefault(name, {})[way] = model.seen
        except Exception as error:
            found.setdefault(name, {})[way] = str(error)
with open(sys.argv[2], "w") as file:
    json.dump(found, file)
"""


# semantics: PY-9
def test_lightnings_entry_points_get_plain_batches(images: Path, tmp_path: Path) -> None:
    script, results = tmp_path / "script.py", tmp_path / "results.json"
    script.write_text(ENTRY_POINTS)
    run(sys.executable, tmp_path, script, images, results)
    found = json.loads(results.read_text())
    assert len(found) == 7
    for name, by_way in found.items():
        theirs = by_way.pop("plain")
        assert len(theirs) >= 4 and isinstance(theirs, list), (name, theirs)
        if name == "overfit a shuffled loader":
            # Lightning makes PyTorch's loaders anew without shuffling. foreread's are not PyTorch's.
            assert "shuffle=True" in by_way.pop("loader")
        for way, ours in by_way.items():
            assert ours == theirs, (name, way, ours if isinstance(ours, str) else len(ours))


@pytest.mark.parametrize("workers", [0, 2])
# semantics: PY-9
def test_accelerate_skips_and_prepares_loaders(images: Path, folder: Any, workers: int) -> None:
    from accelerate import Accelerator, skip_first_batches

    accelerator = Accelerator(cpu=True)
    theirs = batches(DataLoader(folder, 8))
    with Loader(images, 8, False, transform=to_tensor, num_workers=workers, memory="4MiB") as ours:
        assert accelerator.prepare(ours) is ours
        rest = skip_first_batches(ours, 5)
        assert len(rest) == len(theirs) - 5
        assert_same(batches(rest), theirs[5:])
        assert '"epoch":1' in ours.state_dict()["foreread"].replace(" ", "")
        prepared = accelerator.prepare_data_loader(ours)
        assert prepared.total_batch_size == 8 and prepared.total_dataset_length == SAMPLES
        for _ in range(2):
            assert_same(batches(prepared), theirs)
        assert_same(batches(skip_first_batches(prepared, 3)), theirs[3:])
        # Each rank has its own batches already. A second division would lose samples.
        from accelerate.data_loader import prepare_data_loader

        with pytest.raises(foreread.errors.ConfigError, match="do not pass it to prepare_data_loader"):
            batches(prepare_data_loader(ours, num_processes=2, process_index=0))


TRAINER = """
import json, sys, warnings
warnings.simplefilter("ignore")
import torch, transformers
from foreread.torch import DataLoader

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def forward(self, labels):
        self.seen.append(labels.tolist())
        return {"loss": self.layer(torch.ones(1, 1)).sum()}

def collate(items):
    return {"labels": torch.tensor([pixels for pixels, _ in items])}

class Trainer(transformers.Trainer):
    def get_train_dataloader(self):
        code = lambda image: int.from_bytes(image.tobytes()[:4], "little")
        return DataLoader(sys.argv[1], 8, transform=code, collate_fn=collate, num_workers=2, memory="4MiB")

def trained(checkpoint=None):
    arguments = transformers.TrainingArguments(
        sys.argv[2], num_train_epochs=3, save_steps=18, save_total_limit=9, use_cpu=True, report_to=[], disable_tqdm=True,
        logging_strategy="no", per_device_train_batch_size=8,
    )
    trainer = Trainer(Model(), arguments)
    trainer.train(resume_from_checkpoint=checkpoint)
    return trainer.model.seen

whole = trained()
rest = trained(sys.argv[2] + "/checkpoint-18")
with open(sys.argv[2] + "/seen.json", "w") as file:
    json.dump([whole, rest], file)
"""


# semantics: PY-9
def test_transformers_trainer_resumes_in_mid_epoch(images: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TRAINER)
    run(sys.executable, tmp_path, script, images, tmp_path)
    whole, rest = json.loads((tmp_path / "seen.json").read_text())
    assert len(whole) == 39 and rest == whole[18:], (len(whole), len(rest))


RAY = """
import json, os, sys, torch
from pathlib import Path
import ray
from ray.train import RunConfig, ScalingConfig, get_context
from ray.train.torch import TorchTrainer, prepare_data_loader

def train(config):
    from foreread.torch import DataLoader, wrap
    from torch.utils.data import DataLoader as Plain
    from torchvision.datasets import ImageFolder
    code = lambda image: torch.tensor(list(image.tobytes()[:8]), dtype=torch.uint8)
    rank, found = get_context().get_world_rank(), {}
    for way in ("plain", "wrap", "loader"):
        if way == "loader":
            loader = DataLoader(config["images"], 8, transform=code, memory="4MiB", num_workers=2)
            prepared = prepare_data_loader(loader)
        else:
            prepared = prepare_data_loader(Plain(ImageFolder(config["images"], code), 8, shuffle=True))
            if way == "wrap":
                prepared._dataloader = loader = wrap(prepared._dataloader, memory="4MiB")
        epochs = []
        for epoch in range(3):
            (prepared if way == "plain" else loader).sampler.set_epoch(epoch)
            epochs.append([pixels.tolist() for pixels, _ in prepared])
        found[way] = [epochs, 0 if way == "plain" else loader.stats().samples]
    Path(config["results"], f"{rank}.json").write_text(json.dumps(found))

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
workers = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1})
paths = dict(zip(("images", "results"), sys.argv[1:]))
TorchTrainer(train, train_loop_config=paths, scaling_config=workers, run_config=RunConfig(storage_path=sys.argv[2])).fit()
"""


# semantics: PY-9
def test_ray_trains_on_the_batches_of_its_own_loaders(images: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(RAY)
    run(sys.executable, tmp_path, script, images, tmp_path)
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        theirs, _ = found.pop("plain")
        assert len(theirs) == 3 and theirs[0] != theirs[1]
        for way, (ours, samples) in found.items():
            assert ours == theirs and samples > 0, (way, samples)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
# torchdata 0.11 calls what PyTorch 2.15 has deprecated.
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
# semantics: PY-3
def test_torchdata_loader_keeps_its_state_when_wrapped(folder: Any, workers: int, shuffle: bool) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader() -> Any:
        torch.manual_seed(3)
        return StatefulDataLoader(folder, 8, shuffle=shuffle, num_workers=workers)

    def after_state(made: Any) -> Any:
        made.state_dict()
        return made

    def in_mid_epoch(made: Any) -> Any:
        iterator = iter(made)
        next(iterator), next(iterator)
        return made

    yielded = {0: "_num_yielded", 2: "_steps_since_snapshot"}[workers]
    for prepare in (lambda made: made, after_state, in_mid_epoch):
        theirs, mine = prepare(loader()), prepare(loader())
        with wrap(mine, memory="4MiB") as ours:
            if prepare is in_mid_epoch:
                assert ours.state_dict()[yielded] == theirs.state_dict()[yielded]
            torch.manual_seed(4)
            expected = [batches(theirs) for _ in range(2)]
            torch.manual_seed(4)
            for epoch in expected:
                assert_same(batches(ours), epoch)
            assert ours.stats().samples > 0
