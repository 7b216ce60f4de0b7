"""Pages and tables made from the files of runs."""

from __future__ import annotations

from unisono.report.report import write_report

__all__ = ["write_report"]
