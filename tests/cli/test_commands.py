"""What a user types, and the one line that answers when it is wrong."""

from __future__ import annotations

import errno
import http.client
import io
import json
import math
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import typer

from unisono.cli.main import main
from unisono.data import Prep, synthesise
from unisono.fabric import files
from unisono.learner import checkpoint_files
from unisono.runs import directory
from unisono.runs.directory import RunDirectory
from unisono.runs.summary import Summary

Run = Callable[..., tuple[int, str, str]]

QUICK = ["--set", "minibatch=64", "--set", "network.hidden=[32]", "--set", "epochs=1"]


@pytest.fixture(scope="module")
def prep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "prep"
    synthesise(
        path,
        speakers=6,
        utterances_per_speaker=4,
        frames_per_utterance=150,
        states=12,
        dimension=8,
        seed=0,
        noise=1.0,
    )
    return path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process: exit status, standard output, standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["unisono", *[str(a) for a in arguments]])
        status = 0
        try:
            main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        out, err = capfd.readouterr()
        return status, out, err

    return call


def is_one_line(text: str, *words: str) -> bool:
    return text.count("\n") == 1 and text.startswith("unisono: ") and all(w in text for w in words)


def test_cuts_out(run: Run, prep: Path, tmp_path: Path) -> None:
    pytest.importorskip("lhotse", reason="lhotse is not installed")
    out = tmp_path / "cuts"
    status, text, _ = run("export", prep, "--format", "lhotse", "--out", out)
    assert status == 0 and text.startswith(f"{len(Prep.open(prep).table.id)} utterances: {out}")
    assert (out / "cuts.jsonl.gz").is_file()
    status, _, err = run("export", prep, "--format", "lhotse", "--out", out)
    assert status == 2 and is_one_line(err, "exists")


