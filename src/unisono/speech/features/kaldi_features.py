"""Features that were computed elsewhere, read from Kaldi archives."""

from __future__ import annotations

from dataclasses import dataclass

from unisono.speech.corpus.data_directory import Utterance
from unisono.speech.corpus.exclusions import ExclusionReason
from unisono.speech.features.audio import UtteranceError, run_command
from unisono.speech.features.kaldi_archives import (
    BadArchiveError,
    Matrix,
    Pointer,
    read_matrix,
    read_shape,
)


@dataclass(frozen=True, kw_only=True)
class KaldiFeatureReader:
    """Reads the features of utterances whose `audio` points into an archive.

    Attributes:
        dimension: The numbers in a frame that are needed.
        bands: Whether they are log energies of bands, or else cepstra.
    """

    dimension: int
    bands: bool

    def frames(self, utterance: Utterance) -> int:
        """The utterance's frames, from the header of its matrix alone (0 for a command).

        Raises:
            UtteranceError: It cannot be used.
        """
        if utterance.is_command:
            return 0
        rows, columns = feature_shape(utterance)
        self._check(columns)
        return rows

    def read(self, utterance: Utterance) -> Matrix:
        """The utterance's features, frames x dimensions.

        Raises:
            UtteranceError: They cannot be read.
        """
        try:
            if utterance.is_command:
                matrix = read_matrix(Pointer("", 0), run_command(utterance.audio[:-1]))
            else:
                matrix = read_matrix(Pointer.of(utterance.audio))
        except BadArchiveError as error:
            raise UtteranceError(ExclusionReason.UNREADABLE_FEATURES, str(error)) from None
        self._check(matrix.shape[1])
        return matrix

    def _check(self, columns: int) -> None:
        if columns != self.dimension:
            raise UtteranceError(ExclusionReason.DIMENSION, f"{columns}, not {self.dimension}")


def feature_shape(utterance: Utterance) -> tuple[int, int]:
    """Frames and dimensions of an utterance's features.

    Raises:
        UtteranceError: They cannot be read.
    """
    try:
        return read_shape(Pointer.of(utterance.audio))
    except BadArchiveError as error:
        raise UtteranceError(ExclusionReason.UNREADABLE_FEATURES, str(error)) from None
