"""Leases over positions: deal, draw, settle, return, seek."""

from __future__ import annotations
