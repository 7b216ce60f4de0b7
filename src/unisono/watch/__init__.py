"""The live page of a run, from the files of its directory."""

from __future__ import annotations
