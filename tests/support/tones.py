"""A language of tones: audio whose phones, and whose times, are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile

PHONES = {
    "A": (300, 900),
    "E": (600, 2400),
    "I": (250, 3300),
    "O": (450, 1500),
    "U": (1200, 1900),
    "Y": (2000, 2900),
}
LEXICON = "aeo A E O\nuya U Y A\nio I O\nyeu Y E U\nio I U\n"
WORDS = {"aeo": "AEO", "uya": "UYA", "io": "IO", "yeu": "YEU"}
RATE = 8000


def write_tones(
    folder: Path, *, speakers: int, utterances: int, seed: int, noise: float = 30.0
) -> dict[str, list[tuple[str, float]]]:
    """Writes a data directory and lexicon.txt; returns the words and starts (s) by utterance."""
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    (folder / "lexicon.txt").write_text(LEXICON)
    times: dict[str, list[tuple[str, float]]] = {}
    lines: dict[str, list[str]] = {"wav.scp": [], "text": [], "utt2spk": []}
    for s in range(speakers):
        stretch = 1 + 0.04 * random.standard_normal()
        for u in range(utterances):
            name = f"s{seed}{s:02d}-{u:02d}"
            said = random.choice(sorted(WORDS), size=random.integers(2, 6)).tolist()
            pieces = [np.zeros(int(RATE * random.uniform(0.15, 0.3)))]
            times[name] = []
            for word in said:
                times[name].append((word, sum(map(len, pieces)) / RATE))
                for phone in WORDS[word]:
                    pieces.append(_tone(PHONES[phone], stretch, random))
                if random.random() < 0.4:
                    pieces.append(np.zeros(int(RATE * random.uniform(0.1, 0.2))))
            pieces.append(np.zeros(int(RATE * 0.2)))
            samples = np.concatenate(pieces)
            samples += random.normal(0, noise, len(samples))
            soundfile.write(folder / f"{name}.wav", samples.astype(np.int16), RATE)
            lines["wav.scp"].append(f"{name} {name}.wav\n")
            lines["text"].append(f"{name} {' '.join(said)}\n")
            lines["utt2spk"].append(f"{name} s{seed}{s:02d}\n")
    for file, content in lines.items():
        (folder / file).write_text("".join(content))
    return times


def _tone(pitches: tuple[int, int], stretch: float, random: np.random.Generator) -> np.ndarray:
    count = int(RATE * random.uniform(0.07, 0.14))
    at = np.arange(count) / RATE
    return np.asarray(
        sum(
            2000 * np.sin(2 * np.pi * pitch * stretch * at + random.uniform(0, 6))
            for pitch in pitches
        )
    )
