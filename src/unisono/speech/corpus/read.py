"""Reading a corpus, whichever of three forms it has."""

from __future__ import annotations

from pathlib import Path

from unisono.errors import UserError
from unisono.speech.corpus.audio_folder import METADATA_FILES, read_audio_folder
from unisono.speech.corpus.data_directory import Utterance, read_data_directory, usable
from unisono.speech.corpus.exclusions import Exclusions
from unisono.speech.corpus.lhotse_cuts import read_cuts


def read_corpus(
    data: Path,
    exclusions: Exclusions,
    *,
    transcribed: bool,
    allow_pipes: bool = False,
    channel: int = 0,
    features: bool = False,
) -> list[Utterance]:
    """Reads a Kaldi data directory, an audio folder with metadata, or a manifest of lhotse cuts.

    A file is a manifest. A folder with `metadata.csv` or `metadata.jsonl` and without `wav.scp`
    is an audio folder; any other is a data directory.

    Args:
        data: The folder or file.
        exclusions: Receives the utterances that cannot be used.
        transcribed: Whether utterances without a transcript are excluded.
        allow_pipes: Whether audio may come from commands.
        channel: The channel of recordings where the corpus does not give one.
        features: Whether to read the features that `feats.scp` of a data directory points to.

    Returns:
        The usable utterances, in the order of their names.

    Raises:
        UserError: Something cannot be read, or no utterance can be used.
    """
    tables = [data / name for name in METADATA_FILES if (data / name).is_file()]
    if data.is_dir() and not (tables or features or (data / "wav.scp").is_file()):
        raise UserError(
            f"{data} has neither wav.scp, as a Kaldi data directory has, nor "
            f"{' or '.join(METADATA_FILES)}, as an audio folder has: add one of them"
        )
    kaldi = features or not tables or (data / "wav.scp").is_file()
    if kaldi and not data.is_file():
        return read_data_directory(
            data,
            exclusions,
            transcribed=transcribed,
            allow_pipes=allow_pipes,
            channel=channel,
            features=features,
        )
    if features:
        raise UserError(f"{data} is a file: --features kaldi needs a data directory with feats.scp")
    if len(tables) > 1:
        raise UserError(f"{data} has both {' and '.join(METADATA_FILES)}: keep one of them")
    if tables:
        found = read_audio_folder(tables[0], channel)
    elif data.name.endswith((".jsonl", ".jsonl.gz")):
        found = read_cuts(data, exclusions)
    else:
        raise UserError(
            f"{data} is not a corpus: give a Kaldi data directory, an audio folder or lhotse cuts "
            "in .jsonl or .jsonl.gz (`lhotse copy` converts other manifests)"
        )
    return usable(found, data, exclusions, transcribed=transcribed, allow_pipes=allow_pipes)
