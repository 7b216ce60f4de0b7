"""A program that speaks: espeak-ng behind a pipe.

espeak-ng is under the GPL, so nothing of Unisono loads it: this file is run as a process of its
own (`python -I espeak.py FOLDER`, FOLDER being that of the package espeakng_loader), imports
nothing of Unisono, and is talked to in bytes. It reads a JSON object a line,

    {"voice": "gmw/en+f2", "rate": 160, "pitch": 50, "range": 50, "gap": 0, "text": "go home"}

(words a minute, espeak's 0 to 100, espeak's 0 to 100, units of 10 ms between words), and answers
each with a line of JSON and the samples, 16 bits each, in the machine's order:

    {"hz": 22050, "samples": 17000, "words": [[0, 120], [3, 5950]], "pauses": [15020]}

`words` has, for each word, its first letter's place in the text and the sample at which it
begins; `pauses` has the samples at which pauses begin.
"""

from __future__ import annotations

import ctypes
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

_SYNCHRONOUS = 2
_PHONEME_EVENTS, _DO_NOT_EXIT = 0x0001, 0x8000
_UTF8 = 1
_WORD, _PHONEME = 1, 7
_RATE, _PITCH, _RANGE, _GAP = 1, 3, 4, 7


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("name", ctypes.c_char * 8),
    )


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


class _Speaker:
    """The library, and what it has said since it was last asked."""

    def __init__(self, library: str, data: str) -> None:
        self._library: Any = ctypes.CDLL(library)
        options = _PHONEME_EVENTS | _DO_NOT_EXIT
        self.hz = self._library.espeak_Initialize(_SYNCHRONOUS, 0, data.encode(), options)
        if self.hz <= 0:
            raise OSError(f"espeak-ng cannot be started with {data}")
        self._callback = _Callback(self._hear)
        self._library.espeak_SetSynthCallback(self._callback)
        self._audio = bytearray()
        self._words: list[tuple[int, int]] = []
        self._pauses: list[int] = []

    def _hear(self, samples: Any, count: int, events: Any) -> int:
        if count > 0 and samples:
            self._audio += ctypes.string_at(samples, 2 * count)
        at = 0
        while events[at].type:
            event = events[at]
            if event.type == _WORD:
                self._words.append((event.text_position - 1, event.sample))
            elif event.type == _PHONEME and event.name.startswith(b"_"):
                self._pauses.append(event.sample)
            at += 1
        return 0

    def say(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Says one text."""
        if self._library.espeak_SetVoiceByName(request["voice"].encode()) != 0:
            raise OSError(f"espeak-ng has no voice {request['voice']}")
        for number, name in ((_RATE, "rate"), (_PITCH, "pitch"), (_RANGE, "range"), (_GAP, "gap")):
            self._library.espeak_SetParameter(number, request[name], 0)
        self._audio, self._words, self._pauses = bytearray(), [], []
        text = request["text"].encode() + b"\0"
        if self._library.espeak_Synth(text, len(text), 0, 1, 0, _UTF8, None, None) != 0:
            raise OSError(f"espeak-ng cannot say {request['text']!r}")
        answer = {
            "hz": self.hz,
            "samples": len(self._audio) // 2,
            "words": self._words,
            "pauses": self._pauses,
        }
        return answer, bytes(self._audio)


def main() -> None:
    """Answers the requests on standard input until it ends."""
    folder = Path(sys.argv[1])
    sys.path.append(str(folder.parent))
    loader = import_module("espeakng_loader")
    speaker = _Speaker(loader.get_library_path(), loader.get_data_path())
    for line in sys.stdin.buffer:
        answer, audio = speaker.say(json.loads(line))
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n" + audio)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
