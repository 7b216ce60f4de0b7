"""MODEL_CARD.md: what a run's model is, what it was trained on and how, for whoever gets it."""

from __future__ import annotations

import math

from safetensors import safe_open

import unisono
from unisono.config import Config, ObjectiveChoice
from unisono.data import Part, Prep
from unisono.runs.directory import RunDirectory, write_atomically
from unisono.runs.summary import Summary
from unisono.speech.decoding.assets import ASSETS_FOLDER
from unisono.text import counted

_USE = """
## Use

```python
import unisono

with unisono.Recognizer("RUN") as recognizer:  # this folder
    print(*recognizer.recognize("speech.wav"))
```

Word error rates depend on the test set and the language model: measure yours with `unisono decode`.
"""


def write_model_card(run: RunDirectory, config: Config, prep: Prep, summary: Summary) -> None:
    """Writes it into the run, from what the run and its data say."""
    ctc = config.objective is ObjectiveChoice.CTC
    rows = [
        ("model", f"{config.model}, {_parameters(run):,} parameters"),
        ("input", f"{prep.header.dimension} features a frame, normalised by speaker"),
        ("output", _output(config, prep)),
        ("training data", _data(prep, Part.TRAIN)),
        ("held-out data", _data(prep, Part.HELDOUT)),
        ("data fingerprint", prep.fingerprint),
        ("epochs", f"{summary.epochs}, seed {summary.seed}"),
        ("learners", f"{summary.learners}, {summary.strategy}, {summary.optimizer}"),
        ("training time", f"{summary.wall_s:,.0f} s"),
        ("held-out log-prob", _number(summary.validation_logprob, "{:.3f} a frame")),
        (
            "held-out phone accuracy" if ctc else "held-out frames right",
            _number(summary.validation_accuracy, "{:.1%}"),
        ),
        ("training log-prob", _number(summary.train_logprob, "{:.3f} a frame")),
        ("made by", f"Unisono {unisono.__version__}"),
    ]
    lines = [f"# Acoustic model: {config.model}", "", "| | |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in rows]
    lines += [
        "",
        "`config.toml` repeats the training, `summary.json` has all results, `report.html` the "
        "curves. The held-out speakers are of the same corpus as those trained on: other rooms, "
        "microphones and accents will do worse.",
    ]
    text = "\n".join(lines) + "\n"
    if (run.path / ASSETS_FOLDER).is_dir():
        text += _USE
    write_atomically(run.model_card, text.encode())


def _parameters(run: RunDirectory) -> int:
    with safe_open(run.model, "pt") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118


def _output(config: Config, prep: Prep) -> str:
    if config.objective is ObjectiveChoice.STATES:
        return f"posteriors of {prep.header.states:,} states"
    every = counted(config.network.subsampling, "frame")
    return f"posteriors of a blank and {prep.header.phones:,} phones, every {every} (CTC)"


def _data(prep: Prep, part: Part) -> str:
    frames = prep.frames_of(part)
    if not frames:
        return "none"
    chosen = [place for place, each in enumerate(prep.table.part) if each is part]
    speakers = len({prep.table.speaker[place] for place in chosen})
    shift = prep.header.frame_shift_s
    hours = "" if shift is None else f" ({frames * shift / 3600:.2f} h)"
    return f"{frames:,} frames{hours}, {len(chosen):,} utterances of {speakers:,} speakers"


def _number(value: float | None, form: str) -> str:
    return "not measured" if value is None else form.format(value)
