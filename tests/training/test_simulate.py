"""``unisono simulate``: the runs of ``unisono train`` on a virtual clock."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from unisono.cli.app import app
from unisono.config import OptimizerChoice
from unisono.data import synthesise
from unisono.errors import UserError
from unisono.runs.directory import RunDirectory
from unisono.simulation.hosts import read_hosts
from unisono.training.plan_file import planned
from unisono.training.simulation_plan import read_slow
from unisono.training.worker import schedule_of

QUICK = ["minibatch=64", "network.hidden=[16]", "network.context=1", "network.dropout=0.1"]
HOSTS = """
[minibatch_ms]
sgd = 10
ng-sgd = 10

[shared_memory]
bandwidth_mbit = 10000
latency_ms = 0.1

[[host]]
name = "one"
learners = 2
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PREP with 4 held-out speakers and some 3,000 frames to train on."""
    path = tmp_path_factory.mktemp("data") / "prep"
    synthesise(
        path,
        speakers=24,
        utterances_per_speaker=2,
        frames_per_utterance=75,
        states=8,
        dimension=6,
        seed=3,
        noise=1.0,
    )
    return path


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    file = tmp_path / "hosts.toml"
    file.write_text(HOSTS)
    return file


def simulate(*words: object) -> str:
    sets = [word for text in QUICK for word in ("--set", text)]
    result = CliRunner().invoke(app, ["simulate", *sets, *map(str, words)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def contents(folder: Path) -> dict[str, str]:
    """Every file by its checksum."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
    }


def test_masks_are_those_of_the_seed_whatever_ran_before(
    small: Path, hosts: Path, tmp_path: Path
) -> None:
    out, masks = tmp_path / "out", ("--set", "augment.time_masks=2")
    words = (small, "--strategies", "averaging", "--hosts", hosts, "--epochs", 1, "--seeds", 2)
    simulate(*words, *masks, "--out", out)
    after_another = contents(out / "averaging-1")
    shutil.rmtree(out / "averaging-1")
    assert "done before" in simulate(*words, *masks, "--out", out)
    assert contents(out / "averaging-1") == after_another


def test_the_same_seed_gives_the_same_bytes(small: Path, hosts: Path, tmp_path: Path) -> None:
    outputs, files = [], []
    strategies = "averaging,gossip-random,server"
    for folder in ("short", "a_longer_name"):  # messages must not name it
        out = tmp_path / folder / "out"
        output = simulate(
            small, "--strategies", strategies, "--hosts", hosts, "--epochs", 1, "--out", out
        )
        outputs.append(output[output.index("strategy ") : output.index("report:")])
        files.append(contents(out))
    assert outputs[0] == outputs[1]
    assert files[0] == files[1]
    assert "server-0/report.html" in files[0] and "table.txt" in files[0]


