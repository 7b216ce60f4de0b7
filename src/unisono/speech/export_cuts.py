"""A PREP as lhotse's cuts: features, frame states, and what is known of each utterance.

lhotse takes frame t for the samples from t to t + 1 frame shifts after the start of a cut. A frame
here represents the middle of its window of 25 ms, so cuts begin 7.5 ms after their utterances: the
times of frames, words and phones are then those of the audio.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from unisono.data import Prep
from unisono.data.layout import broken
from unisono.errors import UserError
from unisono.speech.alignment.segments import PhoneSegmenter, Segment
from unisono.speech.corpus.ctm import TimedWord, read_ctm
from unisono.speech.corpus.sources import SOURCES_FILE, Source, read_sources
from unisono.speech.decoding.assets import read_gmm_hmm
from unisono.speech.dependencies import import_package
from unisono.speech.features.audio import UtteranceError, probe
from unisono.speech.features.spectrum import SHIFT_S, WINDOW_S, frame_shift
from unisono.speech.prepare import WORD_TIMES_FILE

CUTS_FILE = "cuts.jsonl.gz"
_OFFSET_S = (WINDOW_S - SHIFT_S) / 2
# lhotse rounds times to so many digits of a second.
_DIGITS = 8
# What cuts without audio are given; the second is for frame shifts that are no whole number of
# samples at the first.
_RATES = (16_000, 1_000_000)
# lhotse's folders are the first three characters of names: so many, however large the corpus.
_FOLDERS = 1000


def export_cuts(prep: Prep, out: Path) -> int:
    """Writes cuts.jsonl.gz, and a file of features and one of states for each of the cuts.

    Features are not normalised, as in the PREP. A frame shift that nobody said is taken for 10 ms.

    Args:
        prep: The PREP.
        out: The folder to make.

    Returns:
        How many cuts have their audio.

    Raises:
        UserError: `out` exists or cannot be written, lhotse is missing, or the PREP is broken.
    """
    lhotse = import_package("lhotse", "lhotse")
    if os.path.lexists(out):
        raise UserError(f"{out} exists already; name another --out")
    with_audio = 0
    utterances = _read_utterances(prep)
    try:
        out.mkdir(parents=True)
        writer = _CutWriter(prep, out.resolve(), lhotse)
        with lhotse.CutSet.open_writer(out / CUTS_FILE) as manifest:
            for number, (source, words) in enumerate(utterances):
                cut = writer.write(number, source, words)
                with_audio += cut.has_recording
                manifest.write(cut)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}; choose another place") from None
    return with_audio


def _read_utterances(prep: Prep) -> Sequence[tuple[Source, list[TimedWord] | None]]:
    """Where each utterance comes from, and its words where their times are known."""
    if not (prep.path / SOURCES_FILE).is_file():
        return [(Source(id=name, recording=name), None) for name in prep.table.id]
    sources = read_sources(prep.path / SOURCES_FILE)
    if [source.id for source in sources] != prep.table.id:
        raise broken(prep.path, f"{SOURCES_FILE} has other utterances than utterances.json")
    if not (prep.path / WORD_TIMES_FILE).is_file():
        return [(source, None) for source in sources]
    timed = {name: iter(words) for name, words in read_ctm(prep.path / WORD_TIMES_FILE).items()}
    return [(source, _words(prep, source, timed)) for source in sources]


def _words(
    prep: Prep, source: Source, timed: dict[str, Iterator[TimedWord]]
) -> list[TimedWord] | None:
    """The next words of a recording; its utterances follow each other as in the PREP."""
    if source.text is None or source.speed != 1:
        return None
    spoken = source.text.split()
    found = list(islice(timed.get(source.recording, iter(())), len(spoken)))
    if len(found) < len(spoken):
        raise broken(prep.path, f"{WORD_TIMES_FILE} lacks words of {source.id}")
    return [
        TimedWord(word=word, start=at.start - source.start, end=at.end - source.start)
        for word, at in zip(spoken, found, strict=True)
    ]


@dataclass(frozen=True)
class _FrameClock:
    """The sample rate that a cut declares, and the seconds from frame to frame."""

    rate: int
    shift: float

    @classmethod
    def of(cls, prep: Prep, source: Source) -> _FrameClock:
        """In lhotse a frame shift is a whole number of samples."""
        if source.rate is not None:
            return cls(source.rate, frame_shift(source.rate))
        shift = round(prep.header.frame_shift_s or SHIFT_S, 6)
        whole = (shift * _RATES[0]).is_integer()
        return cls(_RATES[0] if whole else _RATES[1], shift)

    def segment(self, word: TimedWord, frames: int) -> Segment:
        """The frames of a word in an utterance of so many."""
        first, stop = (
            min(max(round((time - _OFFSET_S) / self.shift), 0), frames)
            for time in (word.start, word.end)
        )
        return Segment(name=word.word, first=first, stop=stop)

    def seconds(self, frames: int) -> float:
        """How long so many frames are."""
        return round(frames * self.shift, _DIGITS)


class _CutWriter:
    """Makes cuts, and writes the arrays that they point to."""

    def __init__(self, prep: Prep, folder: Path, lhotse: Any) -> None:
        self._prep = prep
        self._lhotse = lhotse
        self._features = lhotse.NumpyFilesWriter(folder / "features")
        self._states = lhotse.NumpyFilesWriter(folder / "ali") if prep.header.states else None
        model = read_gmm_hmm(prep.path) if prep.header.states else None
        self._phones = None if model is None else PhoneSegmenter(model)
        if self._phones is not None and self._phones.states != prep.header.states:
            raise broken(prep.path, "speech/tree.json has other states than prep.json")

    def write(self, number: int, source: Source, words: list[TimedWord] | None) -> Any:
        """The cut of an utterance."""
        table, clock = self._prep.table, _FrameClock.of(self._prep, source)
        rows = slice(*self._prep.starts[number : number + 2].tolist())
        duration = clock.seconds(rows.stop - rows.start)
        start = round(source.start + _OFFSET_S, _DIGITS)
        recording = self._recording(source, start + duration)
        if recording is None:
            start = 0.0
        place = {"duration": duration, "channel": 0 if recording is None else source.channel}
        within = source.id if recording is None else source.recording
        key = f"{number % _FOLDERS:03d}-{number}"
        custom: dict[str, Any] = {"part": table.part[number].value}
        if self._states is not None:
            states = self._prep.states[rows].astype(np.int32)
            custom["ali"] = self._states.store_array(
                key, states, frame_shift=clock.shift, temporal_dim=0, start=start
            )
        supervision = self._lhotse.SupervisionSegment(
            id=source.id,
            recording_id=within,
            start=0.0,
            text=source.text,
            speaker=table.speakers[table.speaker[number]],
            alignment=self._alignment(rows, words, clock) or None,
            **place,
        )
        features = self._lhotse.Features(
            type=str(self._prep.header.made_by.get("features", "frames")),
            num_frames=rows.stop - rows.start,
            num_features=self._prep.header.dimension,
            frame_shift=clock.shift,
            sampling_rate=clock.rate,
            start=start,
            duration=duration,
            storage_type=self._features.name,
            storage_path=self._features.storage_path,
            storage_key=self._features.write(key, self._prep.frames[rows].astype(np.float32)),
            recording_id=within,
            channels=place["channel"],
        )
        return self._lhotse.MonoCut(
            id=source.id,
            start=start,
            supervisions=[supervision],
            features=features,
            recording=recording,
            custom=custom,
            **place,
        )

    def _recording(self, source: Source, end: float) -> Any:
        """A recording that is still there; None where it is not, or has another speed."""
        if source.audio is None or source.rate is None or source.speed != 1:
            return None
        try:
            samples, rate, channels = probe(source.audio)
        except UtteranceError:
            return None
        if samples / rate < end or source.channel >= channels:
            return None
        recording = self._lhotse.Recording(
            id=source.recording,
            sources=[
                self._lhotse.AudioSource(
                    type="file", channels=list(range(channels)), source=source.audio
                )
            ],
            sampling_rate=rate,
            num_samples=samples,
            duration=samples / rate,
        )
        return recording if rate == source.rate else recording.resample(source.rate)

    def _alignment(
        self, rows: slice, words: list[TimedWord] | None, clock: _FrameClock
    ) -> dict[str, list[Any]]:
        """The words and phones of an utterance, as far as they are known."""
        found: dict[str, list[Segment]] = {}
        if words is not None:
            found["word"] = [clock.segment(word, rows.stop - rows.start) for word in words]
        if self._phones is not None:
            found["phone"] = self._phones.segments(self._prep.states[rows])
        return {kind: [self._item(s, clock) for s in items] for kind, items in found.items()}

    def _item(self, segment: Segment, clock: _FrameClock) -> Any:
        return self._lhotse.supervision.AlignmentItem(
            symbol=segment.name,
            start=clock.seconds(segment.first),
            duration=clock.seconds(segment.stop - segment.first),
        )
