"""Starting the processes of a run: on this host, on a Ray cluster, under torchrun."""

from __future__ import annotations
