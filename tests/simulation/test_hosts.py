"""hosts.toml: read, written, and refused in one line that names the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from unisono.config import OptimizerChoice
from unisono.errors import UserError
from unisono.simulation.hosts import one_host, read_hosts

WHOLE = """
[minibatch_ms]
sgd = 8
ng-sgd = 10.5

[shared_memory]
bandwidth_mbit = 20000
latency_ms = 0.05

[network]
bandwidth_mbit = 100
latency_ms = 0.5

[[host]]
name = "new"
learners = 4
speed = 2

[[host]]
name = "old"
spread = 0.2
bandwidth_mbit = 50
"""
FAULTS = """
[[rack]]
name = "left"
bandwidth_mbit = 1000
latency_ms = 0.1

[[host]]
name = "volunteer"
count = 12
rack = "left"
deaths_per_hour = 2
back_after_s = 600

[[host]]
name = "snail"
[host.straggler]
factor = 5
share = 0.1

[[fault]]
kind = "partition"
host = "volunteer-3"
at_s = 10
for_s = 5
"""


def read(tmp_path: Path, text: str) -> str:
    file = tmp_path / "hosts.toml"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        read_hosts(file)
    message = str(caught.value)
    assert "\n" not in message and str(file) in message
    return message


def test_hosts_are_read_and_written(tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    file.write_text(WHOLE)
    hosts = read_hosts(file)
    assert hosts.learners == 5
    assert hosts.minibatch_ms == {OptimizerChoice.SGD: 8, OptimizerChoice.NG_SGD: 10.5}
    assert [hosts.host_of(n).name for n in range(5)] == ["new"] * 4 + ["old"]
    assert hosts.link(hosts.host[1]).bandwidth_mbit == 50
    assert hosts.link(hosts.host[1]).latency == 0.0005
    assert hosts.fastest().learners == 1 and hosts.fastest().host[0].name == "new"
    file.write_text(hosts.dump())
    assert read_hosts(file) == hosts
    assert file.read_text().count("[[host]]") == 2


def test_faults_racks_and_many_machines_are_read_and_written(tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    file.write_text(FAULTS)
    hosts = read_hosts(file)
    assert [host.name for host in hosts.host] == [f"volunteer-{n}" for n in range(12)] + ["snail"]
    assert hosts.host[11].rack == "left" and hosts.host[12].straggler is not None
    assert hosts.has_faults and not hosts.without_faults().has_faults
    file.write_text(hosts.dump())
    assert read_hosts(file) == hosts
    assert file.read_text().count("[[host]]") == 2 and "count = 12" in file.read_text()


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("factor = 5", "factor = 0.5", ["host[1].straggler.factor", "0.5"]),
        ("share = 0.1", "shares = 0.1", ["unknown key host[1].straggler.shares"]),
        ("factor = 5", "", ["host[1].straggler.factor is missing"]),
        ("count = 12", "count = 0", ["host[0].count", "0"]),
        ('rack = "left"', 'rack = "right"', ["host.rack is 'right'", "[[rack]]"]),
        ("latency_ms = 0.1", "", ["rack[0].latency_ms is missing"]),
        ('"partition"', '"partitions"', ["fault[0].kind", "partitions"]),
        ('"volunteer-3"', '"volunteer"', ["fault[0].host is 'volunteer'", "[[host]]"]),
        ("for_s = 5", "", ["fault[0].for_s is missing"]),
        ('"partition"', '"death"', ["fault[0].for_s is for partitions"]),
        ("for_s = 5", "for_s = 5\nback_after_s = 3", ["fault[0].back_after_s is for deaths"]),
        ("deaths_per_hour = 2", "deaths_per_hour = -2", ["host[0].deaths_per_hour"]),
    ],
)
def test_a_bad_fault_names_the_key(
    tmp_path: Path, before: str, after: str, words: list[str]
) -> None:
    message = read(tmp_path, FAULTS.replace(before, after, 1))
    for word in words:
        assert word in message


def test_the_fastest_hosts_come_first(tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    file.write_text(WHOLE + '\n[[host]]\nname = "wide"\n')
    hosts = read_hosts(file)
    for count, expected in (
        (1, {"new": 1}),
        (4, {"new": 4}),
        (5, {"new": 4, "wide": 1}),  # as fast as "old", on a faster link
        (6, {"new": 4, "wide": 1, "old": 1}),
    ):
        chosen = hosts.fastest_learners(count)
        assert {host.name: host.learners for host in chosen.host} == expected
        assert chosen.minibatch_ms == hosts.minibatch_ms


def test_costs_are_filled_in_where_there_are_none(tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    file.write_text(WHOLE)
    measured = read_hosts(file)
    filled = one_host(3).with_costs(measured.minibatch_ms, measured.shared_memory)
    assert filled.minibatch_ms == measured.minibatch_ms
    assert filled.shared_memory == measured.shared_memory
    assert filled.host == one_host(3).host


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("speed = 2", "speed = 0", ["host[0].speed", "greater than or equal to 0.001", "0"]),
        ("speed = 2", "speed = 1e-300", ["host[0].speed", "0.001", "1e-300"]),
        ("speed = 2", "contention = 1e308", ["host[0].contention", "100", "1e+308"]),
        ("speed = 2", "count = 200000000", ["host[0].count", "100000", "200000000"]),
        ("speed = 2", "count = 100000", ["all hosts", "400001 learners", "at most 100000"]),
        ("speed = 2", f"a = {'[' * 2000}{']' * 2000}", ["hosts.toml", "too deep"]),
        ("speed = 2", "sped = 2", ["unknown key host[0].sped"]),
        ("[[host]]", "[[hosts]]", ["unknown key hosts", "did you mean [[host]]"]),
        ("learners = 4", "learners = 'four'", ["host[0].learners", "integer", "four"]),
        ('name = "old"', "", ["host[1].name is missing"]),
        ('name = "old"', 'name = "new"', ["host.name is 'new' twice"]),
        ("sgd = 8", "sdg = 8", ["minibatch_ms.sdg"]),
        ("bandwidth_mbit = 100", "bandwidth_mbit = -1", ["network.bandwidth_mbit"]),
        ("latency_ms = 0.5", "", ["network.latency_ms is missing"]),
        ("[network]", "[training]\nexamples = 0\n[network]", ["training.examples"]),
        ("[network]", "[training]\nexamples = 9\n[network]", ["training.parameters is missing"]),
        ("[network]", "[network", ["is not a TOML file"]),
    ],
)
def test_a_bad_file_names_the_key(
    tmp_path: Path, before: str, after: str, words: list[str]
) -> None:
    message = read(tmp_path, WHOLE.replace(before, after, 1))
    for word in words:
        assert word in message


def test_no_file_and_no_host(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read"):
        read_hosts(tmp_path / "nowhere.toml")
    assert "host" in read(tmp_path, "[minibatch_ms]\nsgd = 8\n")
