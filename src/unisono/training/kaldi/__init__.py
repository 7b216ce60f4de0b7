"""Kaldi's recipe for training by parameter averaging."""

from __future__ import annotations
