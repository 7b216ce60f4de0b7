"""How loops end: early, with an exception, with numbers that are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import unisono
from support.loops import (
    ALL,
    BATCH,
    DYNAMIC_AVERAGING,
    SHARING,
    Ran,
    alone,
    dataset,
    flat,
    loss_of,
    network,
    plain_batches,
    sgd,
    simulated,
)
from unisono.coordinator.client import Abandoned
from unisono.coordinator.state import State
from unisono.errors import Cause, Diverged
from unisono.fabric import Address
from unisono.fabric.simulated.schedulers import SeededScheduler
from unisono.learner.finite_guard import IN_A_ROW
from unisono.learner.placement import find_placement
from unisono.simulation import Cut, Kill, KillCoordinator, Pause, run_loops

Together = Callable[..., Ran]
NAN = float("nan")


# Numbers that are none.


@pytest.mark.parametrize("strategy", ALL)
@pytest.mark.parametrize("how", ["times", "plus", "inf"])
def test_a_step_that_is_not_finite_is_skipped(strategy: str, how: str) -> None:
    """Also the first, the last of a round, and the last of all."""
    bad = {0, 3, 10, 25}
    plain = network()
    optimizer = sgd(plain)
    for place, batch in enumerate(plain_batches(2)):
        if place not in bad:
            loss_of(plain, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    model = network()

    def loop() -> None:
        with unisono.Learner(model, sgd(model), ALL[strategy]) as learner:
            dynamic = learner.draw(dataset(), epochs=2, batch_size=BATCH)
            for place, batch in enumerate(dynamic):
                loss = loss_of(model, batch)
                if place in bad:
                    # With a constant added the gradients themselves are finite.
                    loss = {"times": loss * NAN, "plus": loss + NAN, "inf": loss / 0}[how]
                learner.step(loss)
            assert learner.skipped == len(bad)

    ran = alone(loop)
    assert torch.equal(flat(model), flat(plain))
    assert (ran.counts.committed, ran.counts.skipped) == (22, 4)


@pytest.mark.parametrize("strategy", SHARING)
@pytest.mark.parametrize("how", ["times", "plus"])
def test_a_nan_enters_no_shared_model(strategy: str, how: str, together: Together) -> None:
    """Where gradients are shared all skip the step, and stay the same."""
    ends: dict[int, torch.Tensor] = {}
    bad = 0

    def loop() -> None:
        nonlocal bad
        model = network()
        with unisono.Learner(model, sgd(model), SHARING[strategy]) as learner:
            dynamic = learner.draw(dataset(96), epochs=2, batch_size=BATCH)
            for place, batch in enumerate(dynamic):
                loss = loss_of(model, batch)
                if learner.number == 1 and place % 3 == 1:
                    bad += 1
                    loss = loss * NAN if how == "times" else loss + NAN
                learner.step(loss)
                assert flat(model).isfinite().all()
                with learner.consensus():
                    assert flat(model).isfinite().all()
        ends[learner.number] = flat(model)

    ran = together(loop, 2)
    assert ran.counts.skipped == bad * (2 if strategy == "allreduce" else 1)
    assert ran.counts.committed + ran.counts.skipped == 24
    assert strategy == "dynamic" or torch.equal(ends[0], ends[1])


def test_skipped_steps_are_told_before_the_report_that_holds_them(together: Together) -> None:
    """All-reduced learners report after 16 rounds; the last of them may be a step not taken."""

    def loop() -> None:
        model = network()
        with unisono.Learner(model, sgd(model), "allreduce") as learner:
            dynamic = learner.draw(dataset(96), epochs=6, batch_size=BATCH)
            for place, batch in enumerate(dynamic):
                bad = place in (15, 31) and learner.number == 0
                learner.step(loss_of(model, batch) * (NAN if bad else 1.0))

    assert alone(loop).counts.skipped == 2
    ran = together(loop, 2)
    assert (ran.counts.committed, ran.counts.skipped) == (68, 4)


@pytest.mark.parametrize("strategy", ALL)
def test_ten_in_a_row_end_it_in_one_line(strategy: str) -> None:
    model, steps = network(), 0

    def loop() -> None:
        nonlocal steps
        with unisono.Learner(model, sgd(model), ALL[strategy]) as learner:
            for place, batch in enumerate(learner.draw(dataset(), epochs=3, batch_size=BATCH)):
                steps += 1
                # Nine in a row are no reason to leave.
                good = place == IN_A_ROW - 1
                learner.step(loss_of(model, batch) * (1.0 if good else NAN))

    with pytest.raises(unisono.UserError) as caught:
        alone(loop)
    assert "\n" not in str(caught.value) and "ten in a row" in str(caught.value)
    assert steps == 2 * IN_A_ROW
    assert flat(model).isfinite().all()


@pytest.mark.parametrize("strategy", ["static", "dynamic", "gossip", "server"])
def test_the_others_go_on_without_one_that_diverges_alone(
    strategy: str, together: Together
) -> None:
    ways = {**SHARING, "server": "server"}

    def loop() -> None:
        model = network()
        with unisono.Learner(model, sgd(model), ways[strategy]) as learner:
            for batch in learner.draw(dataset(), epochs=30, batch_size=BATCH):
                learner.step(loss_of(model, batch) * (NAN if learner.number == 1 else 1.0))

    ran = together(loop, 3, check=False)
    assert {number: type(error) for number, error in ran.errors.items()} == {1: Diverged}
    assert ran.state.pool.over and ran.state.failure is None
    assert [address.number for address in ran.state.lost] == [1]
    assert ran.counts.committed + ran.counts.skipped == 30 * 13


@pytest.mark.parametrize("strategy", SHARING)
def test_a_run_of_which_half_diverge_ends_for_all(strategy: str, together: Together) -> None:
    def loop() -> None:
        model = network()
        with unisono.Learner(model, sgd(model), SHARING[strategy]) as learner:
            for batch in learner.draw(dataset(), epochs=12, batch_size=BATCH):
                learner.step(loss_of(model, batch) * (NAN if learner.number < 2 else 1.0))

    ran = together(loop, 4, check=False)
    assert sorted(ran.errors) == [0, 1, 2, 3]
    for error in ran.errors.values():
        told = error.failure.cause if isinstance(error, Abandoned) else None
        assert isinstance(error, Diverged) or told is Cause.DIVERGED


@pytest.mark.parametrize("strategy", ["static", "dynamic"])
def test_parameters_that_are_infinite_are_shared_with_nobody(strategy: str) -> None:
    """Finite gradients, too large a step: the learner leaves, and the others go on."""
    ends: dict[int, torch.Tensor] = {}

    def loop() -> None:
        model = network()
        optimizer = sgd(model)
        with unisono.Learner(model, optimizer, SHARING[strategy]) as learner:
            dynamic = learner.draw(dataset(96), epochs=2, batch_size=BATCH)
            for place, batch in enumerate(dynamic):
                if learner.number == 1 and place == 2:
                    optimizer.param_groups[0]["lr"] = 1e38
                learner.step(loss_of(model, batch) * (1e3 if learner.number == 1 else 1.0))
        ends[learner.number] = flat(model)

    ran = simulated(loop, 3, check=False)
    assert [type(error).__name__ for error in ran.errors.values()] == ["Diverged"]
    assert ran.state.pool.over and ran.counts.committed + ran.counts.skipped == 24
    assert sorted(ends) == [0, 2]
    assert all(end.isfinite().all() for end in ends.values())


# Early and late.


@pytest.mark.parametrize("strategy", SHARING)
@pytest.mark.parametrize("leaver", [0, 1])
def test_breaking_out_leaves_the_rest_to_the_others(
    strategy: str, leaver: int, together: Together
) -> None:
    steps: dict[int, int] = {}
    is_leader: list[int] = []

    def loop() -> None:
        model = network()
        with unisono.Learner(model, sgd(model), SHARING[strategy]) as learner:
            steps[learner.number] = 0
            for batch in learner.draw(dataset(), epochs=2, batch_size=BATCH):
                learner.step(loss_of(model, batch))
                steps[learner.number] += 1
                if learner.number == leaver and steps[leaver] == 4:
                    break
            if learner.is_leader:
                is_leader.append(learner.number)

    ran = together(loop, 3)
    assert ran.state.pool.over
    assert ran.counts.committed == 26
    assert ran.counts.leased == 26 + ran.counts.returned
    assert steps[leaver] == 4 and sum(steps.values()) >= 26
    assert len(is_leader) == 1 and is_leader[0] != leaver
    assert not ran.state.lost


@pytest.mark.parametrize("strategy", ALL)
def test_all_may_break_out(strategy: str, together: Together) -> None:
    def loop() -> None:
        model = network()
        with unisono.Learner(model, sgd(model), ALL[strategy]) as learner:
            for place, batch in enumerate(learner.draw(dataset(), epochs=2, batch_size=BATCH)):
                learner.step(loss_of(model, batch))
                if place == 3:
                    break

    alone(loop)
    if strategy != "solo":
        together(loop, 2)


@pytest.mark.parametrize("strategy", SHARING)
@pytest.mark.parametrize("pause", [0.0, 10.0])
def test_one_leads_after_breaking_out_at_the_end(strategy: str, pause: float) -> None:
    """Whether the coordinator has told it to lead by then or not."""
    is_leader: list[bool] = []

    def loop() -> None:
        model = network()
        with unisono.Learner(model, sgd(model), SHARING[strategy]) as learner:
            for place, batch in enumerate(learner.draw(dataset(), epochs=2, batch_size=BATCH)):
                learner.step(loss_of(model, batch))
                if place == 25:
                    learner._need_rejoiner().session.fabric.sleep(pause)
                    break
            is_leader.append(learner.is_leader)

    simulated(loop, 1)
    assert is_leader == [True]


@pytest.mark.parametrize("epochs", [None, 2])
@pytest.mark.parametrize("strategy", ALL)
def test_one_leads_after_the_with_statement(
    strategy: str, epochs: int | None, together: Together
) -> None:
    """Also who asks behind it, as most scripts do, has a learner that saves the model."""
    is_leader: list[bool] = []
    agrees: list[bool] = []

    def loop() -> None:
        model = network()
        with unisono.Learner(model, sgd(model), ALL[strategy], epochs=epochs) as learner:
            draw = learner.draw(dataset(), epochs=None if epochs else 2, batch_size=BATCH)
            for place, batch in enumerate(draw):
                learner.step(loss_of(model, batch))
                if place == 3:
                    break
            with learner.consensus():
                inside = [p.detach().clone() for p in model.parameters()]
        is_leader.append(learner.is_leader)
        with learner.consensus():
            agrees.append(all(map(torch.equal, inside, model.parameters())))

    alone(loop)
    assert is_leader == [True] and agrees == [True]
    is_leader.clear()
    if strategy != "solo":
        together(loop, 2)
        assert sorted(is_leader) == [False, True]


@pytest.mark.parametrize("strategy", ALL)
def test_nothing_drawn_and_nothing_trained(strategy: str, together: Together) -> None:
    """A with statement without a loop, or with one that is left at once."""

    def without() -> None:
        model = network()
        with unisono.Learner(model, sgd(model), ALL[strategy]):
            pass

    def at_once() -> None:
        model = network()
        with unisono.Learner(model, sgd(model), ALL[strategy]) as learner:
            for _ in learner.draw(dataset(), batch_size=BATCH):
                break

    alone(without)
    alone(at_once)
    if strategy != "solo":
        together(at_once, 2)


class BugError(Exception):
    """A bug in a user's loop."""


