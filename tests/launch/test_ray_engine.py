from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as some

from unisono.config import DeviceChoice
from unisono.errors import UserError
from unisono.launch.ray_engine import Node, cores_for, entered, gpus_for, load_ray

NODES = some.lists(some.integers(0, 12), max_size=5)


@given(NODES, some.integers(1, 12))
def test_as_many_cores_as_leave_room_for_all(cores: list[int], learners: int) -> None:
    nodes = [Node(str(n), "host", count, 0) for n, count in enumerate(cores)]
    mine = cores_for(nodes, learners)

    def fit(each: int) -> int:
        room = list(cores)
        placed = 0
        while any(left >= each for left in room):
            at = next(n for n, left in enumerate(room) if left >= each)
            room[at] -= each
            placed += 1
        return placed

    best = [each for each in range(1, 13) if fit(each) >= learners]
    assert mine == max(best, default=1)


def test_a_gpu_each_where_there_are_any() -> None:
    bare, rich = Node("a", "a", 8, 0), Node("b", "b", 8, 2)
    assert gpus_for(DeviceChoice.AUTO, [bare, rich]) == 1
    assert gpus_for(DeviceChoice.CUDA, [bare, rich]) == 1
    assert gpus_for(DeviceChoice.CPU, [bare, rich]) == 0
    assert gpus_for(DeviceChoice.AUTO, [bare]) == 0
    with pytest.raises(UserError, match="no GPU in the cluster"):
        gpus_for(DeviceChoice.CUDA, [bare])


def test_every_gpu_has_room_for_a_learner() -> None:
    nodes = [Node("a", "a", 64, 8), Node("b", "b", 12, 2), Node("c", "c", 128, 0)]
    assert cores_for(nodes, 4, gpus=1) == 6
    assert cores_for([Node("a", "a", 2, 4)], 4, gpus=1) == 1


def test_without_ray_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'unisono\[cluster\]'"):
        load_ray()


def test_a_ray_client_is_refused() -> None:
    with pytest.raises(UserError, match="not a Ray client"), entered("ray://somewhere:10001"):
        pass