def test_what_is_done_stays_done(small: Path, hosts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    common = [small, "--hosts", hosts, "--epochs", 1, "--out", out]
    first = simulate(*common, "--strategies", "averaging")
    assert "done before" not in first
    before = contents(out)
    more = simulate(*common, "--strategies", "averaging,allreduce", "--seeds", 2)
    assert more.count("done before") == 2
    after = contents(out)
    runs = [name for name in before if name.startswith(("solo-0/", "averaging-0/"))]
    assert runs and all(after[name] == before[name] for name in runs)
    assert {"allreduce-1/summary.json", "solo-1/summary.json"} <= after.keys()
    with pytest.raises(UserError, match="was begun with epochs 1"):
        simulate(small, "--hosts", hosts, "--out", out, "--strategies", "averaging")
    hosts.write_text(HOSTS.replace("ng-sgd = 10", "ng-sgd = 11"))
    with pytest.raises(UserError, match=r"was begun with minibatch_ms\.ng-sgd 10"):
        simulate(*common, "--strategies", "averaging")


def test_the_clock_is_virtual(small: Path, hosts: Path, tmp_path: Path) -> None:
    """Learners of 10 ms a minibatch: solo takes all of them, allreduce half; a slow one 5 times."""
    out = tmp_path / "out"
    common = [small, "--hosts", hosts, "--epochs", 2, "--strategies", "allreduce,gossip-random"]
    simulate(*common, "--out", out)
    simulate(*common, "--out", tmp_path / "slow", "--slow", "0=5")
    runs = [out / "solo-0", out / "allreduce-0"]
    runs += [tmp_path / "slow" / name for name in ("solo-0", "allreduce-0", "gossip-random-0")]
    seconds = []
    for run in runs:
        summary = RunDirectory(run).read_summary()
        assert summary is not None and summary.ended == "finished"
        checks = [e for e in RunDirectory(run).read_metrics() if e["event"] == "validation"]
        assert checks and all(check["seconds"] == 0.0 for check in checks)
        seconds.append(summary.wall_s)
    minibatches = summary.minibatches.committed
    assert seconds[0] == pytest.approx(0.01 * minibatches, rel=0.01)
    assert seconds[1] == pytest.approx(0.01 * minibatches / 2, rel=0.1)
    assert seconds[2] == seconds[0]  # solo is not slowed down
    assert seconds[3] == pytest.approx(5 * 0.01 * minibatches / 2, rel=0.05)
    assert seconds[4] < seconds[3] / 2


def test_costs_are_measured_and_kept(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    common = [small, "--learners", 2, "--epochs", 1, "--strategies", "averaging", "--out", out]
    output = simulate(*common)
    assert "a minibatch with sgd takes" in output and "with ng-sgd takes" in output
    kept = (out / "hosts.toml").read_text()
    assert "[[host]]" in kept and "bandwidth_mbit" in kept
    assert "measured:" not in simulate(*common)
    assert (out / "hosts.toml").read_text() == kept


def test_runs_that_diverge_are_told(small: Path, hosts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [small, "--hosts", hosts, "--epochs", 1, "--out", out, "--strategies", "averaging"]
    for _ in range(2):  # the second time nothing is run
        with pytest.raises(UserError, match="every solo run diverged"):
            simulate(*words, "--set", "rate.start=1e30", "--set", "rate.max_change=0")
    causes = [e.get("cause") for e in RunDirectory(out / "solo-0").read_metrics()]
    assert causes.count("diverged") == 1


def test_bad_input_is_one_line(small: Path, hosts: Path, tmp_path: Path) -> None:
    common = [small, "--strategies", "averaging", "--out", tmp_path / "out"]
    for words, message in (
        ([], "how many learners"),
        (["--learners", 3, "--hosts", hosts], "has 2"),
        (["--learners", 2, "--slow", "2=5"], "--slow '2=5'"),
        (["--learners", 2, "--slow", "fast"], "--slow 'fast'"),
        (["--learners", 2, "--set", "recipe.enabled=true"], "recipe"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            simulate(*common, *words)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
    assert read_slow(["0=5", "1=2.5"], 2) == {0: 5.0, 1: 2.5}


def test_what_is_refused_is_refused_before_anything_is_measured(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = tmp_path / "few"
    synthesise(
        few,
        speakers=5,
        utterances_per_speaker=2,
        frames_per_utterance=75,
        states=8,
        dimension=6,
        seed=3,
        noise=1.0,
    )
    (tmp_path / "file").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    measured: list[object] = []
    monkeypatch.setattr("unisono.training.simulation_plan.minibatch_seconds", measured.append)
    for prep, strategies, out, message in (
        (few, "averaging", "out", "1 held-out speaker"),
        (small, "", "out", "--strategies '' names nothing"),
        (small, "averaging", "file", "file is not a directory"),
        (small, "averaging", "file/out", "file is not a directory"),
        (small, "averaging", "other", "is no simulation"),
    ):
        with pytest.raises(UserError, match=message):
            simulate(prep, "--strategies", strategies, "--learners", 2, "--out", tmp_path / out)
    assert not measured
    assert not (tmp_path / "out").exists()


def test_a_plan_that_fails_before_its_first_run_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(RuntimeError), planned(out, {}, "simulate", "simulation"):
        (out / "hosts.toml").touch()
        raise RuntimeError
    assert not out.exists()
    with pytest.raises(RuntimeError), planned(out, {}, "simulate", "simulation"):
        (out / "averaging-0").mkdir()
        raise RuntimeError
    assert (out / "plan.json").exists()


def test_time_alone_is_the_time_of_a_run(small: Path, hosts: Path, tmp_path: Path) -> None:
    common = [small, "--hosts", hosts, "--epochs", 1, "--strategies", "averaging,server"]
    simulate(*common, "--out", tmp_path / "whole")
    output = simulate(*common, "--out", tmp_path / "alone", "--timing")
    assert "log-prob" not in output
    timings = json.loads((tmp_path / "alone" / "timing.json").read_text())["rows"]
    for row in timings:
        summary = RunDirectory(tmp_path / "whole" / f"{row['strategy']}-0").read_summary()
        assert summary is not None
        assert row["seconds"] == pytest.approx(summary.wall_s, rel=0.1)
        assert sum(row["minibatches"]) == summary.minibatches.committed
    assert [row["strategy"] for row in timings] == ["solo", "averaging", "server"]


def test_averages_between_hosts_travel_in_int8(small: Path, hosts: Path, tmp_path: Path) -> None:
    """As in `unisono train`; what was decided is in the run's configuration, and is told."""
    two = tmp_path / "two.toml"
    two.write_text(HOSTS.replace("learners = 2", "count = 2"))
    sent: dict[str, int] = {}
    for name, file in (("one", hosts), ("two", two)):
        out = tmp_path / name
        named = "averaging,averaging:precision=float32,averaging:precision=int8"
        simulate(small, "--strategies", named, "--hosts", file, "--epochs", 1, "--out", out)
        run = RunDirectory(out / "averaging-0")
        sent[name] = run.read_summary().bytes_sent
        precision = "int8" if name == "two" else "float32"
        same = RunDirectory(out / f"averaging+precision={precision}-0")
        assert sent[name] == same.read_summary().bytes_sent
        assert run.read_config().strategy.get("precision", "float32") == precision
        assert f"precision={precision}" in run.read_metrics()[0]["lines"][0]
    assert sent["two"] < 0.4 * sent["one"]


def test_time_alone_needs_no_data(hosts: Path, tmp_path: Path) -> None:
    common = ["--strategies", "averaging", "--timing", "--hosts", hosts, "--out", tmp_path / "out"]
    with pytest.raises(UserError, match="--minibatches N and --parameters N, or"):
        simulate(*common)
    output = simulate(*common, "--minibatches", 40, "--parameters", 1000)
    assert output.splitlines()[1].split()[:2] == ["strategy", "learners"]
    with pytest.raises(UserError, match="was begun with timing"):
        simulate(*common, "--minibatches", 41, "--parameters", 1000)
    hosts.write_text(HOSTS.replace("ng-sgd = 10\n", ""))
    common[-1] = tmp_path / "other"
    with pytest.raises(UserError, match=r"minibatch_ms\.ng-sgd is missing"):
        simulate(*common, "--minibatches", 40, "--parameters", 1000)


def test_faults_are_the_same_for_the_same_seed(hosts: Path, tmp_path: Path) -> None:
    hosts.write_text(
        HOSTS
        + """
[[host]]
name = "far"
count = 3
deaths_per_hour = 900
back_after_s = 1
partitions_per_hour = 300
partition_s = 1
bandwidth_mbit = 50
[host.straggler]
factor = 3
share = 0.2
"""
    )
    size = ["--minibatches", 1500, "--parameters", 100_000, "--epochs", 1]
    common = ["--strategies", "gossip-random,averaging", "--timing", "--hosts", hosts, *size]
    outputs = [
        simulate(*common, "--out", tmp_path / name, *seed)
        for name, seed in (("a", []), ("b", []), ("c", ["--set", "seed=1"]))
    ]
    files = [(tmp_path / name / "timing.json").read_bytes() for name in "abc"]
    assert outputs[0] == outputs[1] != outputs[2]
    assert files[0] == files[1] != files[2]
    pictures = [(tmp_path / name / "timeline.svg").read_text() for name in "ab"]
    assert pictures[0] == pictures[1] and ">far-1<" in pictures[0]
    for row in json.loads(files[0])["rows"][1:]:
        assert row["slowest_host"].startswith("far-") and row["slowest_host"] in outputs[0]
        assert row["busiest_link"].startswith("far-")
        sent = sum(link["sent"] for link in row["links"])
        assert 0 < sent == sum(link["received"] for link in row["links"])
        assert sent <= 1.05 * row["bytes_sent"]  # inside "one" nothing passes a link


def test_costs_of_a_run_are_found_again(small: Path, tmp_path: Path) -> None:
    """Runs whose costs are known, since they were simulated, are taken for real ones."""
    size = ["--set", "network.hidden=[256]"]
    runs = []
    for learners in (2, 4):
        file = tmp_path / f"{learners}.toml"
        known = HOSTS.replace("learners = 2", f"learners = {learners}\ncontention = 0.2")
        known = known.replace("bandwidth_mbit = 10000", "bandwidth_mbit = 200")
        file.write_text(known.replace("latency_ms = 0.1", "latency_ms = 0.05"))
        out = tmp_path / str(learners)
        simulate(
            small, "--hosts", file, "--epochs", 3, "--out", out, *size,
            "--strategies", "averaging:sharding=static:every=256",
        )  # fmt: skip
        runs += ["--calibrate", out / "averaging+sharding=static+every=256-0"]
    solo = ["--calibrate", tmp_path / "2" / "solo-0"]
    common = ["--strategies", "averaging", "--timing", "--learners", 8, "--epochs", 1]
    output = simulate(small, *common, *runs, *solo, *size, "--out", tmp_path / "out")
    assert "measured" not in output
    found = read_hosts(tmp_path / "out" / "hosts.toml")
    assert found.minibatch_ms[OptimizerChoice.NG_SGD] == pytest.approx(10, rel=0.03)
    assert found.minibatch_ms[OptimizerChoice.SGD] == pytest.approx(10, rel=0.03)
    assert found.host[0].contention == pytest.approx(0.2, abs=0.03)
    assert found.host[0].learners == 8
    assert found.shared_memory is not None
    assert found.shared_memory.bandwidth_mbit == pytest.approx(200, rel=0.1)
    with pytest.raises(UserError, match="has another network than what is to be simulated"):
        simulate(small, *common, *runs, "--out", tmp_path / "other")


@pytest.mark.parametrize("strategy", ["averaging", "averaging:sharding=static", "gossip-random"])
def test_the_rate_is_scaled_by_the_learners_that_are_left(
    strategy: str, small: Path, tmp_path: Path
) -> None:
    """Two of four die: a step of one that is left counts for 1/2, no longer for 1/4."""
    machines = "\n".join(f'[[host]]\nname = "host-{n}"\nlearners = 1\n' for n in range(4))
    deaths = "\n".join(f'[[fault]]\nkind = "death"\nhost = "host-{n}"\nat_s = 10\n' for n in (1, 3))
    hosts = tmp_path / "hosts.toml"
    head = HOSTS.partition("[[host]]")[0].replace("sgd = 10", "sgd = 1000")
    network = "[network]\nbandwidth_mbit = 1000\nlatency_ms = 0.1\n"
    hosts.write_text(f"{head}{network}{machines}{deaths}")
    out = tmp_path / "out"
    simulate(small, "--hosts", hosts, "--strategies", strategy, "--out", out, "--epochs", 2)
    folder = strategy.replace(":", "_")
    (run,) = (path for path in out.iterdir() if path.is_dir() and folder[:9] in path.name)
    directory = RunDirectory(run)
    config = directory.read_config()
    trained = [event for event in directory.read_metrics() if event["event"] == "train"]
    begun = [event for event in trained if event["time"] < 10]
    left = [event for event in trained if event["time"] > 10 + 2 * config.timeout_s]
    for events, members in ((begun, 4), (left, 2)):
        schedule = schedule_of(config, members)
        assert events
        for event in events:
            wanted = schedule.rate(event["progress"])
            assert event["learning_rate"] == pytest.approx(wanted), members