@pytest.mark.parametrize("strategy", SHARING)
@pytest.mark.parametrize("where", ["loop", "dataset", "collate"])
def test_an_exception_reaches_all(strategy: str, where: str, together: Together) -> None:
    seen: list[int] = []

    def fails(place: str) -> None:
        if place == where and find_placement().number == 1 and len(seen) > 6:
            raise BugError(f"in the {place}")

    class Broken(Dataset[Any]):
        def __len__(self) -> int:
            return 96

        def __getitem__(self, place: int) -> Any:
            fails("dataset")
            return examples[place]

    def collate(items: list[Any]) -> Any:
        fails("collate")
        return torch.utils.data.default_collate(items)

    examples = dataset(96)

    def loop() -> None:
        model = network()
        loader = torch.utils.data.DataLoader(Broken(), BATCH, collate_fn=collate, shuffle=True)
        with unisono.Learner(model, sgd(model), SHARING[strategy], prefetch=0) as learner:
            for batch in learner.draw(loader, epochs=20):
                learner.step(loss_of(model, batch))
                seen.append(learner.number)
                fails("loop")

    ran = together(loop, 3, check=False)
    assert sorted(ran.errors) == [0, 1, 2]
    assert isinstance(ran.errors[1], BugError)
    for other in (0, 2):
        told = ran.errors[other]
        assert isinstance(told, Abandoned) and told.failure.who == Address("learner", 1)
        assert told.failure.cause is Cause.EXCEPTION
        assert "Traceback" in told.failure.text and f"in the {where}" in told.failure.text
    assert ran.state.failure is not None


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("strategy", ALL)
def test_an_exception_in_the_dataset_comes_after_the_minibatches_before_it(
    strategy: str, prefetch: int
) -> None:
    class Broken(Dataset[Any]):
        def __init__(self) -> None:
            self.calls = 0

        def __len__(self) -> int:
            return 96

        def __getitem__(self, place: int) -> Any:
            self.calls += 1
            if self.calls == 5 * BATCH + 3:
                raise BugError("in the dataset")
            return dataset(96)[place]

    model, steps = network(), 0

    def loop() -> None:
        nonlocal steps
        with unisono.Learner(model, sgd(model), ALL[strategy], prefetch=prefetch) as learner:
            for batch in learner.draw(Broken(), batch_size=BATCH):
                learner.step(loss_of(model, batch))
                steps += 1

    with pytest.raises(BugError):
        alone(loop)
    assert steps == 5


