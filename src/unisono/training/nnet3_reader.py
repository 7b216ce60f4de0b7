"""Computes with nnet3 models in Kaldi's text form, to check those that are written here.

Tokens are expected in the order in which Kaldi's readers expect them, and with the white space
that they need. Of what Kaldi accepts, components and descriptors of feed-forward networks without
statistics of training are read; everything else is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Frames = NDArray[np.float32]
_TOKEN = re.compile(r"\s*(\S+)\s")
_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_SETTING = re.compile(r"\s+([A-Za-z_][\w.-]*)=(.*?)(?=\s+[^\s=]+=|\s*$)")
_NUMBER = r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?"
_ROW = re.compile(rf"[ \t]*(?:{_NUMBER}(?:[ \t]+{_NUMBER})*)?[ \t]*")
_SETTINGS = {
    "input-node": {"name", "dim"},
    "component-node": {"name", "component", "input"},
    "output-node": {"name", "input", "objective"},
}


@dataclass(frozen=True)
class _Component:
    """Rows of `inputs` numbers to rows of `outputs`."""

    inputs: int
    outputs: int
    compute: Callable[[Frames], Frames]


@dataclass(frozen=True)
class _Node:
    """A component and what it reads: other nodes, each at an offset in time, side by side."""

    name: str
    component: str
    sources: list[tuple[str, int]]


class Nnet3:
    """A network."""

    def __init__(self, path: Path) -> None:
        """Reads a raw network.

        Raises:
            ValueError: It is not as Kaldi reads it.
        """
        text = _Text(path.read_text(encoding="ascii"))
        text.expect("<Nnet3>")
        if text.line():
            raise ValueError("<Nnet3>, a space and the end of the line are expected")
        lines = []
        while line := text.line():
            lines.append(line)
        text.expect("<NumComponents>")
        self._components: dict[str, _Component] = {}
        for _ in range(text.integer()):
            text.expect("<ComponentName>")
            name = text.token()
            if name in self._components:
                raise ValueError(f"there are two components {name}")
            self._components[name] = _read_component(text)
        text.expect("</Nnet3>")
        self._read_nodes(lines)

    def _read_nodes(self, lines: list[str]) -> None:
        widths: dict[str, int] = {}
        self._nodes: list[_Node] = []
        outputs: list[str] = []
        for line in lines:
            kind, settings = _settings(line)
            name = settings["name"]
            if name in widths:
                raise ValueError(f"there are two nodes {name}")
            if kind == "input-node":
                widths[name] = int(settings["dim"])
                continue
            sources = _sources(settings["input"])
            for source, _ in sources:
                if source not in widths:
                    raise ValueError(f"there is no node {source} before {line!r}")
            if kind == "output-node":
                if name != "output" or sources[1:] or sources[0][1] != 0:
                    raise ValueError(f"no node output that is one other node: {line!r}")
                outputs.append(sources[0][0])
                continue
            component = self._components.get(settings["component"])
            width = sum(widths[source] for source, _ in sources)
            if component is None or component.inputs != width:
                raise ValueError(f"no component takes {width} numbers in {line!r}")
            widths[name] = component.outputs
            self._nodes.append(_Node(name, settings["component"], sources))
        if "input" not in widths or len(outputs) != 1:
            raise ValueError("one node input and one node output are expected")
        (self._output,) = outputs

    def compute(self, frames: Frames) -> Frames:
        """The node `output` at each frame.

        Args:
            frames: Of an utterance. Where a node reads frames before the first or behind the last
                one, these are repeated, as Kaldi's programs do.
        """
        spans = {self._output: (0, len(frames))}
        for node in reversed(self._nodes):
            first, stop = spans[node.name]
            for source, offset in node.sources:
                low, high = spans.get(source, (first + offset, stop + offset))
                spans[source] = min(low, first + offset), max(high, stop + offset)
        times = np.arange(*spans["input"])
        values = {"input": frames[np.clip(times, 0, len(frames) - 1)]}
        for node in self._nodes:
            first, stop = spans[node.name]
            pieces = []
            for source, offset in node.sources:
                begin = spans[source][0]
                pieces.append(values[source][first + offset - begin : stop + offset - begin])
            values[node.name] = self._components[node.component].compute(np.hstack(pieces))
        first, stop = spans[self._output]
        return values[self._output][-first : len(frames) - first]


class _Text:
    """Kaldi's text stream: tokens end with one character of white space, which is taken, too."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def line(self) -> str:
        end = self._text.find("\n", self._at)
        if end < 0:
            raise ValueError("the file ends within its nodes")
        line, self._at = self._text[self._at : end], end + 1
        return line

    def token(self) -> str:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            raise ValueError("the file ends without white space behind the last token")
        self._at = match.end()
        return match[1]

    def expect(self, wanted: str) -> None:
        start, found = self._at, self.token()
        if found != wanted:
            raise ValueError(f"{wanted} expected at character {start}, found {found[:40]}")

    def integer(self) -> int:
        return int(self._number(r"\s*(-?\d+)"))

    def real(self) -> float:
        return float(self._number(rf"\s*({_NUMBER})"))

    def _number(self, form: str) -> str:
        match = re.compile(form).match(self._text, self._at)
        if match is None:
            raise ValueError(f"a number expected at character {self._at}")
        self._at = match.end()
        return match[1]

    def matrix(self) -> Frames:
        """A matrix, a row a line."""
        rows = self._rows()
        if len({len(row) for row in rows}) != 1:
            raise ValueError(f"the matrix before character {self._at} is empty or ragged")
        return np.array(rows)

    def vector(self) -> Frames:
        """A vector, on one line."""
        start, rows = self._at, self._rows()
        if "\n" in self._text[start : self._at].strip():
            raise ValueError(f"the vector at character {start} has more than one line")
        return np.concatenate([np.zeros(0, dtype=np.float32), *rows])

    def _rows(self) -> list[Frames]:
        self.expect("[")
        end = self._text.find("]", self._at)
        lines = self._text[self._at : end].split("\n")
        if end < 0 or not all(map(_ROW.fullmatch, lines)):
            raise ValueError(f"numbers in brackets expected at character {self._at}")
        self._at = end + 1
        return [np.array(line.split(), dtype=np.float32) for line in lines if line.strip()]


