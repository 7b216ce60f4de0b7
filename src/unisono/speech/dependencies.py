"""The packages of extras, imported when they are first needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from unisono.errors import UserError


def import_package(name: str, extra: str = "speech") -> Any:
    """Imports a package of an extra.

    Raises:
        UserError: It is not installed, or cannot be loaded.
    """
    try:
        return import_module(name)
    except (ImportError, OSError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{extra} needs the package {name} ({reason}); install it: "
            f"pip install 'unisono[{extra}]'"
        ) from None