def test_a_coordinator_that_fails_takes_its_lone_learner_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fine, applied = State.apply, []

    def broken(self: State, operation: Any) -> Any:
        applied.append(operation)
        if len(applied) == 5:
            raise BugError("in the coordinator")
        return fine(self, operation)

    monkeypatch.setattr(State, "apply", broken)
    model = network()

    def loop() -> None:
        with unisono.Learner(model, sgd(model), DYNAMIC_AVERAGING) as learner:
            for batch in learner.draw(dataset(), batch_size=BATCH):
                learner.step(loss_of(model, batch))

    with pytest.raises(BugError, match="in the coordinator"):
        alone(loop)


# Random faults.


@pytest.mark.parametrize("strategy", SHARING)
@pytest.mark.parametrize("seed", range(3))
def test_random_faults(strategy: str, seed: int) -> None:
    """Deaths, pauses, partitions and restarts: the rest ends, and every minibatch is committed."""
    ends: dict[int, torch.Tensor] = {}

    def loop() -> None:
        model = network(dropout=0.1, norm=True)
        with unisono.Learner(model, sgd(model), SHARING[strategy]) as learner:
            for batch in learner.draw(dataset(), epochs=3, batch_size=BATCH):
                learner.step(loss_of(model, batch))
            if learner.is_leader:
                with learner.consensus():
                    ends[learner.number] = flat(model)

    faults = [
        Kill(3.3 + seed, 1),
        Pause(5.1, 2, 4.0 + 8 * seed),
        Cut(9.2 + seed, 3, 13.0),
        KillCoordinator(7.7 + seed),
    ]
    run = run_loops(loop, learners=4, faults=faults, scheduler=SeededScheduler(seed), check=False)
    # One that wakes when all is over finds nobody who would tell it.
    assert all(type(error).__name__ == "CoordinatorLost" for error in run.errors.values())
    assert run.state.pool.over
    assert run.state.pool.counts.committed == 39
    assert len(ends) == 1 and next(iter(ends.values())).isfinite().all()


