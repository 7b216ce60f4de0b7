"""Training on one GPU: 1 learner, and 4 learners that share it.

    python benchmarks/gpu.py

trains a DNN of 5 x 1024 on synthetic frames, with the frames on the device, and prints frames a
second, rounds and what was learned. Learners that share a GPU stage their rounds through pinned
host memory; the GPU is one and the same, so 4 learners are not 4 times as fast: the table says what
sharing costs.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from unisono.config import load
from unisono.data import synthesise
from unisono.errors import UserError
from unisono.training.train import train

CONTENDERS = [
    ("solo, 1 learner", ["strategy.name=solo", "learners=1"]),
    ("allreduce, 4", ["strategy.name=allreduce", "learners=4"]),
    ("averaging static, 4", ["strategy.name=averaging", "strategy.sharding=static", "learners=4"]),
    ("averaging, 4", ["strategy.name=averaging", "learners=4"]),
    ("server, 4", ["strategy.name=server", "learners=4"]),
    ("averaged-server, 4", ["strategy.name=averaged-server", "learners=4"]),
    ("gossip-fixed, 4", ["strategy.name=gossip-fixed", "learners=4"]),
    ("gossip-random, 4", ["strategy.name=gossip-random", "learners=4"]),
    ("delay-by-one, 4", ["strategy.name=delay-by-one", "learners=4"]),
]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise UserError("this benchmark needs a GPU")
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        prep = Path(folder) / "prep"
        synthesise(
            prep,
            speakers=60,
            utterances_per_speaker=20,
            frames_per_utterance=400,
            states=1000,
            dimension=40,
            seed=0,
            noise=1.5,
        )
        for name, sets in CONTENDERS:
            common = ["device=cuda", "minibatch=512", "network.hidden=[1024,1024,1024,1024,1024]"]
            common.append(f"epochs={options.epochs}")
            config = load(None, [*common, *sets], {"prep": str(prep)})
            summary = train(config, Path(folder) / name.replace(" ", "-"))
            logprob, accuracy = summary.validation_logprob, summary.validation_accuracy
            lines.append(
                f"{name:20} {summary.examples_per_s:10.0f} {summary.rounds:7d} "
                f"{summary.bytes_sent / 1e6:9.0f} {logprob or 0.0:9.4f} "
                f"{100 * (accuracy or 0.0):8.2f}"
            )
            print(lines[-1], flush=True)
    names = ("frames/s", "rounds", "MB sent", "held out", "right %")
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print("{:20} {:>10} {:>7} {:>9} {:>9} {:>8}".format("", *names))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
