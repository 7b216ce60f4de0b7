"""What several strategies are built on: sync rounds, pairwise exchanges, a parameter server."""

from __future__ import annotations
