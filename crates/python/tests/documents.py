"""Runs the Python examples of documents as printed.

    documents.py DOCUMENT SECTION IMAGES SCRATCH

The blocks of a section are run in order, in one namespace with the objects that the text presumes (`prepared`). Paths of
the reader's machine are replaced by local ones (`PLACES`), and ninety epochs by two. A loop's `...` is replaced by the
training of a small network. A loader that exists after a block is trained from too. Prints each block's losses, by its line.

Executed code keeps its line numbers, so that a traceback points into the document.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]

#: Names in examples and their replacements: directories, and the length of a training.
PLACES = {
    "/lustre/train": "{images}",
    "/data/train": "{images}",
    "/local/scratch": "{scratch}",
    "range(90)": "range(2)",
    "epochs=90": "epochs=2",
    "(224, 224)": "(16, 16)",
}


@dataclass(frozen=True)
class Block:
    """A code block: the number of its first line, and its text."""

    line: int
    code: str

    def imports(self) -> set[str]:
        """The imported packages."""
        found = set()
        for node in ast.walk(ast.parse(self.code)):
            if isinstance(node, ast.Import):
                found.update(name.name for name in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                found.add(node.module)
        return {name.split(".")[0] for name in found}


@dataclass(frozen=True)
class Section:
    """A section of a document with Python blocks."""

    document: Path
    heading: str
    blocks: tuple[Block, ...]

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT) if self.document.is_relative_to(ROOT) else self.document.name}: {self.heading}"

    def imports(self) -> set[str]:
        """The packages imported by its blocks."""
        return {name for block in self.blocks for name in block.imports()}


def sections(document: Path) -> Iterator[Section]:
    """The second-level sections of a document that have Python blocks."""
    heading, blocks, fence, code = "", list[Block](), "", list[str]()
    for number, line in enumerate([*document.read_text().splitlines(), "## "], 1):
        if fence:
            if line.strip() != "```":
                code.append(line)
                continue
            if fence == "```python":
                blocks.append(Block(number - len(code), "\n".join(code)))
            fence, code = "", []
        elif line.startswith("```"):
            fence = line.strip()
        elif line.startswith("## "):
            if blocks:
                yield Section(document, heading, tuple(blocks))
            heading, blocks = line.removeprefix("## ").strip(), []


def everywhere() -> list[Section]:
    """The sections of all user documents."""
    return [section for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))] for section in sections(path)]


class Trainer:
    """A tiny network, whose losses depend on every bit of its input."""

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 5))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.losses: list[float] = []

    def step(self, images: Any, labels: Any) -> None:
        import torch

        loss = torch.nn.functional.cross_entropy(self.model(images), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def run(self, loader: Any) -> None:
        """Trains two epochs."""
        for epoch in range(2):
            if hasattr(loader.sampler, "set_epoch"):
                loader.sampler.set_epoch(epoch)
            for images, labels in loader:
                self.step(images, labels)


def prepared(images: str) -> dict[str, Any]:
    """The names that the text assumes: a transform, a dataset, its sampler and loader, a job of one process."""
    import torch
    from torch.utils.data import DataLoader, DistributedSampler
    from torchvision import datasets, transforms

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    transform = transforms.ToTensor()
    data = datasets.ImageFolder(images, transform)
    sampler: Any = DistributedSampler(data, seed=0)
    loader = DataLoader(data, 64, sampler=sampler)
    return {"transform": transform, "data": data, "sampler": sampler, "loader": loader}


def run(section: Section, images: str, scratch: str) -> dict[int, list[float]]:
    """The losses of each block's training."""
    losses = {}
    namespace = {"__name__": "__main__"} | prepared(images)
    for block in section.blocks:
        code = block.code
        for place, here in PLACES.items():
            code = code.replace(place, here.format(images=images, scratch=scratch))
        trained = code.replace("\n        ...", "\n        train(images, labels)")
        trainer, before = Trainer(), namespace["loader"]
        namespace["train"] = trainer.step
        exec(compile("\n" * (block.line - 1) + trained, str(section.document), "exec"), namespace)
        loader = namespace["loader"]
        if trained == code and loader is not before and hasattr(loader, "sampler"):
            trainer.run(loader)
        losses[block.line] = trainer.losses
    return losses


def main() -> None:
    document, heading, images, scratch = sys.argv[1:]
    (section,) = (section for section in sections(Path(document)) if section.heading == heading)
    print(json.dumps(run(section, images, scratch)))


if __name__ == "__main__":
    main()
