"""The commands: they parse and print, and compute nothing."""

from __future__ import annotations
