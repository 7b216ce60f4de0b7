"""Training whose processes are forks, as those of ``unisono train`` are."""

from __future__ import annotations

from pathlib import Path

import torch

from support.forking import with_forks
from unisono.config import Config
from unisono.runs.summary import Summary
from unisono.training.train import train


def train_with_forks(config: Config, out: Path) -> Summary:
    """What ``train`` returns."""
    return with_forks(_train, config, out)


def _train(config: Config, out: Path) -> Summary:
    torch.set_num_threads(1)
    return train(config, out, forks=True)
