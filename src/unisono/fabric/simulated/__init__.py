"""A cluster on a virtual clock."""

from __future__ import annotations
