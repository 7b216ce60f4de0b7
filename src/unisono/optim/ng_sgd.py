"""`ng-sgd`: SGD whose linear and convolutional layers step along their natural gradient."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.errors import UserError
from unisono.optim.device_preconditioner import DeviceEstimate, DevicePreconditioner
from unisono.optim.exact_preconditioner import ExactPreconditioner
from unisono.optim.gradient_hooks import GradientHook
from unisono.optim.max_change import LayerStep, clear, take_step
from unisono.optim.natural_gradient import OnlineNaturalGradient
from unisono.optim.preconditioner import (
    FisherOptions,
    Gradients,
    LayerPreconditioner,
    Side,
    SideEstimate,
)
from unisono.optim.rows import Affine, why_not


class Reduction(str, Enum):
    """What the loss does with the examples of a minibatch."""

    MEAN = "mean"
    SUM = "sum"


class NaturalGradientSGD(Optimizer):
    """SGD with Kaldi's online natural gradient, for any torch model.

    **What is preconditioned.** Each `nn.Linear` and `nn.Conv1d` is an affine map of rows,
    `y = [x, 1] [W, b]'`: one row for each example and time step. Its gradient is the sum over the
    N rows of a minibatch

        [dW, db] = g' [x, 1],        g = the derivatives with respect to y.

    Two `OnlineNaturalGradient`s, one for the rows of [x, 1] and one for those of g, make xhat
    and ghat with their scales s_x and s_g, and `.grad` becomes

        [dW, db] = s_g s_x ghat' xhat = s_g s_x beta_g beta_x G_g^-1 (g' [x, 1]) G_x^-1

    instead: the gradient times the inverse of a Kronecker-factored Fisher matrix, its length
    about what it was. `GradientHook` says how autograd is made to leave the first product out, so
    that the second one is no extra cost. All other parameters keep their gradients and take plain
    SGD steps, those of `nn.LSTM` among them (`unisono.models.LSTM` is made of linear layers);
    `describe` says which, and why.

    **Sums, whatever the loss does.** The estimates have one absolute floor, so they should see
    the derivatives of a loss that is a *sum* over the minibatch. With `reduction="mean"` they
    see N g, N the rows of that layer in this backward pass; `.grad` is nevertheless in the units
    of your own loss, and the learning rate means what it means for SGD. (Kaldi's rate is for
    sums: it is smaller by the minibatch.) N need not be exact, since all but the floor is
    invariant to it: a loss that sums is served as well, `reduction="sum"` only sees the floor
    where Kaldi has it.

    **When.** `.grad` holds the natural gradient as soon as the backward pass is over. So
    clipping, GradScaler and strategies that replace `.grad` work on it as they do on any
    gradient: under `allreduce` everybody steps with the mean of the learners' natural gradients,
    each made with its own estimates. Where gradients are accumulated over several backward
    passes, each part is preconditioned, and learnt from, as a minibatch of its own, and `.grad`
    is the sum of the results; where a layer is applied several times in one pass, all those
    rows are one minibatch.

    **The step.** v = momentum v + (grad + weight_decay * parameter), and v is grad + ... itself
    where momentum is 0; then parameters -= lr v, as in `torch.optim.SGD`, except that no layer
    changes by more than `max_change` and all together by no more than `max_change_total`
    (2-norms, see `take_step`). A step that is not finite is not taken, and clears v. None of this
    waits for the device.

    **Two implementations**, chosen here by the device that a layer's weight is on. On a CPU each
    side of a layer is an `OnlineNaturalGradient` (`ExactPreconditioner`). On a GPU an update of
    those would wait for the device, so there the estimates of all layers are one batch
    (`DevicePreconditioner`): nothing waits after the first minibatch, each layer is a few launches,
    and all estimates are updated together, in `step`. Move a model to the GPU before you make its
    optimizer. Under autocast to bfloat16 both multiply rows in bfloat16, as autocast's own weight
    gradients are.

    **Layers are parameter groups**, one for each module that has parameters, with its name in
    `layer`; so `lr`, `max_change`, `momentum` and `weight_decay` can be set for one layer.

    `max_change_total` is an attribute of the optimizer and may be set between steps, too.

    **State.** `state_dict` carries the estimates. They are this learner's own and are never
    averaged. Kaldi starts them, and momentum, anew in every round of averaging:
    `Averaging(restart_optimizer=True)` does that, and `restart_fisher` in a loop of your own.

    The hooks stay on the model's layers until `detach` is called, another `NaturalGradientSGD` is
    made for them, or this object is gone.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float,
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        reduction: Reduction | str = Reduction.MEAN,
        rank_in: int = 20,
        rank_out: int = 80,
        update_period: int = 4,
        num_samples_history: float = 2000.0,
        alpha: float = 4.0,
        max_change: float = 0.75,
        max_change_total: float = 2.0,
    ) -> None:
        """Adds hooks to the layers of a model.

        Args:
            model: The model; all of its parameters are optimized.
            lr: The learning rate.
            momentum: Of the steps.
            weight_decay: Added to the gradient, times the parameter.
            reduction: `mean` or `sum`: what your loss does with the rows of a minibatch.
            rank_in: Rank of the estimate for the inputs of a layer; (inputs + 1) / 2 at most.
            rank_out: Rank of the estimate for its output derivatives.
            update_period: Minibatches from one update of the estimates to the next.
            num_samples_history: Rows over which the estimates remember.
            alpha: Smoothing of the Fisher matrix; towards infinity it gives plain SGD.
            max_change: The longest step of one layer; 0: any.
            max_change_total: The longest step of all of them together; 0: any.

        Raises:
            UserError: A value is out of its range, or no layer can be preconditioned.
        """
        for name, value in (("lr", lr), ("momentum", momentum), ("weight_decay", weight_decay)):
            _require(value >= 0, f"{name} is {value}: give 0 or more")
        _require(momentum < 1, f"momentum is {momentum}: give less than 1")
        for name, value in (("max_change", max_change), ("max_change_total", max_change_total)):
            _require(value >= 0, f"{name} is {value}: give a length, or 0 for no bound")
        _require(
            reduction in tuple(Reduction),
            f"reduction is {reduction!r}: say 'mean' or 'sum', as your loss has it",
        )
        self._options = FisherOptions(
            rank_in=rank_in,
            rank_out=rank_out,
            update_period=update_period,
            num_samples_history=num_samples_history,
            alpha=alpha,
        )
        for rank in (rank_in, rank_out):  # refuses what it cannot use
            OnlineNaturalGradient(
                rank, update_period, num_samples_history=num_samples_history, alpha=alpha
            )
        self.max_change_total = max_change_total
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "max_change": max_change,
            "layer": "",
        }
        super().__init__(_groups(model), defaults)
        self._hooks: dict[Tensor, GradientHook] = {}
        self._plain = self._add_hooks(model)
        _require(bool(self._hooks), "the model has no layer to precondition: use torch.optim.SGD")
        biases = {weight: hook.bias for weight, hook in self._hooks.items()}
        mean = Reduction(reduction) is Reduction.MEAN
        self._preconditioners = _make_preconditioners(biases, self._options, mean=mean)
        self._finite: Tensor | None = None

    def describe(self) -> list[str]:
        """What is preconditioned and what is left to SGD, a line each."""
        lines = []
        for group in self.param_groups:
            name = group["layer"] or "the model"
            weights = [p for p in group["params"] if p in self._hooks]
            for weight in weights:
                outputs, inputs = weight.flatten(1).shape
                ranks = " and ".join(str(self._options.rank(side, weight)) for side in Side)
                lines.append(f"{name}: {inputs} inputs, {outputs} outputs, ranks {ranks}")
            if not weights:
                lines.append(f"{name}: plain SGD ({self._plain.get(name, 'not seen')})")
        return lines

    def restart_fisher(self) -> None:
        """Forgets the estimates; the next minibatch begins new ones. Momentum stays."""
        for weight in self._hooks:
            for side in Side:
                self.state[weight].pop(side.value, None)

    def detach(self) -> None:
        """Removes the hooks: autograd computes the model's gradients again."""
        for hook in self._hooks.values():
            hook.remove()

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Takes one step with what is in `.grad`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        steps = [s for group in self.param_groups if (s := self._layer_step(group)).parameters]
        self._finite = take_step(steps, self.max_change_total) if steps else None
        if self._finite is not None:
            self._clear_momentum(self._finite)
        for preconditioner in set(self._preconditioners.values()):
            preconditioner.after_step()
        return loss

    def replay_key(self) -> Hashable | None:
        """What the host decides of the next minibatch, for graphs of whole steps.

        None: the step cannot be captured yet, or not on this device.
        """
        estimates = [self._estimate(weight, side) for weight in self._hooks for side in Side]
        on_device = [e for e in estimates if isinstance(e, DeviceEstimate) and not e.needs_rows]
        if len(on_device) < len(estimates) or not self._has_momentum():
            return None
        return (self.max_change_total, *(estimate.is_due for estimate in on_device))

    @contextmanager
    def captured(self) -> Iterator[None]:
        """A context in which backward pass and step are captured, and count for nothing."""
        batched = [p for p in self._preconditioners.values() if isinstance(p, DevicePreconditioner)]
        for preconditioner in batched:
            preconditioner.leave_capturing()
            preconditioner.is_replayed = True
        try:
            yield
        finally:
            for preconditioner in batched:
                preconditioner.is_replayed = False

    def was_finite(self) -> Tensor:
        """Returns whether the last step was finite, and so was taken, on the device."""
        if self._finite is None:
            raise RuntimeError("ng-sgd: there was no step with a gradient")
        return self._finite

    def replayed(self) -> None:
        """Counts a minibatch whose backward pass and step were replayed."""
        for weight in self._hooks:
            for side in Side:
                estimate = self._estimate(weight, side)
                assert isinstance(estimate, DeviceEstimate)
                estimate.count()

    def state_dict(self) -> dict[str, Any]:
        """Momentum, settings of the groups, and the estimates under `fisher`."""
        packed: dict[str, Any] = super().state_dict()
        state: dict[Any, dict[str, Any]] = {}
        fisher: dict[Any, dict[str, Any]] = {}
        for index, values in packed["state"].items():
            for name, value in values.items():
                if name in tuple(Side):
                    fisher.setdefault(index, {})[name] = value.state_dict()
                else:
                    state.setdefault(index, {})[name] = value
        return {**packed, "state": state, "fisher": fisher}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`, for a model of the same shape."""
        fisher = state_dict.get("fisher")
        _require(fisher is not None, "the state has no Fisher estimates: it is another optimizer's")
        super().load_state_dict(dict(state_dict))
        parameters = [p for group in self.param_groups for p in group["params"]]
        for index, sides in dict(fisher or {}).items():
            weight = parameters[index]
            for side, values in sides.items():
                _require(
                    weight in self._hooks,
                    f"the state has a Fisher estimate of parameter {index}, which has none here",
                )
                self._estimate(weight, Side(side)).load_state_dict(values)

    def __getstate__(self) -> dict[str, Any]:
        """Refuses: a copy would step, but the layers of its model would have no hooks."""
        raise UserError(
            "ng-sgd: the optimizer cannot be copied or pickled; make one for the copied model "
            "and give it state_dict()"
        )

    def _add_hooks(self, model: nn.Module) -> dict[str, str]:
        """Adds hooks where possible; returns why other modules have none, by their names."""
        why: dict[str, str] = {}
        for name, module in model.named_modules():
            reason = why_not(module)
            if not reason:
                assert isinstance(module, Affine)
                weight, bias = module.weight, module.bias
                if weight not in self._hooks:
                    self._hooks[weight] = GradientHook(weight, bias, self._natural_gradient)
                if self._hooks[weight].bias is bias:
                    self._hooks[weight].add(module)
                    continue
                reason = "it shares its weight, but not its bias, with another layer"
            why[name or "the model"] = reason
        return why

    def _natural_gradient(
        self, weight: Tensor, inputs: list[Tensor], derivatives: list[Tensor]
    ) -> Gradients:
        """Returns [dW, db]; a `GradientHook` calls it in the backward pass."""
        estimates = {side: self._estimate(weight, side) for side in Side}
        return self._preconditioners[weight].gradients(weight, inputs, derivatives, estimates)

    def _estimate(self, weight: Tensor, side: Side) -> SideEstimate:
        """Returns the estimate for one side of a layer, a new one where there is none yet.

        It is kept in `state`, so that emptying that restarts it.
        """
        state = self.state[weight]
        if side.value not in state:
            state[side.value] = self._preconditioners[weight].new_estimate(weight, side)
        estimate: SideEstimate = state[side.value]
        return estimate

    def _layer_step(self, group: dict[str, Any]) -> LayerStep:
        """Updates the momentum of a layer, and returns its step before any bound."""
        parameters = [p for p in group["params"] if p.grad is not None]
        directions = []
        for parameter in parameters:
            direction = parameter.grad
            _require(direction.layout is torch.strided, "sparse gradients are not supported")
            if group["weight_decay"] > 0:
                direction = direction.add(parameter, alpha=group["weight_decay"])
            if group["momentum"] > 0:
                state = self.state[parameter]
                past = state.get("momentum_buffer")
                if past is None:
                    past = direction.clone()
                else:
                    past = past.to(direction)  # the model may have moved
                    torch.add(direction, past, alpha=group["momentum"], out=past)
                direction = state["momentum_buffer"] = past
            directions.append(direction)
        return LayerStep(
            parameters=parameters,
            directions=directions,
            rate=group["lr"],
            max_change=group["max_change"],
        )

    def _has_momentum(self) -> bool:
        """Whether preconditioned weights have their momentum: it begins outside of a capture."""
        weights = [p for g in self.param_groups if g["momentum"] > 0 for p in g["params"]]
        return all("momentum_buffer" in self.state[p] for p in weights if p in self._hooks)

    def _clear_momentum(self, finite: Tensor) -> None:
        """Clears momentum unless the step was finite, which on a CPU is looked at first."""
        past = {p: s["momentum_buffer"] for p, s in self.state.items() if "momentum_buffer" in s}
        if _is_batched(finite.device):
            clear(list(past.values()), list(past), finite)
        elif not finite:
            for buffer in past.values():
                buffer.zero_()


def _make_preconditioners(
    biases: Mapping[Tensor, Tensor | None], options: FisherOptions, *, mean: bool
) -> dict[Tensor, LayerPreconditioner]:
    """Returns the implementation for each weight: one batch for each GPU, exact elsewhere."""
    exact: LayerPreconditioner = ExactPreconditioner(biases, options, mean=mean)
    found = dict.fromkeys(biases, exact)
    for device in {weight.device for weight in biases if _is_batched(weight.device)}:
        there = {weight: bias for weight, bias in biases.items() if weight.device == device}
        batched: LayerPreconditioner = DevicePreconditioner(there, options, mean=mean)
        found.update(dict.fromkeys(there, batched))
    return found


def _is_batched(device: torch.device) -> bool:
    return device.type == "cuda"


def _groups(model: nn.Module) -> list[dict[str, Any]]:
    """Returns a parameter group for each module that has parameters of its own; tied ones once."""
    seen: set[nn.Parameter] = set()
    groups = []
    for name, module in model.named_modules():
        own = []
        for key, parameter in module.named_parameters(recurse=False):
            if isinstance(parameter, nn.parameter.UninitializedParameter):
                raise UserError(f"parameter {key} of {name} has no shape yet: run the model once")
            if parameter.is_floating_point() and parameter not in seen:
                own.append(parameter)
                seen.add(parameter)
        if own:
            groups.append({"params": own, "layer": name})
    return groups


def _require(condition: bool, problem: str) -> None:
    """Raises a UserError unless the condition holds."""
    if not condition:
        raise UserError(f"ng-sgd: {problem}")
