"""``python -m unisono``."""

from __future__ import annotations

from unisono.cli.main import main

main()
