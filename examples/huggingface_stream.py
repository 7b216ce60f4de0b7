"""A streamed dataset of Hugging Face in an own loop; needs unisono[huggingface].

One learner:             python examples/huggingface_stream.py
Three on this machine:   unisono launch --learners 3 examples/huggingface_stream.py
"""

from __future__ import annotations

import datasets
import numpy as np
import torch
from torch import nn

import unisono

EXAMPLES = 1000


def make_stream() -> datasets.IterableDataset:
    """Vectors and which of five directions is closest; yours: load_dataset(..., streaming=True)."""
    random = np.random.default_rng(0)
    x = random.normal(size=(EXAMPLES, 16)).astype(np.float32)
    y = (x @ random.normal(size=(16, 5))).argmax(1)
    stream = datasets.Dataset.from_dict({"x": x, "y": y}).to_iterable_dataset(num_shards=8)
    # Seeded: each learner reads the whole stream and trains its own minibatches of it. In each
    # epoch the order is another one, since draw() calls set_epoch.
    return stream.shuffle(seed=0, buffer_size=200).with_format("torch")


def main() -> None:
    """Trains on the stream."""
    model = nn.Linear(16, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    right = trained = 0
    with unisono.Learner(model, optimizer, unisono.Averaging(every=200)) as learner:
        batches = learner.draw(make_stream(), epochs=5, batch_size=10, minibatches=EXAMPLES // 10)
        for batch in batches:
            scores = model(batch["x"])
            learner.step(nn.functional.cross_entropy(scores, batch["y"]))
            if learner.epoch == 4:
                right = right + int((scores.argmax(1) == batch["y"]).sum())
                trained += len(batch["y"])
    print(f"learner {learner.number}: {right / max(1, trained):.1%} right in the last epoch")


if __name__ == "__main__":
    main()
