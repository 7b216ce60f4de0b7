"""When the layers of an optimizer move to the device, and when they move out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from unisono.optim.layer import Estimation
from unisono.optim.natural_gradient import FLOAT32_ALPHA
from unisono.optim.residence import Residence, Resident, Sides, Work, captured

STEADY = 3
"""Steps with minibatches of one size after which layers move in."""
Rows = tuple[int, torch.dtype]
"""How many a minibatch has for a layer, and what they are multiplied in."""
SidesOf = Callable[[Tensor], Sides]
"""The estimates of a weight."""


def on_gpu(weight: Tensor) -> bool:
    """Whether a layer gains by moving."""
    return weight.is_cuda


class Housing:
    """Watches the minibatches of all layers, and builds a `Residence` when they have become steady.

    Layers move in when it is there and their first minibatches, all of which update, are over. They
    move out when somebody begins their estimates anew, and in again when those have settled; the
    house stays. It is given up where rows come in another dtype or on another device.

    Rows whose derivatives are bfloat16, as autocast makes them, are multiplied in bfloat16; all
    others in float32.
    """

    def __init__(
        self,
        estimation: Estimation,
        *,
        mean: bool,
        biases: Mapping[Tensor, Tensor | None],
        capture: Callable[[Work], Work] = captured,
        movable: Callable[[Tensor], bool] = on_gpu,
    ) -> None:
        """Watches, to begin with.

        Args:
            estimation: Ranks, history and smoothing.
            mean: Whether the derivatives are those of a mean over the rows.
            biases: The bias of each weight; may grow.
            capture: Makes a graph of work.
            movable: Which layers may move.
        """
        self._estimation, self._mean = estimation, mean
        self._biases = biases
        self._capture, self._movable = capture, movable
        self._seen: dict[Tensor, set[Rows]] = {}
        self._before: dict[Tensor, set[Rows]] = {}
        self._steady = 0
        self._given_up = False
        self._house: Residence | None = None
        self._inhabited = False

    def gradients(
        self,
        weight: Tensor,
        inputs: list[Tensor],
        derivatives: list[Tensor],
        sides_of: SidesOf,
    ) -> tuple[Tensor, Tensor | None] | None:
        """Returns the natural gradients of a layer that has moved in; None of another.

        Args:
            weight: Its weight.
            inputs: Views of the rows of x.
            derivatives: Views of the rows of g.
            sides_of: The estimates of a weight as they are now; new ones where there are none.
        """
        rows = _rows(weight, derivatives)
        self._seen.setdefault(weight, set()).add(rows)
        house = self._home_of(weight, rows, sides_of)
        if house is None:
            return None
        return house.gradients(weight, inputs, derivatives, sides_of(weight))

    def settle(self, sides_of: SidesOf) -> None:
        """After a step: has estimates follow, or has layers move in if it is time."""
        seen, self._seen = self._seen, {}
        if self._house is not None and self._inhabited:
            self._house.follow()
            return
        self._steady = self._steady + 1 if seen and seen == self._before else 0
        self._before = seen
        if self._house is None and self._steady >= STEADY and not self._given_up:
            self._house = self._try_to_build(seen)
        if self._house is not None and all(
            _settled(sides_of(layer.weight)) for layer in self._house.layers
        ):
            self._house.move_in(sides_of)
            self._inhabited = True

    def hand_back(self, sides_of: SidesOf) -> None:
        """Brings the layers' own estimates up to date; waits for the device."""
        if self._house is not None and self._inhabited:
            self._house.hand_back(sides_of)

    def vacate(self) -> None:
        """Goes on with the layers' own estimates as they are."""
        self._inhabited = False

    def _home_of(self, weight: Tensor, rows: Rows, sides_of: SidesOf) -> Residence | None:
        house = self._house
        if house is None or not self._inhabited or weight not in house or rows[0] == 0:
            return None
        if not _settled(sides_of(weight)):  # somebody has begun anew
            self.vacate()
            return None
        if rows[1] is not house.dtype or weight.device != house.device:
            self.hand_back(sides_of)
            self._house, self._inhabited, self._steady = None, False, 0
            return None
        return house

    def _try_to_build(self, seen: Mapping[Tensor, set[Rows]]) -> Residence | None:
        """Returns a house; None, for good, where the device has no memory or graphs for it."""
        try:
            return self._build(seen)
        except RuntimeError as error:
            self._given_up = True
            reason = str(error).split("\n")[0]
            warnings.warn(
                f"ng-sgd goes on more slowly, without CUDA graphs: {reason}", stacklevel=2
            )
            return None

    def _build(self, seen: Mapping[Tensor, set[Rows]]) -> Residence | None:
        """Returns a house for all layers that can move and have rows of the commonest dtype."""
        layers = []
        dtypes = [next(iter(rows))[1] for rows in seen.values()]
        dtype = max(set(dtypes), key=dtypes.count)
        for weight, rows in seen.items():
            count, kind = next(iter(rows))
            outputs, inputs = weight.flatten(1).shape
            bias = self._biases[weight]
            narrowest = min(outputs, inputs + (bias is not None))
            if len(rows) == 1 and kind is dtype and count and narrowest > 1 and self._may(weight):
                layers.append(Resident(weight=weight, bias=bias, rows=count))
        if not layers or len({layer.weight.device for layer in layers}) > 1:
            return None
        return Residence(
            layers, self._estimation, mean=self._mean, dtype=dtype, capture=self._capture
        )

    def _may(self, weight: Tensor) -> bool:
        smoothed = self._estimation.alpha >= FLOAT32_ALPHA  # else rows need float64
        return smoothed and weight.dtype is torch.float32 and self._movable(weight)


def _rows(weight: Tensor, derivatives: list[Tensor]) -> Rows:
    """Returns what a minibatch has for a layer."""
    count = sum(view.numel() for view in derivatives) // len(weight)
    narrow = all(view.dtype is torch.bfloat16 for view in derivatives)
    return count, torch.bfloat16 if narrow else torch.float32


def _settled(sides: Sides) -> bool:
    return all(
        side.settled and not side.frozen and side.estimate is not None for side in sides.values()
    )
