"""The gradient: against dense algebra, plain autograd, and other ways to write the same layer."""

from __future__ import annotations

import copy
import gc
import math
import pickle
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from support.processes import distributed_test
from unisono.errors import UserError
from unisono.optim import NaturalGradientSGD, OnlineNaturalGradient

INPUTS, HIDDEN, CLASSES, ROWS = 7, 9, 5, 32


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def network(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    return layers.to(dtype)


def minibatches(count: int, rows: int = ROWS, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    mixing = torch.randn(INPUTS, INPUTS, generator=generator)
    noise = torch.randn(count, rows, INPUTS, generator=generator)
    return list((0.3 + noise @ mixing).to(dtype))


def targets(x: Tensor) -> Tensor:
    return (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0.5).long()


def loss_of(model: nn.Module, x: Tensor, reduction: str = "mean") -> Tensor:
    return functional.cross_entropy(model(x), targets(x), reduction=reduction)


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def close(one: list[Tensor], other: list[Tensor], tolerance: float) -> bool:
    pairs = zip(one, other, strict=True)
    return all(float((a - b).norm()) <= tolerance * float(b.norm()) for a, b in pairs)


def rows_and_derivatives(model: nn.Sequential, x: Tensor) -> list[tuple[Tensor, Tensor]]:
    """[x, 1] and dy of the two layers, of the summed loss, by autograd on a plain copy."""
    first, act, last = copy.deepcopy(model)
    y = first(x)
    h = act(y)
    z = last(h)
    loss = functional.cross_entropy(z, targets(x), reduction="sum")
    dy, dz = torch.autograd.grad(loss, (y, z))
    ones = x.new_ones(len(x), 1)
    return [(torch.cat([x, ones], 1), dy), (torch.cat([h, ones], 1).detach(), dz)]


def fisher_of(state: dict[str, Tensor | float]) -> tuple[Tensor, float]:
    """The smoothed Fisher matrix with alpha 4, and its beta, from a state."""
    basis, d = torch.as_tensor(state["basis"]), torch.as_tensor(state["d"])
    dim = basis.shape[1]
    dense = basis.T @ torch.diag(d) @ basis + float(state["rho"]) * torch.eye(dim).double()
    smooth = 4.0 / dim * float(dense.trace())
    return dense + smooth * torch.eye(dim).double(), float(state["rho"]) + smooth


def test_gradient_is_that_of_a_dense_kronecker_factored_fisher() -> None:
    model = network()
    optimizer = NaturalGradientSGD(model, 0.1)
    *before, last = minibatches(12)
    for x in before:
        loss_of(model, x).backward()
        optimizer.zero_grad()
    fisher = optimizer.state_dict()["fisher"]
    loss_of(model, last).backward()
    parts = rows_and_derivatives(model, last)
    for (x, g), layer, index in zip(parts, (model[0], model[2]), (0, 2), strict=True):
        (dense_x, beta_x), (dense_g, beta_g) = (
            fisher_of(fisher[index][side]) for side in ("input", "output")
        )
        inverse = torch.linalg.inv(torch.kron(dense_g, dense_x)) * beta_x * beta_g
        plain = g.T @ x / len(x)
        wanted = (inverse @ plain.flatten()).view_as(plain)
        xhat = x @ torch.linalg.inv(dense_x) * beta_x
        ghat = g @ torch.linalg.inv(dense_g) * beta_g
        wanted *= x.norm() / xhat.norm() * g.norm() / ghat.norm()
        got = torch.cat([layer.weight.grad, layer.bias.grad.unsqueeze(1)], 1)
        assert (got - wanted).norm() < 1e-9 * wanted.norm()
        cosine = functional.cosine_similarity(got.flatten(), plain.flatten(), dim=0)
        assert 0.0 < float(cosine) < 0.9999  # it does something, and not an ascent


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_estimates_see_sums_and_gradients_keep_the_units_of_the_loss(reduction: str) -> None:
    model = network()
    optimizer = NaturalGradientSGD(model, 0.1, reduction=reduction)
    sides = {i: [OnlineNaturalGradient(4, 4), OnlineNaturalGradient(5, 4)] for i in (0, 2)}
    sides[2] = [OnlineNaturalGradient(5, 4), OnlineNaturalGradient(3, 4)]
    for x in minibatches(15):
        loss_of(model, x, reduction).backward()
        parts = rows_and_derivatives(model, x)
        for (rows, g), index in zip(parts, (0, 2), strict=True):
            (xhat, scale_x), (ghat, scale_g) = (
                side.precondition(part) for side, part in zip(sides[index], (rows, g), strict=True)
            )
            wanted = scale_x * scale_g * ghat.T @ xhat / (len(x) if reduction == "mean" else 1)
            got = torch.cat([model[index].weight.grad, model[index].bias.grad[:, None]], 1)
            assert (got - wanted).norm() < 1e-9 * wanted.norm()
        optimizer.zero_grad()


def test_the_default_serves_a_loss_that_sums_as_well() -> None:
    told, untold = network(), network()
    optimizers = [NaturalGradientSGD(told, 0.1, reduction="sum"), NaturalGradientSGD(untold, 0.1)]
    for x in minibatches(15):
        for model, optimizer in zip((told, untold), optimizers, strict=True):
            optimizer.zero_grad()
            loss_of(model, x, "sum").backward()
        assert close(gradients(untold), gradients(told), 1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_alpha_to_infinity_is_sgd(dtype: torch.dtype, tolerance: float) -> None:
    natural, plain = network(dtype=dtype), network(dtype=dtype)
    how = {"momentum": 0.9, "weight_decay": 0.01}
    steep = NaturalGradientSGD(natural, 0.1, alpha=1e15, max_change=0, max_change_total=0, **how)
    sgd = torch.optim.SGD(plain.parameters(), lr=0.1, **how)
    for x in minibatches(20, dtype=dtype):
        for model, optimizer in ((natural, steep), (plain, sgd)):
            loss_of(model, x).backward()
            optimizer.step()
            optimizer.zero_grad()
    ends = ([p.detach() for p in model.parameters()] for model in (natural, plain))
    assert close(*ends, tolerance)


def test_norm_of_the_rows_is_kept() -> None:
    # One row: the gradient of a layer is g'x, whose norm is |g| |x|, before as after.
    model = nn.Sequential(nn.Linear(INPUTS, CLASSES)).double()
    optimizer = NaturalGradientSGD(model, 0.1)
    for x in minibatches(15, rows=1):
        loss_of(model, x).backward()
        layer = model[0]
        got = math.hypot(float(layer.weight.grad.norm()), float(layer.bias.grad.norm()))
        plain = copy.deepcopy(layer)
        plain.weight.grad = plain.bias.grad = None
        loss_of(plain, x).backward()
        wanted = math.hypot(float(plain.weight.grad.norm()), float(plain.bias.grad.norm()))
        assert got == pytest.approx(wanted, rel=1e-9)
        optimizer.zero_grad()


GEOMETRIES = [
    {"kernel_size": 1},
    {"kernel_size": 3},
    {"kernel_size": 3, "dilation": 2, "stride": 2},
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 4, "padding": "same"},
    {"kernel_size": 3, "padding": 2, "padding_mode": "replicate", "dilation": 3},
    {"kernel_size": 2, "bias": False, "stride": 3},
]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_convolution_is_a_linear_layer_on_windows(geometry: dict, batched: bool) -> None:
    torch.manual_seed(1)
    conv = nn.Conv1d(4, 6, **geometry).double()
    frames = conv.kernel_size[0]
    linear = nn.Linear(4 * frames, 6, bias=conv.bias is not None).double()
    linear.load_state_dict(
        {k: v.flatten(1) if v.dim() > 1 else v for k, v in conv.named_parameters()}
    )
    optimizers = [NaturalGradientSGD(m, 0.1) for m in (conv, linear)]
    pad = conv._reversed_padding_repeated_twice
    mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
    for call in range(13):
        x = torch.randn(3 if batched else 1, 4, 20, dtype=torch.float64).requires_grad_()
        padded = functional.pad(x, pad, mode=mode)
        span = conv.dilation[0] * (frames - 1)
        starts = range(0, padded.shape[2] - span, conv.stride[0])
        windows = [padded[:, :, s : s + span + 1 : conv.dilation[0]].flatten(1) for s in starts]
        y = linear(torch.stack(windows, 1)).transpose(1, 2)
        z = conv(x if batched else x[0]).view_as(y)
        assert torch.allclose(y, z)
        weigh = torch.randn(y.shape, dtype=torch.float64)
        ((y * weigh).square().mean()).backward()
        (wanted,), x.grad = (x.grad,), None
        ((z * weigh).square().mean()).backward()
        assert torch.allclose(x.grad, wanted)
        assert close(
            [g.flatten() for g in gradients(conv)], [g.flatten() for g in gradients(linear)], 1e-9
        ), call
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def test_two_half_minibatches_are_two_minibatches_whose_gradients_add() -> None:
    model, other = network(), network()
    optimizer, apart = NaturalGradientSGD(model, 0.1), NaturalGradientSGD(other, 0.1)
    for x in minibatches(15):
        halves = []
        for half in x.chunk(2):
            (loss_of(model, half) / 2).backward()
            (loss_of(other, half) / 2).backward()
            halves.append(gradients(other))
            apart.zero_grad()
        total = [a + b for a, b in zip(*halves, strict=True)]
        assert close(gradients(model), total, 1e-12)
        optimizer.zero_grad()
    fisher, alike = optimizer.state_dict()["fisher"], apart.state_dict()["fisher"]
    assert fisher[0]["input"]["t"] == alike[0]["input"]["t"] == 30


def test_time_steps_are_rows_whether_together_or_one_by_one() -> None:
    together, apart = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()
    apart.load_state_dict(together.state_dict())
    for model in (together, apart):
        model.optimizer = NaturalGradientSGD(model, 0.1)
    for _ in range(12):
        x = torch.randn(6, 5, 4, dtype=torch.float64)
        together(x).square().mean().backward()
        steps = [apart(x[:, t]) for t in reversed(range(5))]
        torch.stack(steps[::-1], 1).square().mean().backward()
        assert close(gradients(together), gradients(apart), 1e-9)
        for model in (together, apart):
            model.optimizer.zero_grad()
    assert apart.optimizer.state_dict()["fisher"][0]["input"]["t"] == 12


class Tied(nn.Module):
    """Two modules with one weight, and an embedding with another's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight, self.second.bias = self.first.weight, self.first.bias
        self.words, self.scores = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
        self.scores.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(self.second(self.first(self.words(x)).relu()).relu())


def test_tied_weights() -> None:
    model, plain = Tied().double(), Tied().double()
    plain.load_state_dict(model.state_dict())
    optimizer = NaturalGradientSGD(model, 0.1, alpha=1e9)
    for _ in range(3):
        x = torch.randint(0, 11, (20,))
        for one in (model, plain):
            functional.cross_entropy(one(x), x).backward()
        assert close(gradients(model), gradients(plain), 1e-6)
        optimizer.zero_grad()
        plain.zero_grad()
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 3


def test_other_layers_keep_their_gradients_and_are_named() -> None:
    def make() -> nn.ModuleDict:
        torch.manual_seed(0)
        return nn.ModuleDict(
            {
                "in": nn.Linear(6, 8),
                "norm": nn.LayerNorm(8),
                "gru": nn.GRU(8, 8, batch_first=True),
                "lstm": nn.LSTM(8, 8, num_layers=2, batch_first=True),
                "grouped": nn.Conv1d(8, 8, 3, groups=2),
                "out": nn.Linear(8, 3),
            }
        ).double()

    model, plain = make(), make()
    optimizer = NaturalGradientSGD(model, 0.1)
    for one in (model, plain):
        x = torch.randn(4, 9, 6, generator=torch.Generator().manual_seed(5)).double()
        y = one["lstm"](one["gru"](one["norm"](one["in"](x)))[0])[0]
        one["out"](one["grouped"](y.transpose(1, 2)).transpose(1, 2)).square().mean().backward()
    for name in ("norm", "gru", "lstm", "grouped"):
        pairs = zip(model[name].parameters(), plain[name].parameters(), strict=True)
        assert all(torch.allclose(a.grad, b.grad, rtol=1e-12) for a, b in pairs)
    assert not torch.allclose(model["in"].weight.grad, plain["in"].weight.grad)
    said = optimizer.describe()
    assert said[0] == "in: 6 inputs, 8 outputs, ranks 3 and 4"
    assert said[2].startswith("gru: plain SGD (its fused kernel")
    assert said[3].startswith("lstm: plain SGD (its fused kernel")
    assert [line.split(":")[0] for line in said] == list(model)


def test_checkpointing_and_keywords() -> None:
    plain, again = network(), network()
    keep = [NaturalGradientSGD(m, 0.1) for m in (plain, again)]
    x = minibatches(1)[0].requires_grad_()
    functional.cross_entropy(plain[2](input=plain[1](plain[0](x))), targets(x)).backward()
    wanted, x.grad = x.grad, None
    y = checkpoint(lambda z: again[1](again[0](z)), x, use_reentrant=False)
    functional.cross_entropy(again[2](y), targets(x)).backward()
    assert torch.equal(x.grad, wanted)
    assert all(torch.equal(a, b) for a, b in zip(gradients(plain), gradients(again), strict=True))
    assert len(keep) == 2


def test_inplace_activation_may_follow() -> None:
    model, other = network(), network()
    other[1] = nn.ReLU(inplace=True)
    keep = [NaturalGradientSGD(m, 0.1) for m in (model, other)]
    x = minibatches(1)[0]
    loss_of(model, x).backward()
    loss_of(other, x).backward()
    assert all(torch.equal(a, b) for a, b in zip(gradients(model), gradients(other), strict=True))
    assert len(keep) == 2


def test_hooks_stay_until_they_are_removed() -> None:
    x = minibatches(1)[0]
    model, plain = network(), network()
    loss_of(plain, x).backward()

    def is_plain(one: nn.Module) -> bool:
        one.zero_grad()
        loss_of(one, x).backward()
        pairs = zip(gradients(one), gradients(plain), strict=True)
        return all(torch.equal(a, b) for a, b in pairs)

    first = NaturalGradientSGD(model, 0.1)
    second = NaturalGradientSGD(model, 0.1)
    assert not is_plain(model)
    assert not first.state_dict()["fisher"]
    assert second.state_dict()["fisher"]
    assert is_plain(copy.deepcopy(model))
    with torch.no_grad():
        model(x)
    for parameter in model.parameters():
        assert parameter.requires_grad
    second.detach()
    assert is_plain(model)
    third = NaturalGradientSGD(model, 0.1)
    assert not is_plain(model)
    del third
    gc.collect()
    assert is_plain(model)


def test_a_pickled_model_comes_back_without_hooks() -> None:
    model, x = network(), minibatches(1)[0]
    optimizer = NaturalGradientSGD(model, 0.1)
    again = pickle.loads(pickle.dumps(model))
    plain = network()
    for one in (model, again, plain):
        loss_of(one, x).backward()
    pairs = zip(gradients(again), gradients(plain), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert optimizer.state_dict()["fisher"][0]["input"]["t"] == 1


def compare_with_ddp(rank: int, folder: Path) -> bool:
    """Whether it ends with the same parameters; a process group that is freed may hang."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=1)
    model, bare = nn.parallel.DistributedDataParallel(network()), network()
    never_freed.append(model)
    pairs = [(m, NaturalGradientSGD(m, 0.1)) for m in (model, bare)]
    for x in minibatches(12):
        for one, optimizer in pairs:
            loss_of(one, x).backward()
            optimizer.step()
            optimizer.zero_grad()
    ends = zip(model.parameters(), bare.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in ends)


never_freed: list[nn.Module] = []


def test_ddp_finds_the_gradients_it_waits_for() -> None:
    assert distributed_test(compare_with_ddp, 1) == [True]


def test_attention_keeps_its_own_gradients_and_says_so() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    optimizer = NaturalGradientSGD(model, 0.1)
    model(torch.randn(3, 5, 8)).square().mean().backward()
    said = dict(line.split(": ", 1) for line in optimizer.describe())
    assert said["linear1"] == "8 inputs, 16 outputs, ranks 4 and 8"
    assert "attention" in said["self_attn.out_proj"]
    assert len(optimizer.state_dict()["fisher"]) == 2


def test_a_forward_that_fails_leaves_the_model_trainable() -> None:
    model = network()
    optimizer = NaturalGradientSGD(model, 0.1)
    with pytest.raises(RuntimeError):
        model(torch.zeros(3, INPUTS + 1, dtype=torch.float64))
    assert all(p.requires_grad for p in model.parameters())
    loss_of(model, minibatches(1)[0]).backward()
    optimizer.step()


def test_frozen_and_unused_layers() -> None:
    model = network()
    optimizer = NaturalGradientSGD(model, 0.1)
    model[0].weight.requires_grad_(False)
    model[2].bias.requires_grad_(False)
    before = [p.clone() for p in model.parameters()]
    loss_of(model, minibatches(1)[0]).backward()
    optimizer.step()
    changed = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert changed == [False, True, True, False]
    assert [p.requires_grad for p in model.parameters()] == changed


def test_a_layer_without_rows_has_no_gradient() -> None:
    model = network()
    optimizer = NaturalGradientSGD(model, 0.1)
    model(torch.zeros(0, INPUTS, dtype=torch.float64)).sum().backward()
    assert all(not bool(g.any()) for g in gradients(model))
    optimizer.step()


def test_half_precision_rows() -> None:
    model, plain = network(dtype=torch.float32), network(dtype=torch.float32)
    optimizer = NaturalGradientSGD(model, 0.1, alpha=1e9)
    for x in minibatches(3, dtype=torch.float32):
        for one in (model, plain):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(one, x)
            loss.backward()
        assert close(gradients(model), gradients(plain), 2e-2)
        optimizer.zero_grad()
        plain.zero_grad()


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"lr": -1.0}, "lr"),
        ({"momentum": 1.0}, "momentum"),
        ({"reduction": "average"}, "average"),
        ({"rank_in": 0}, "rank"),
        ({"update_period": 0}, "update_period"),
        ({"max_change": -0.5}, "max_change"),
    ],
)
def test_bad_settings_are_refused(settings: dict, word: str) -> None:
    with pytest.raises(UserError, match=word):
        NaturalGradientSGD(network(), **{"lr": 0.1, **settings})


def test_a_model_without_such_layers_is_refused() -> None:
    with pytest.raises(UserError, match="no layer"):
        NaturalGradientSGD(nn.GRU(3, 3), 0.1)
