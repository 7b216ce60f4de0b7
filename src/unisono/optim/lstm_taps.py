"""Taps on `nn.LSTM`: what its fused kernel hides, shown step by step."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence

from unisono.optim.taps import Tap

State = tuple[Tensor, Tensor]
Taps = dict[str, Tap]
_owners: weakref.WeakKeyDictionary[nn.Module, LSTMTaps] = weakref.WeakKeyDictionary()


class LSTMTaps:
    """Has the gradients of an LSTM's weights made from rows, by a `Tap` for each weight.

    A layer, in one direction, is

        p_t = W x_t + b + V r_{t-1} + d,        i, f, g, o = the quarters of p_t
        c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g)
        m_t = sigmoid(o) tanh(c_t),             r_t = P m_t  (m_t itself without a projection)

    and each of W, V, P is a linear layer that is applied at every step. The rows of W are x_t,
    those of V are r_{t-1}, those of P are m_t; the output derivatives of W and V are both dL/dp_t,
    since p_t is their sum, and those of P are dL/dr_t. So one node that watches the driven part
    W x_t + b of all steps sees the derivatives of W and V; one that watches zeros added to P m_t
    those of P.

    While gradients are wanted the module computes step by step instead of by its kernel: the same
    numbers, somewhat later. Without them, in validation say, the kernel computes.
    """

    def __init__(self, module: nn.LSTM, tap_of: Callable[[Tensor, Tensor | None], Tap]) -> None:
        """Taps a module.

        Args:
            module: The LSTM.
            tap_of: Makes the tap of a weight and its bias.
        """
        if module in _owners:
            _owners[module].remove()
        _owners[module] = self
        self._module = weakref.ref(module)
        self.taps = {name: tap_of(*_pair(module, name)) for name in _names(module)}
        module.__class__ = _TappedLSTM

    def remove(self) -> None:
        """Leaves the module as it was."""
        module = self._module()
        if module is not None and _owners.get(module) is self:
            del _owners[module]
            module.__class__ = nn.LSTM

    @property
    def alive(self) -> bool:
        """Whether anybody makes gradients of what is seen."""
        return all(tap.alive for tap in self.taps.values())

    @property
    def wanted(self) -> bool:
        """Whether all weights are to have gradients; if only some are, autograd makes them."""
        return torch.is_grad_enabled() and all(tap.wanted for tap in self.taps.values())


class _TappedLSTM(nn.LSTM):
    """An LSTM that is tapped; copies of it, and what is unpickled, are not."""

    def forward(self, input: Any, hx: State | None = None) -> Any:  # noqa: A002
        taps = _owners.get(self)
        if taps is not None and not taps.alive:
            taps.remove()
            taps = None
        if taps is None or not taps.wanted:
            return nn.LSTM.forward(self, input, hx)
        return _unrolled(self, taps.taps, input, hx)

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced: Any = super().__reduce_ex__(protocol)
        return object.__new__, (nn.LSTM,), *reduced[2:]


def can_be_tapped(module: nn.Module) -> bool:
    """Whether it is an LSTM as torch makes it, with weights of its own."""
    return type(module) in (nn.LSTM, _TappedLSTM) and all(
        name in module._parameters for name in _names(module)
    )


def _names(module: nn.Module) -> list[str]:
    """Returns the names of the weights of all layers and directions."""
    assert isinstance(module, nn.LSTM)
    return [name for names in module._all_weights for name in names if name.startswith("weight")]


def _pair(module: nn.LSTM, name: str) -> tuple[Tensor, Tensor | None]:
    """Returns a weight and its bias."""
    return getattr(module, name), getattr(module, name.replace("weight", "bias"), None)


def _unrolled(module: nn.LSTM, taps: Taps, given: Any, hx: State | None) -> Any:
    """What `nn.LSTM.forward` returns, for all that it may be given."""
    packed = given if isinstance(given, PackedSequence) else None
    if packed is not None:
        x, sizes = packed.data, packed.batch_sizes.tolist()
    else:
        x = given if given.dim() == 3 else given.unsqueeze(0 if module.batch_first else 1)
        x = x.transpose(0, 1) if module.batch_first else x
        sizes = [x.shape[1]] * x.shape[0]
        x = x.flatten(0, 1)
    batched = packed is not None or given.dim() == 3
    begin = _first_states(module, packed, hx, sizes[0], x, batched)
    ends: list[State] = []
    ways = 2 if module.bidirectional else 1
    for layer in range(module.num_layers):
        outputs = []
        for way in range(ways):
            suffix = f"_l{layer}" + ("_reverse" if way else "")
            state = (begin[0][layer * ways + way], begin[1][layer * ways + way])
            r, end = _one_way(module, taps, suffix, x, sizes, state, backwards=bool(way))
            outputs.append(r)
            ends.append(end)
        x = torch.cat(outputs, 1)
        if module.dropout and layer + 1 < module.num_layers:
            x = functional.dropout(x, module.dropout, module.training)
    last = tuple(torch.stack(states) for states in zip(*ends, strict=True))
    if packed is not None:
        whole: Any = PackedSequence(
            x, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices
        )
        if packed.unsorted_indices is not None:
            last = tuple(state.index_select(1, packed.unsorted_indices) for state in last)
        return whole, last
    whole = x.view(len(sizes), sizes[0], -1)
    whole = whole.transpose(0, 1) if module.batch_first else whole
    if not batched:
        return whole.squeeze(0 if module.batch_first else 1), tuple(s.squeeze(1) for s in last)
    return whole, last


def _first_states(
    module: nn.LSTM,
    packed: PackedSequence | None,
    hx: State | None,
    batch: int,
    x: Tensor,
    batched: bool,
) -> State:
    """Returns the states to begin with, layers and ways x batch x numbers."""
    count = module.num_layers * (2 if module.bidirectional else 1)
    if hx is None:
        outputs = module.proj_size or module.hidden_size
        return x.new_zeros(count, batch, outputs), x.new_zeros(count, batch, module.hidden_size)
    r, c = hx if batched else (hx[0].unsqueeze(1), hx[1].unsqueeze(1))
    if packed is not None and packed.sorted_indices is not None:
        return r.index_select(1, packed.sorted_indices), c.index_select(1, packed.sorted_indices)
    return r, c


def _one_way(
    module: nn.LSTM,
    taps: Taps,
    suffix: str,
    x: Tensor,
    sizes: list[int],
    begin: State,
    *,
    backwards: bool,
) -> tuple[Tensor, State]:
    """One layer in one direction: the outputs of all steps, one after the other, and its end.

    `sizes` has the examples of each step, never more than of the step before. Going backwards,
    longer examples join as their last step comes; going forwards, shorter ones end.
    """
    inward, recurrent = taps[f"weight_ih{suffix}"], taps[f"weight_hh{suffix}"]
    projecting = taps.get(f"weight_hr{suffix}")
    before: list[Tensor] = []
    inside: list[Tensor] = []
    rows = x.detach()

    def note_gates(derivative: Tensor) -> None:
        inward.note(rows, derivative)
        recurrent.note(torch.cat(before), derivative)

    driven = _watched(inward.applied(x), note_gates, inward, recurrent)
    added = driven
    if projecting is not None:
        added = _watched(
            driven.new_zeros(len(x), module.proj_size),
            lambda derivative: projecting.note(torch.cat(inside), derivative),
            projecting,
        )
    r, c = (state.to(driven.dtype) for state in begin)
    first_r, first_c = r, c
    starts = [sum(sizes[:t]) for t in range(len(sizes))]
    order = range(len(sizes) - 1, -1, -1) if backwards else range(len(sizes))
    outputs: list[Tensor] = [driven] * len(sizes)
    ended: list[State] = []
    if backwards:
        r, c = r[: sizes[-1]], c[: sizes[-1]]
    for t in order:
        size = sizes[t]
        if size < len(r):
            ended.append((r[size:], c[size:]))
            r, c = r[:size], c[:size]
        elif size > len(r):
            r = torch.cat([r, first_r[len(r) : size]])
            c = torch.cat([c, first_c[len(c) : size]])
        step = slice(starts[t], starts[t] + size)
        before.append(r.detach())
        gates = driven[step] + recurrent.applied(r)
        i, f, g, o = gates.chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        r = o.sigmoid() * c.tanh()
        if projecting is not None:
            inside.append(r.detach())
            r = projecting.applied(r) + added[step]
        outputs[t] = r
    if backwards:
        before.reverse()
        inside.reverse()
    ended.append((r, c))
    ended.reverse()
    return torch.cat(outputs), (
        torch.cat([state[0] for state in ended]),
        torch.cat([state[1] for state in ended]),
    )


def _watched(output: Tensor, note: Callable[[Tensor], None], *taps: Tap) -> Tensor:
    """Returns the output; its derivative is shown to `note` before the taps make gradients."""
    tokens = [tap.token() for tap in taps]
    watched: Tensor = _Watch.apply(output, note, *tokens)  # type: ignore[no-untyped-call]
    return watched


class _Watch(torch.autograd.Function):
    """Shows what goes by in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, note: Callable[[Tensor], None], *tokens: Tensor
    ) -> Tensor:
        ctx.note, ctx.tokens = note, len(tokens)
        return output.view_as(output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, derivative: Tensor) -> tuple[Tensor | None, ...]:
        ctx.note(derivative)
        return derivative, None, *[None] * ctx.tokens
