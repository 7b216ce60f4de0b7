"""The packages of the `speech` extra, imported when they are first needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from unisono.errors import UserError


def import_package(name: str) -> Any:
    """Imports a package of the `speech` extra.

    Raises:
        UserError: It is not installed, or cannot be loaded.
    """
    try:
        return import_module(name)
    except (ImportError, OSError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"speech needs the package {name} ({reason}); install it: pip install 'unisono[speech]'"
        ) from None
