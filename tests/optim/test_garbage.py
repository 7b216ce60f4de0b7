"""The garbage collector stays away from captures."""

from __future__ import annotations

import gc

import pytest

from unisono.optim.garbage import no_collections


@pytest.mark.parametrize("on", [True, False])
def test_collections_are_off_within_and_as_before_behind(on: bool) -> None:
    if not on:
        gc.disable()
    try:
        with no_collections():
            with pytest.raises(RuntimeError, match="capture failed"), no_collections():
                assert not gc.isenabled()
                raise RuntimeError("capture failed")
            assert not gc.isenabled()
        assert gc.isenabled() == on
    finally:
        gc.enable()