def _read_component(text: _Text) -> _Component:
    kind = text.token()
    if kind == "<AffineComponent>":
        return _read_affine(text)
    if kind == "<RectifiedLinearComponent>":
        return _read_nonlinear(text, kind, lambda rows: np.maximum(rows, 0))
    if kind == "<LogSoftmaxComponent>":
        return _read_nonlinear(text, kind, _log_softmax)
    raise ValueError(f"{kind} is not known here")


def _read_affine(text: _Text) -> _Component:
    text.expect("<LearningRate>")
    text.real()
    text.expect("<LinearParams>")
    weight = text.matrix()
    text.expect("<BiasParams>")
    bias = text.vector()
    text.expect("</AffineComponent>")
    if len(weight) != len(bias):
        raise ValueError(f"{len(bias)} biases for {len(weight)} rows")
    return _Component(weight.shape[1], len(weight), lambda rows: rows @ weight.T + bias)


def _read_nonlinear(text: _Text, kind: str, compute: Callable[[Frames], Frames]) -> _Component:
    text.expect("<Dim>")
    units = text.integer()
    for statistics in ("<ValueAvg>", "<DerivAvg>"):
        text.expect(statistics)
        if text.vector().size not in (0, units):
            raise ValueError(f"{statistics} has not {units} numbers")
    text.expect("<Count>")
    text.real()
    text.expect(f"</{kind[1:]}")
    return _Component(units, units, compute)


def _log_softmax(rows: Frames) -> Frames:
    shifted = rows - rows.max(1, keepdims=True)
    normalised: Frames = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return normalised


def _settings(line: str) -> tuple[str, dict[str, str]]:
    """The kind of a node, and what is given of it."""
    kind, _, rest = line.partition(" ")
    found: dict[str, str] = dict(_SETTING.findall(f" {rest}"))
    if found.keys() != _SETTINGS.get(kind):
        raise ValueError(f"{line!r} is no node that is known here")
    return kind, found


def _sources(descriptor: str) -> list[tuple[str, int]]:
    """The nodes that are read, each with the offset in time."""
    tokens = [*re.findall(r"[(),]|[^\s(),]+", descriptor), ""]

    def expect(wanted: str) -> None:
        if tokens.pop(0) != wanted:
            raise ValueError(f"{wanted!r} expected in {descriptor!r}")

    def parse() -> list[tuple[str, int]]:
        name = tokens.pop(0)
        if name == "Append":
            expect("(")
            parts = parse()
            while tokens[0] == ",":
                expect(",")
                parts += parse()
            expect(")")
            return parts
        if name == "Offset":
            expect("(")
            ((name, offset),) = parse()
            expect(",")
            further = int(tokens.pop(0))
            expect(")")
            return [(name, offset + further)]
        if not _NAME.fullmatch(name):
            raise ValueError(f"a node's name expected in {descriptor!r}, found {name!r}")
        return [(name, 0)]

    found = parse()
    expect("")
    return found
