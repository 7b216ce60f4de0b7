from __future__ import annotations

import json
import math
from typing import Any

import pytest

from unisono.runs import Exchanges, Minibatches, Staleness, Summary

PROMISED = [
    "format_version",
    "strategy",
    "learners",
    "servers",
    "optimizer",
    "seed",
    "epochs",
    "examples",
    "start_up_s",
    "wall_s",
    "validation_stalled_s",
    "examples_per_s",
    "operations_per_s",
    "peak_memory",
    "data_wait_s",
    "train_logprob",
    "validation_logprob",
    "validation_accuracy",
    "minibatches",
    "rounds",
    "exchanges",
    "bytes_sent",
    "links",
    "slowest_link",
    "slowest_learner",
    "late_learners",
    "rolled_back",
    "staleness",
    "divergences",
    "rate_factor",
    "learners_lost",
    "learners_joined",
    "servers_lost",
    "ended",
]


def summary(**changes: Any) -> Summary:
    values: dict[str, Any] = {
        "strategy": "averaging",
        "learners": 2,
        "optimizer": "sgd",
        "seed": 0,
        "epochs": 3,
        "examples": 1_000_000,
        "wall_s": 50.0,
        "examples_per_s": 20000.0,
        "data_wait_s": 5.0,
        "train_logprob": -1.5,
        "validation_logprob": -1.75,
        "validation_accuracy": 0.5,
        "minibatches": Minibatches(leased=100, committed=98, returned=2, redone=2),
        "rounds": 40,
        "bytes_sent": 2_500_000,
        "staleness": Staleness(mean=0.5, max=12, histogram={0: 5, 12: 1}),
        "learners_lost": 1,
        "learners_joined": 0,
        "ended": "finished",
    }
    return Summary(**{**values, **changes})


def test_servers_are_told_beside_the_learners() -> None:
    line = summary(servers=2, servers_lost=1).lines()[0]
    assert line == "strategy    averaging, 2 learners, lost 1, 2 servers, lost 1, sgd, seed 0"


def test_keys_are_as_promised() -> None:
    values = json.loads(summary().to_json())
    assert list(values) == PROMISED
    assert list(values["minibatches"]) == [
        "leased",
        "committed",
        "returned",
        "redone",
        "skipped",
        "dropped",
    ]
    assert list(values["staleness"]) == ["mean", "max", "histogram"]
    assert values["format_version"] == 1
    assert values["staleness"]["histogram"] == {"0": 5, "12": 1}


def test_reads_back_equal() -> None:
    assert Summary.from_json(summary().to_json()) == summary()


def test_what_was_not_measured_is_null() -> None:
    text = summary(validation_logprob=None, train_logprob=math.nan).to_json()
    assert json.loads(text)["validation_logprob"] is None
    assert json.loads(text)["train_logprob"] is None
    assert Summary.from_json(text).train_logprob is None
    assert "train not measured, held out not measured" in "\n".join(Summary.from_json(text).lines())


def test_further_keys_do_not_break_a_reader() -> None:
    values = {**json.loads(summary().to_json()), "invented_later": 3}
    assert Summary.from_json(json.dumps(values)) == summary()


@pytest.mark.parametrize("change", [{"format_version": 2}, {"rounds": "many"}, {"staleness": 3}])
def test_a_wrong_file_is_told_in_one_line(change: dict[str, Any]) -> None:
    values = {**json.loads(summary().to_json()), **change}
    with pytest.raises(ValueError, match=next(iter(change))) as caught:
        Summary.from_json(json.dumps(values))
    assert "\n" not in str(caught.value)


def test_a_missing_key_is_told() -> None:
    values = json.loads(summary().to_json())
    del values["rounds"]
    with pytest.raises(ValueError, match="rounds"):
        Summary.from_json(json.dumps(values))


def test_lines_for_a_person() -> None:
    text = "\n".join(summary().lines())
    assert "averaging, 2 learners, lost 1, sgd" in text
    assert "1,000,000 in 50.0 s: 20,000 a second, 5.0% of the time waiting for data" in text
    assert "held out 50.00%" in text
    assert "leased 100, committed 98, returned 2, redone 2\n" in text
    assert "skipped" not in text
    assert "40 rounds, 2.5 MB sent" in text


def test_exchanges_that_took_place_are_beside_what_was_computed() -> None:
    told = Exchanges(due=200, completed=186, computed=0.32, realised=0.35)
    text = "\n".join(summary(exchanges=told).lines())
    assert "exchanges   0.93 of those due: the squared distance shrinks to 0.35" in text
    assert "(computed 0.32)" in text
    assert "exchanges" not in "\n".join(summary().lines())


def test_who_was_too_late_and_what_was_rolled_back_are_named() -> None:
    text = "\n".join(summary().model_copy(update={"late_learners": [3], "rolled_back": 7}).lines())
    assert "learner 3: its pushes are beyond the staleness bound" in text
    assert "rolled back 7 updates" in text


def test_what_was_computed_is_told_where_it_is_known() -> None:
    assert not [line for line in summary().lines() if line.startswith("computing")]
    found = summary(operations_per_s=4.2e14, peak_memory=2_340_000_000).lines()
    assert "computing   420 TFLOP/s, at most 2.34 GB of memory a learner" in found
    assert "computing   64.6 GFLOP/s" in summary(operations_per_s=64.6e9).lines()
    assert "computing   at most 0.30 GB of memory" in summary(learners=1, peak_memory=3e8).lines()
