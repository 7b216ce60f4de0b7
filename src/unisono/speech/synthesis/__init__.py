"""Synthesised corpora: phrases spoken by espeak-ng, with noise."""

from __future__ import annotations
