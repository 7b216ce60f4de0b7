"""lhotse's cuts in an own loop, in buckets of alike duration; needs unisono[lhotse].

One learner:             python examples/lhotse_cuts.py
Three on this machine:   unisono launch --learners 3 examples/lhotse_cuts.py
"""

from __future__ import annotations

import io

import numpy as np
import soundfile
import torch
from lhotse import CutSet, MonoCut, Recording, SupervisionSegment
from lhotse.dataset import DynamicBucketingSampler
from lhotse.dataset.collation import collate_audio
from lhotse.lazy import LazyMapper
from torch import nn
from torch.utils.data import DataLoader, Dataset

import unisono

RATE = 8000
TONES = (300.0, 600.0, 1200.0, 2400.0)


def make_cut(number: int) -> MonoCut:
    """A tone in noise, 0.3 to 1.5 s long; yours come from CutSet.from_file."""
    random = np.random.default_rng(number)
    which = number % len(TONES)
    time = np.arange(int(RATE * random.uniform(0.3, 1.5))) / RATE
    audio = np.sin(2 * np.pi * TONES[which] * time) * 0.1 + random.normal(0, 0.1, len(time))
    file = io.BytesIO()
    soundfile.write(file, audio, RATE, format="WAV")
    recording = Recording.from_bytes(file.getvalue(), f"tone-{number}")
    cut: MonoCut = recording.to_cut()
    cut.supervisions = [
        SupervisionSegment(cut.id, recording.id, 0.0, recording.duration, text=str(which))
    ]
    return cut


class Spectra(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Asked for a minibatch of cuts it gives their mean spectra, and which tone is in each."""

    def __getitem__(self, cuts: CutSet) -> tuple[torch.Tensor, torch.Tensor]:
        audio, lengths = collate_audio(cuts)
        window = torch.hann_window(256)
        power = torch.stft(audio, 256, window=window, return_complex=True).abs().square().mean(2)
        tones = torch.tensor([int(cut.supervisions[0].text) for cut in cuts])
        return torch.log(power / lengths[:, None] * audio.shape[1] + 1e-6), tones


def main() -> None:
    """Trains a classifier of tones."""
    cuts = CutSet(LazyMapper(range(400), make_cut))
    # One process' sampler: the run divides its minibatches among the learners.
    sampler = DynamicBucketingSampler(
        cuts, max_duration=10.0, num_buckets=4, shuffle=True, seed=0, rank=0, world_size=1
    )
    loader = DataLoader(Spectra(), batch_size=None, sampler=sampler, num_workers=1)
    model = nn.Sequential(nn.LayerNorm(129), nn.Linear(129, len(TONES)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    right = trained = 0
    with unisono.Learner(model, optimizer, unisono.Averaging(every=80)) as learner:
        for x, y in learner.draw(loader, epochs=6):
            scores = model(x)
            learner.step(nn.functional.cross_entropy(scores, y))
            if learner.epoch == 5:
                right, trained = right + int((scores.argmax(1) == y).sum()), trained + len(y)
    print(f"learner {learner.number}: {right / max(1, trained):.1%} right in the last epoch")


if __name__ == "__main__":
    main()