@pytest.mark.parametrize("strategy", SHARING)
def test_gradients_of_a_former_life_are_gone(strategy: str) -> None:
    """A learner that was presumed dead drops what it had accumulated: others train it again."""
    rejoiner: list[float] = []

    def loop() -> None:
        model = network()
        optimizer = sgd(model)
        with unisono.Learner(model, optimizer, SHARING[strategy]) as learner:
            dynamic = learner.draw(dataset(), epochs=4, batch_size=BATCH)
            for place, batch in enumerate(dynamic):
                if learner.number == 1 and learner._rejoiner is not None:
                    incarnation = learner._rejoiner.session.fabric.address.incarnation
                    if incarnation == 1 and not rejoiner:
                        rejoiner.append(sum(float(p.grad is not None) for p in model.parameters()))
                more = place % 2 == 0
                learner.backward(loss_of(model, batch), accumulate=more)
                if not more:
                    optimizer.step()
                    optimizer.zero_grad()

    run = run_loops(loop, learners=2, faults=[Pause(5.5, 1, 14.0)], slowness={0: 2.0})
    assert run.state.pool.over
    assert rejoiner == [0.0]


@pytest.mark.parametrize("strategy", ["server", "gossip-random"])
def test_a_learner_that_is_refused_while_it_asks_for_the_consensus_goes_on(strategy: str) -> None:
    """It is paused for longer than the timeout, at many moments of asking others for their part."""
    kinds = set()
    for moment in range(8):
        asked: list[int] = []

        def loop(asked: list[int] = asked) -> None:
            model = network()
            with unisono.Learner(model, sgd(model), strategy) as learner:
                for batch in learner.draw(dataset(), epochs=4, batch_size=BATCH):
                    learner.step(loss_of(model, batch))
                    with learner.consensus():
                        asked.append(learner.number)

        pause = Pause(0.5 + 0.03 * moment, 1, 14.0)
        run = run_loops(loop, learners=2, faults=[pause], slowness={0: 2.0}, cost=0.1)
        assert run.state.pool.over
        kinds |= set(asked)
    assert kinds == {0, 1}
