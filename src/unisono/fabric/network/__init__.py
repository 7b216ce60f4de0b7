"""Links between hosts: TCP connections that may break and are made anew."""

from __future__ import annotations