def test_what_is_exported_has_formats_of_its_own(run: Run, prep: Path, tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch()
    for place, given, words in (
        (prep, "onnx", ("no run", "onnx")),
        (tmp_path, "lhotse", ("is a run", "lhotse")),
    ):
        status, _, err = run("export", place, "--format", given, "--out", tmp_path / "out")
        assert status == 2 and is_one_line(err, *words), err
    status, _, err = run("export", tmp_path / "nowhere", "--out", tmp_path / "out")
    assert status == 2 and "nowhere does not exist: give a run" in err
    status, _, err = run("export", prep, "--format", "flac", "--out", tmp_path / "out")
    assert status == 2 and "'flac' is not one of" in err and "'lhotse'" in err
    assert not (tmp_path / "out").exists()


def test_archives_out_and_in(run: Run, prep: Path, tmp_path: Path) -> None:
    out, again = tmp_path / "archives", tmp_path / "again"
    assert run("export", prep, "--out", out)[0] == 0
    status, _, err = run("export", prep, "--out", out)
    assert status == 2 and is_one_line(err, "exists")
    given = ["prepare", out, "--features", "kaldi", "--alignments", out / "ali.ark"]
    status, _, err = run(*given, "--lexicon", out / "utt2spk", "--out", again)
    assert status == 2 and is_one_line(err, "--alignments")
    assert run(*given, "--processes", 1, "--out", again)[0] == 0
    before, after = Prep.open(prep), Prep.open(again)
    assert np.array_equal(before.frames, after.frames)
    assert np.array_equal(before.states, after.states)


def test_train_leaves_what_a_run_promises(run: Run, prep: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    status, text, error = run("train", prep, "--out", out, *QUICK)
    assert (status, error) == (0, "")
    for name in ("config.toml", "metrics.jsonl", "summary.json", "model.json", "report.html"):
        assert (out / name).stat().st_size > 0
    summary = Summary.from_json((out / "summary.json").read_text())
    assert summary.strategy == "solo"
    assert summary.minibatches.committed == summary.minibatches.leased > 0
    assert summary.validation_accuracy is not None and summary.validation_accuracy > 0.3
    assert "report:" in text


class Viewer:
    """Opens the page as soon as its address is printed, and looks at it to the end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen = b""
        self.page = b""
        self.port = 0
        self._echo = typer.echo
        self._thread: threading.Thread | None = None
        monkeypatch.setattr(typer, "echo", self.echo)

    def echo(self, text: str) -> None:
        self._echo(text)
        if text.startswith("watch at "):
            self.port = urlsplit(text.split()[-1]).port or 0
            self._thread = threading.Thread(target=self._try_to_look)
            self._thread.start()

    def _try_to_look(self) -> None:
        # A run that fails at once may be gone before.
        with suppress(OSError, http.client.HTTPException):
            self._look()

    def _look(self) -> None:
        page = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        page.request("GET", "/")
        self.page = page.getresponse().read()
        events = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        events.request("GET", "/events")
        self.seen = events.getresponse().read()  # until the server closes it

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join(30)


def test_train_is_watched_to_its_end(
    run: Run, prep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    viewer = Viewer(monkeypatch)
    out = tmp_path / "run"
    status, text, error = run("train", prep, "--out", out, "--watch", *QUICK)
    assert (status, error) == (0, "")
    assert f"watch at http://127.0.0.1:{viewer.port}/" in text
    viewer.join()
    assert b"<h1" in viewer.page
    last = json.loads(viewer.seen.strip().split(b"\n\n")[-1].removeprefix(b"data: "))
    assert last["state"]["stage"] == "finished"
    assert last["state"]["pool"]["committed"] == last["state"]["pool"]["total"] > 0
    assert [row["device"] for row in last["state"]["learners"]] == ["cpu"]
    with pytest.raises(OSError):
        http.client.HTTPConnection("127.0.0.1", viewer.port, timeout=5).connect()


def test_a_run_that_fails_takes_its_page_along(
    run: Run, prep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    viewer = Viewer(monkeypatch)
    given = ["train", prep, "--out", tmp_path / "run", "--watch", "--strategy", "nonsense"]
    status, _, error = run(*given, *QUICK)
    assert status == 2 and is_one_line(error, "nonsense")
    viewer.join()
    assert threading.active_count() == 1 or not [
        thread for thread in threading.enumerate() if thread.name == "http"
    ]


def test_what_cannot_be_watched_is_one_line(run: Run, tmp_path: Path) -> None:
    status, _, error = run("watch", tmp_path / "nowhere")
    assert status == 2 and is_one_line(error, "nowhere is not a run: no such directory")
    (tmp_path / "run").mkdir()
    status, _, error = run("watch", tmp_path / "run")
    assert status == 2 and is_one_line(error, "neither config.toml nor metrics.jsonl")
    (tmp_path / "run" / "metrics.jsonl").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, _, error = run("watch", tmp_path / "run", "--port", port)
    assert status == 2 and is_one_line(error, f"port {port}", "in use", "choose another")
    status, _, error = run("watch", tmp_path / "run", "--address", "no.such.host.invalid")
    assert status == 2 and is_one_line(error, "no.such.host.invalid")
    status, _, error = run("watch", tmp_path / "run", "--address", "192.0.2.1")
    assert status == 2 and is_one_line(error, "192.0.2.1 is no address of this machine")


def test_every_command_has_help(run: Run) -> None:
    commands = (
        "demo",
        "synthesize",
        "prepare",
        "train",
        "decode",
        "launch",
        "compare",
        "bench",
        "report",
        "watch",
        "doctor",
    )
    for command in commands:
        status, text, _ = run(command, "--help")
        assert status == 0
        assert "Usage" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "NOWHERE"], ["NOWHERE"]),
        (["train"], ["prepare"]),
        (["train", "PREP", "--set", "rate.strat=1"], ["rate.strat", "rate.start"]),
        (["train", "PREP", "--strategy", "averagin"], ["averagin", "'averaging'"]),
        (["train", "PREP", "--set", "strategy.evry=1", "--strategy", "averaging"], ["evry"]),
        (["train", "PREP", "--learners", "0"], ["learners"]),
        (["train", "PREP", "--learners", "5000"], ["5000", "minibatches"]),
        (["train", "PREP", "--model", "dmn"], ["dmn", "dnn"]),
        (["train", "PREP", "--optimizer", "ng-sdg"], ["optimizer", "ng-sgd"]),
        (["train", "PREP", "--set", "natural_gradient.rank_in=0"], ["natural_gradient.rank_in"]),
        (["train", "PREP", "--cluster", "ray://nowhere:1"], ["--cluster", "Ray client"]),
        (["train", "PREP", "--strategy", "solo", "--learners", "2"], ["solo", "2"]),
        (["launch", "nowhere.py"], ["nowhere.py"]),
        (["launch", "-m", "../x"], ["../x", "the name of a module"]),
        (["launch", "FRAMES"], ["no Python script"]),
        (["train", "--resume"], ["not a run: no such directory"]),
        (["train", "PREP", "--learners", "9" * 20], ["at most 999999999"]),
        (["prepare", "--frames", "TEXT", "--out", "OUT"], ["no .npz file"]),
        (["report", "NOWHERE"], ["NOWHERE"]),
        (["compare", "NOWHERE", "--strategies", "averaging"], ["NOWHERE"]),
        (["compare", "PREP", "--strategies", "averagin"], ["averagin", "'averaging'"]),
        (["compare", "PREP", "--strategies", "averaging"], ["1 held-out speaker"]),
        (["compare", "PREP", "--strategies", "averaging", "--rates", "0"], ["--rates"]),
        (["prepare", "--frames", "NOWHERE", "--out", "OUT"], ["NOWHERE"]),
        (["prepare", "--out", "OUT"], ["DATA", "--frames"]),
        (["prepare", "NOWHERE", "--out", "OUT"], ["--lexicon"]),
        (["prepare", "NOWHERE", "--lexicon", "NOWHERE", "--out", "OUT"], ["NOWHERE"]),
        (["decode", "NOWHERE", "NOWHERE", "--out", "OUT"], ["NOWHERE", "prepare DATA"]),
        (["decode", "PREP", "NOWHERE", "--out", "OUT"], ["cannot decode"]),
    ],
)
def test_bad_input_is_one_line(
    run: Run, prep: Path, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    places = {"PREP": str(prep), "NOWHERE": str(tmp_path / "NOWHERE"), "OUT": str(tmp_path / "o")}
    places |= {"FRAMES": str(prep / "frames.npy"), "TEXT": str(prep / "prep.json")}
    arguments = [places.get(a, a) for a in arguments]
    if arguments[0] in ("train", "compare"):
        arguments += ["--out", str(tmp_path / "run")]
    status, _, error = run(*arguments)
    assert status == 2
    assert is_one_line(error, *words), error


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "LONG"],
        ["watch", "LONG"],
        ["export", "LONG", "--out", "OUT"],
        ["decode", "LONG", "LONG", "--out", "OUT"],
        ["train", "LONG", "--out", "OUT"],
        ["train", "PREP", "--out", "OUT", "--init", "LONG"],
        ["compare", "LONG", "--strategies", "averaging", "--out", "OUT"],
        ["prepare", "--frames", "LONG", "--out", "OUT"],
        ["launch", "LONG"],
    ],
)
def test_a_path_that_cannot_be_looked_at_is_one_line(
    run: Run, prep: Path, tmp_path: Path, arguments: list[str]
) -> None:
    places = {"PREP": str(prep), "LONG": "x" * 300, "OUT": str(tmp_path / "out")}
    status, _, error = run(*[places.get(a, a) for a in arguments])
    assert status == 2
    assert is_one_line(error, "x" * 300, "File name too long"), error


@pytest.mark.parametrize(("number", "is_told"), [(errno.EACCES, True), (errno.ENOENT, False)])
def test_a_folder_of_somebody_else_is_one_line_and_a_bug_is_not(
    run: Run, monkeypatch: pytest.MonkeyPatch, number: int, is_told: bool
) -> None:
    def fail(path: Path) -> bool:
        raise OSError(number, "no reason", str(path))

    monkeypatch.setattr(Path, "is_file", fail)
    if is_told:
        assert run("launch", "s.py") == (2, "", "unisono: cannot use s.py: no reason\n")
    else:
        with pytest.raises(FileNotFoundError):
            run("launch", "s.py")


def test_a_torn_prep_is_one_line(run: Run, prep: Path, tmp_path: Path) -> None:
    torn = tmp_path / "torn"
    torn.mkdir()
    for file in prep.iterdir():
        data = file.read_bytes()
        (torn / file.name).write_bytes(data[:-100] if file.name == "frames.npy" else data)
    status, _, error = run("train", torn, "--out", tmp_path / "run")
    assert status == 2
    assert is_one_line(error, "frames.npy"), error


def test_an_out_that_exists_is_refused(run: Run, prep: Path, tmp_path: Path) -> None:
    status, _, error = run("train", prep, "--out", tmp_path)
    assert status == 2
    assert is_one_line(error, str(tmp_path), "--resume"), error


def test_a_loss_that_is_never_finite_is_one_line(run: Run, prep: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    unbounded = ["rate.start=1e30", "rate.max_change=0", "rate.retries=0"]
    sets = [word for key in unbounded for word in ("--set", key)]
    status, _, error = run("train", prep, "--out", out, *QUICK, *sets)
    assert status == 2
    assert is_one_line(error, "not finite", "learning rate"), error


@pytest.mark.parametrize("optimizer", ["sgd", "ng-sgd"])
@pytest.mark.parametrize("times", [8, 1000])
def test_a_rate_that_is_too_high_ends_with_a_usable_model(
    run: Run, prep: Path, tmp_path: Path, optimizer: str, times: int
) -> None:
    out = tmp_path / "run"
    rate = ["--optimizer", optimizer, "--set", f"rate.start={0.05 * times}"]
    status, _, error = run("train", prep, "--out", out, *QUICK, *rate)
    assert status == 0, error
    summary = RunDirectory.open(out).read_summary()
    assert summary is not None and summary.validation_logprob is not None
    assert math.isfinite(summary.validation_logprob)


def test_a_full_disk_is_told_and_training_goes_on(
    run: Run, prep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    real, calls = checkpoint_files.save_file, []

    def save_file(*arguments: object) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint_files, "save_file", save_file)
    status, _, error = run("train", prep, "--out", out, *QUICK, "--set", "checkpoint.every=512")
    assert status == 0, "training goes on"
    assert is_one_line(error, "No space left on device", "earlier ones stay"), error
    assert len(calls) > 2
    assert [p for p in (out / "checkpoints").iterdir() if p.name.isdigit()]
    counts = json.loads((out / "summary.json").read_text())["minibatches"]
    assert counts["committed"] == counts["leased"]


@pytest.mark.parametrize("stays", [False, True])
def test_a_disk_that_is_full_at_the_end_does_not_cost_the_model(
    run: Run, prep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stays: bool
) -> None:
    """It is waited for; if that is in vain, the run can go on."""
    out = tmp_path / "run"
    real, refused = directory._replace, []

    def replace(path: Path, data: bytes) -> None:
        if path.name == "model.safetensors" and (stays or not refused):
            refused.append(path)
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, data)

    monkeypatch.setattr(files, "_RETRY_S", 0.001)
    monkeypatch.setattr(directory, "_replace", replace)
    words = ["train", prep, "--out", out, *QUICK, "--set", "validation.enabled=false"]
    status, _, error = run(*words, "--set", f"timeout_s={0.01 if stays else 60.0}")
    path = out / "model.safetensors"
    if stays:
        assert status == 2 and len(refused) > 1
        last = f"unisono: cannot write {path}: No space left on device; make room, and go on with"
        assert error.splitlines()[-1] == f"{last} --resume"
        monkeypatch.setattr(directory, "_replace", real)
        status, _, error = run("train", "--out", out, "--resume")
    else:
        assert error.splitlines()[-1] == f"unisono: {path} is written now"
    assert status == 0 and path.is_file(), error


def test_report_of_two_runs(
    run: Run, prep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        assert run("train", prep, "--out", name, *QUICK)[0] == 0
    status, text, _ = run("report", "a", "b")
    assert status == 0
    assert "report.html" in text
    assert "<svg" in (tmp_path / "report.html").read_text()


def test_a_terminal_that_cannot_show_a_word_ends_nothing(
    prep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="latin-1"))
    monkeypatch.setattr(sys, "argv", ["unisono", "export", str(prep), "--out", f"{tmp_path}/ž"])
    with pytest.raises(SystemExit) as end:
        main()
    sys.stdout.flush()
    assert end.value.code == 0
    assert b"\\u017e" in shown.getvalue()
