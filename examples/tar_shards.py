"""Examples in tar files, as WebDataset has them, in an own loop.

Write four shards:       python examples/tar_shards.py shards --make
One learner:             python examples/tar_shards.py shards
Three on this machine:   unisono launch --learners 3 examples/tar_shards.py shards
"""

from __future__ import annotations

import argparse
import io
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import IterableDataset

import unisono

SHARDS, EXAMPLES = 4, 250
DIRECTIONS = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))


def write_shards(folder: Path) -> None:
    """Vectors and the direction that each is closest to; two members an example: .x and .y."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(1)
    for shard in range(SHARDS):
        with tarfile.open(folder / f"{shard:03}.tar", "w") as tar:
            for number in range(EXAMPLES):
                x = torch.randn(16, generator=generator)
                label = str(int((DIRECTIONS @ x).argmax()))
                for suffix, data in (("x", x.numpy().tobytes()), ("y", label.encode())):
                    member = tarfile.TarInfo(f"{number:06}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))


class TarShards(IterableDataset[tuple[torch.Tensor, int]]):
    """The examples of all shards; the shards come in another order in each epoch.

    ``draw`` calls ``set_epoch``. The order must be the same on every learner, so it is made from
    the epoch and not drawn from a generator that each has for itself.
    """

    def __init__(self, folder: Path) -> None:
        self.shards = sorted(folder.glob("*.tar"))
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Before each epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        for shard in random.Random(self.epoch).sample(self.shards, len(self.shards)):
            with tarfile.open(shard) as tar:
                parts: dict[str, bytes] = {}
                for member in tar:
                    file = tar.extractfile(member)
                    assert file is not None
                    parts[member.name.rpartition(".")[2]] = file.read()
                    if len(parts) == 2:
                        x = torch.frombuffer(bytearray(parts["x"]), dtype=torch.float32)
                        yield x, int(parts["y"])
                        parts = {}


def main() -> None:
    """Trains on the shards of a folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--make", action="store_true", help="write the shards, and nothing else")
    options = parser.parse_args()
    if options.make:
        write_shards(options.folder)
        return
    model = nn.Linear(16, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    data = TarShards(options.folder)
    right = trained = 0
    with unisono.Learner(model, optimizer, unisono.Averaging(every=200)) as learner:
        # A tar file does not say how many examples are in it.
        minibatches = SHARDS * EXAMPLES // 10
        for x, y in learner.draw(data, epochs=5, batch_size=10, minibatches=minibatches):
            scores = model(x)
            learner.step(nn.functional.cross_entropy(scores, y))
            if learner.epoch == 4:
                right, trained = right + int((scores.argmax(1) == y).sum()), trained + len(y)
    print(f"learner {learner.number}: {right / max(1, trained):.1%} right in the last epoch")


if __name__ == "__main__":
    main()
