"""Online natural gradient against what Kaldi's double-precision build returned."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from unisono.optim import OnlineNaturalGradient

VECTORS = Path(__file__).parents[1] / "data" / "natural_gradient"
CASES = sorted(path.stem for path in VECTORS.glob("*.npz"))


def test_the_vectors_are_here() -> None:
    assert len(CASES) == 7


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-7), (torch.float32, 5e-6)])
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_kaldi(case: str, dtype: torch.dtype, tolerance: float) -> None:
    with np.load(VECTORS / f"{case}.npz") as vectors:
        settings = json.loads(str(vectors["params"]))
        first_frozen, first_thawed = settings.pop("freeze")
        natural_gradient = OnlineNaturalGradient(**settings)
        kept = set(vectors["iters"].tolist())
        for t, x in enumerate(vectors["X"]):
            natural_gradient.frozen = first_frozen <= t < first_thawed
            rows, scale = natural_gradient.precondition(torch.from_numpy(x).to(dtype))
            expected_scale = vectors["scale"][t]
            assert float(scale) == pytest.approx(expected_scale, rel=tolerance)
            if t in kept:
                ours = float(scale) * rows.double().numpy()[vectors[f"rows_{t}"]]
                expected = expected_scale * vectors[f"out_{t}"].astype(np.float64)
                error = np.linalg.norm(ours - expected)
                assert error <= tolerance * np.linalg.norm(expected)
