"""Pages and tables made from the files of runs."""

from __future__ import annotations
