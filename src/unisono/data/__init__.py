"""PREP, frames with their context, and frames made on the spot."""

from __future__ import annotations
