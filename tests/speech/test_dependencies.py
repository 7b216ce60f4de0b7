"""Without the speech extra: `import unisono` works, and one line says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

from unisono.errors import UserError
from unisono.speech.dependencies import import_package


def test_a_missing_package_is_one_line_that_says_what_to_install() -> None:
    with pytest.raises(UserError, match=r"pip install 'unisono\[speech\]'") as caught:
        import_package("no_such_package_at_all")
    assert "\n" not in str(caught.value)


def test_the_house_opens_without_the_extra() -> None:
    names = ["soundfile", "soxr", "kaldifst", "kaldi_decoder", "kaldialign"]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({names}));"
        "import unisono, unisono.cli.main, unisono.training.train"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
