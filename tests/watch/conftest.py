from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.live_events import Cluster
from unisono.watch.live_run import LiveRun


@pytest.fixture
def live() -> LiveRun:
    return LiveRun()


@pytest.fixture
def cluster(live: LiveRun) -> Callable[..., Cluster]:
    def make(learners: int, **options: Any) -> Cluster:
        made = Cluster(learners, live.take, **options)
        made.start()
        return made

    return make
