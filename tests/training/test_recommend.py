"""``unisono simulate --plan``: what is recommended for which hosts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from unisono.cli.app import app
from unisono.errors import UserError
from unisono.simulation.hosts import Hosts, HostTable, Link, TrainingTable, read_hosts
from unisono.training.cluster_timing import Load
from unisono.training.compare_variants import Variant
from unisono.training.learning_evidence import examples_to_target
from unisono.training.recommend import STATIC, Option, Planner, Recommendation, best_option
from unisono.training.simulation_plan import Simulation, plan_simulation

COSTS = """
[training]
examples = 800_000
parameters = 1_000_000
minibatch = 100

[minibatch_ms]
sgd = 10
ng-sgd = 12

[shared_memory]
bandwidth_mbit = 20000
latency_ms = 0.05
"""
STRATEGIES = "averaging,gossip-random,allreduce"


def cluster(mbit: float, *speeds: float) -> Hosts:
    link = Link(bandwidth_mbit=mbit, latency_ms=0.1)
    hosts = [HostTable(name=f"h{n}", speed=speed) for n, speed in enumerate(speeds)]
    return Hosts(
        training=TrainingTable(examples=800_000, parameters=1_000_000),
        minibatch_ms={"sgd": 10.0, "ng-sgd": 12.0},  # type: ignore[dict-item]
        shared_memory=Link(bandwidth_mbit=20_000.0, latency_ms=0.05),
        network=link,
        host=hosts,
    )


def recommendation(
    tmp_path: Path, hosts: Hosts, strategies: str = STRATEGIES, minibatches: int = 8000
) -> Recommendation:
    plan = plan_simulation(None, strategies, hosts.learners, 1, None, ["minibatch=100"])
    simulation = Simulation(plan=plan, out=tmp_path / "plan", hosts=hosts, slow={}, say=print)
    return Planner(simulation, Load(minibatches, 1_000_000)).run()


def command(*words: object) -> str:
    result = CliRunner().invoke(app, ["simulate", "--plan", *map(str, words)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def option(found: Recommendation, name: str, learners: int) -> Option:
    return next(o for o in found.options if (o.variant.name, o.learners) == (name, learners))


def test_equal_hosts_and_fast_links_take_the_default(tmp_path: Path) -> None:
    found = recommendation(tmp_path, cluster(100_000, 1, 1, 1, 1))
    assert (found.best.variant.name, found.best.learners) == ("averaging", 4)
    assert found.runner_up.variant.name == "gossip-random"
    assert found.best.every == 1600 and found.best.pace == 16


def test_nobody_waits_for_a_slow_host(tmp_path: Path) -> None:
    found = recommendation(tmp_path, cluster(10_000, 1, 1, 1, 0.1), f"averaging,{STATIC}")
    assert found.best.variant.name == "averaging"
    static, dynamic = (option(found, name, 4) for name in (STATIC, "averaging"))
    # All run at a tenth of the speed, against three learners and a tenth.
    assert static.epoch_s == pytest.approx(8000 * 0.012 / 0.4, rel=0.1)
    assert dynamic.epoch_s == pytest.approx(8000 * 0.012 / 3.1, rel=0.1)


def test_allreduce_takes_the_time_of_its_messages(tmp_path: Path) -> None:
    """Each step both send half of 4 MB twice."""
    found = recommendation(tmp_path, cluster(800, 1, 1), "allreduce")
    round_s = 2 * (4e6 / 2 / 100e6 + 0.0002)
    expected = 8000 / 2 * (0.012 + round_s)
    assert option(found, "allreduce", 2).epoch_s == pytest.approx(expected, rel=0.02)
    assert option(found, "allreduce", 2).share is None  # it is not known to reach the target
    assert found.best is found.solo
    assert found.solo.epoch_s == pytest.approx(8000 * 0.010, rel=0.01)


def test_slow_links_ask_for_rarer_rounds(tmp_path: Path) -> None:
    paces = [
        option(recommendation(tmp_path / str(mbit), cluster(mbit, 1, 1), STATIC), STATIC, 2).pace
        for mbit in (100_000, 200)
    ]
    assert paces[0] == 16
    assert paces[1] is not None and paces[1] >= 64


def test_few_data_are_not_for_many_learners(tmp_path: Path) -> None:
    found = recommendation(tmp_path, cluster(10_000, 1, 1, 1, 1), "averaging", minibatches=540)
    assert found.most_learners == 2  # 3 epochs: 50 rounds of 16 minibatches for two
    assert max(o.learners for o in found.options) == 2


def test_hours_prefer_fewer_learners(tmp_path: Path) -> None:
    found = recommendation(tmp_path, cluster(100_000, 1, 1, 1, 1), "averaging")
    two, four = (option(found, "averaging", n) for n in (2, 4))
    assert four.target_s < two.target_s < found.solo.target_s
    assert best_option(found.options, two.target_s / 3600 * 1.01) is two
    assert best_option(found.options, two.target_s / 3600 * 0.9) is four
    assert best_option(found.options, 1e-9) is four  # in time or not, the soonest
    assert best_option([two, replace(two, share=None)], None) is two


def test_examples_needed_are_those_of_the_evidence() -> None:
    averaging = Variant("averaging:sharding=dynamic")
    for learners, share in ((4, 0.54), (8, 0.55), (16, 0.67)):
        assert examples_to_target(averaging, learners, 16) == pytest.approx(share)
        assert examples_to_target(averaging, learners, 64) == pytest.approx(share)
    many = [examples_to_target(averaging, n, 64) for n in (8, 12, 16, 32, 64)]
    assert many == sorted(many, key=float)  # type: ignore[arg-type]
    rare = examples_to_target(averaging, 8, 128)
    assert rare is not None and rare > 0.55
    assert examples_to_target(Variant("allreduce"), 8, None) is None
    assert examples_to_target(Variant("solo"), 1, None) == 1.0


def test_the_command_says_what_is_simulated_and_what_is_assumed(tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    hosts = "".join(f'[[host]]\nname = "{n}"\nspread = 0.1\n' for n in ("quick", "other"))
    file.write_text(COSTS + hosts + '[[host]]\nname = "snail"\nspeed = 0.2\n')
    common = ["--hosts", file, "--strategies", STRATEGIES, "--epochs", 2]
    output = command(*common, "--out", tmp_path / "one")
    assert output == command(*common, "--out", tmp_path / "two")
    lines = output.splitlines()
    assert lines[0].startswith("Recommended: ") and "--learners" in lines[1]
    for word in ("Why: ", "Runner-up: ", "Simulated: ", "Assumed: "):
        assert any(line.startswith(word) for line in lines), word
    assert "8,000 minibatches of 100 examples" in output
    assert (tmp_path / "one" / "plan.txt").read_text() == output
    assert read_hosts(tmp_path / "one" / "hosts.toml") == read_hosts(file)
    picture = (tmp_path / "one" / "timeline.svg").read_text()
    assert "recommended" in picture and "runner-up" in picture and ">snail<" in picture
    late = command(*common, "--out", tmp_path / "three", "--hours", 0.001)
    assert "Nothing here reaches the target in 0.001 h" in late


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    file.write_text('[[host]]\nname = "one"\nlearners = 2\n')
    out = ["--out", tmp_path / "out"]
    for words, message in (
        ([], "--plan goes with --hosts"),
        (["--hosts", file, "--learners", 2], "--plan goes with --hosts"),
        (["--hosts", file, "--timing"], "--plan goes with --hosts"),
        (["--hosts", file], r"\[training\] in --hosts"),
        (["--hosts", file, "--minibatches", 9, "--parameters", 9], "minibatch_ms.sgd is missing"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            command(*words, *out)
        assert "\n" not in str(caught.value)
    result = CliRunner().invoke(app, ["simulate", "--learners", "2", "--out", str(tmp_path / "o")])
    assert isinstance(result.exception, UserError) and "which strategies" in str(result.exception)
