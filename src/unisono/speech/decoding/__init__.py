"""Decoding with a graph, tuning of its settings, and scoring."""

from __future__ import annotations
