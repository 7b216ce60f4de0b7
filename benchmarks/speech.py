"""Word error rates of several systems, over folds of speakers and over seeds.

    python benchmarks/speech.py CORPUS --out DIR [--folds 5 | --folds 0] [--seeds 3] [--jobs N]

CORPUS holds `train` and `test`, Kaldi data directories, and `lexicon.txt`. All speakers of both are
dealt into folds (`--folds 0`: each speaker is a fold); every system is prepared and trained on the
others and decodes the fold, with scale and word insertion penalty tuned on speakers held out of the
training part. The table has the error rate of all speakers, and of those of `train` alone: systems
may be chosen by the latter, since it says nothing of the test speakers. Intervals are 95% of error
rates when speakers are drawn again at random.

With `--seeds` the network with the fewest errors on the speakers of `train` is then trained so
often on the given `train` and decodes `test`: the choice is made before `test` is heard.

DIR/results.jsonl and DIR/table.txt are written as results come; no job begins `--minutes` after
the start. With the same DIR again what is missing is done: jobs that results.jsonl has are not done
again, whole preparations are used again. So `cat` puts together what two machines did, and
`--minutes 0` prints the table of what is there. With CUDA all networks are trained on the one GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from unisono.config import load
from unisono.pool.order import Order
from unisono.runs.directory import write_atomically
from unisono.speech.prepare import PrepareOptions, TyingMethod, prepare
from unisono.training.decode import DecodeOptions, decode
from unisono.training.train import train

_REPLICATIONS = 2000
GIVEN = -1
"""The fold that is the given division into train and test."""


@dataclass(frozen=True)
class System:
    """How a corpus is prepared, and the keys of the network; None: the Gaussians are decoded.

    `config` is a file of keys, which `sets` go over.
    """

    preparation: PrepareOptions
    sets: tuple[str, ...] | None = None
    config: Path | None = None


_MONO = PrepareOptions(tying=TyingMethod.NONE)
_TIED = PrepareOptions()
_SPEEDS = PrepareOptions(perturb=True)

_WIDE = ("network.context=8", "network.dropout=0.2", "rate.end=0.02")
_TDNN = Path(__file__).parents[1] / "examples" / "small_corpus.toml"
_LSTM = (
    "model=lstm",
    "optimizer=adamw",
    "network.hidden=[512,512]",
    "network.dropout=0.2",
    "minibatch=2048",
    "epochs=5",
    "rate.start=0.002",
    "rate.end=0.05",
)

SYSTEMS = {
    "monophones": System(_MONO),
    "tied states": System(_TIED),
    "dnn": System(_TIED, ()),
    "dnn, wide": System(_TIED, _WIDE),
    "dnn, three speeds": System(_SPEEDS, ()),
    "dnn, wide, three speeds": System(_SPEEDS, (*_WIDE, "epochs=6")),
    "dnn, wide, ng-sgd": System(_SPEEDS, (*_WIDE, "epochs=6", "optimizer=ng-sgd")),
    "tdnn, three speeds": System(_SPEEDS, (), _TDNN),
    "lstm, three speeds": System(_SPEEDS, _LSTM),
}


@dataclass(frozen=True)
class Job:
    """One fold of one system; `seed` is the network's."""

    system: str
    fold: int
    seed: int = 0


@dataclass
class Result:
    """What came of a job: errors and words of each speaker, and what was tuned."""

    job: Job
    speakers: dict[str, tuple[int, int]]
    facts: dict[str, float] = field(default_factory=dict)

    def line(self) -> str:
        """The result in results.jsonl."""
        job = {"system": self.job.system, "fold": self.job.fold, "seed": self.job.seed}
        return json.dumps({**job, **self.facts, "speakers": self.speakers}) + "\n"

    @classmethod
    def read(cls, line: str) -> Result:
        """The result that a line tells of; ValueError: the line is torn."""
        facts = json.loads(line)
        job = Job(facts.pop("system"), facts.pop("fold"), facts.pop("seed"))
        speakers = {who: (errors, words) for who, (errors, words) in facts.pop("speakers").items()}
        return cls(job, speakers, facts)


def results_in(file: Path) -> dict[Job, Result]:
    """The results of earlier runs; a line that was not written whole is taken out of the file."""
    found = {}
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            result = Result.read(line)
        except ValueError:
            continue
        found[result.job] = result
    write_atomically(file, "".join(result.line() for result in found.values()).encode())
    return found


def divide(corpus: Path, out: Path, folds: int) -> tuple[int, frozenset[str]]:
    """Writes the data directories of each fold; returns their number and the train speakers."""
    tables: dict[str, dict[str, str]] = {"wav.scp": {}, "text": {}, "utt2spk": {}}
    trained: set[str] = set()
    for part in ("train", "test"):
        for name, table in tables.items():
            for line in (corpus / part / name).read_text(encoding="utf-8").splitlines():
                key, _, value = line.partition(" ")
                absolute = name == "wav.scp" and not value.endswith("|")
                table[key] = str((corpus / part / value).resolve()) if absolute else value
                if name == "utt2spk" and part == "train":
                    trained.add(value)
    speakers = sorted(set(tables["utt2spk"].values()))
    folds = folds or len(speakers)
    order = Order(len(speakers), seed=0).indices(0, 0, len(speakers))
    fold_of = {speakers[who]: place % folds for place, who in enumerate(order)}
    for fold in range(folds):
        for part in ("train", "test"):
            folder = out / f"fold{fold}" / part
            folder.mkdir(parents=True, exist_ok=True)
            for name, table in tables.items():
                lines = [
                    f"{key} {value}\n"
                    for key, value in sorted(table.items())
                    if (fold_of[tables["utt2spk"][key]] == fold) == (part == "test")
                ]
                file, text = folder / name, "".join(lines)
                if file.exists() and file.read_text(encoding="utf-8") != text:
                    raise SystemExit(f"{out} has other folds or data: choose another --out")
                file.write_text(text, encoding="utf-8")
    return folds, frozenset(trained)


def data_of(corpus: Path, out: Path, fold: int) -> Path:
    """Where the train and test parts of a fold are."""
    return corpus if fold == GIVEN else out / f"fold{fold}"


def check_folds(corpus: Path, out: Path, results: Sequence[Result]) -> None:
    """Ends the program if earlier results are of other folds than these."""
    for result in results:
        file = data_of(corpus, out, result.job.fold) / "test" / "utt2spk"
        known = file.read_text(encoding="utf-8").split()[1::2] if file.exists() else []
        if not result.speakers.keys() <= set(known):
            raise SystemExit(f"{out} has results of other folds or data: choose another --out")


def prep_of(out: Path, fold: int, how: PrepareOptions) -> Path:
    """Where a fold is prepared in a certain way; systems with the same way share it."""
    kind = how.tying.value + ("-speeds" if how.perturb else "")
    return out / f"prep-{fold}-{kind}"


def make_prep(corpus: Path, out: Path, fold: int, how: PrepareOptions) -> None:
    """Prepares a fold."""
    data = data_of(corpus, out, fold)
    log = prep_of(out, fold, how).with_suffix(".log").open("w")
    lexicon = corpus / "lexicon.txt"
    prepare(
        data / "train",
        lexicon,
        prep_of(out, fold, how),
        how,
        lambda text: print(text, file=log, flush=True),
    )


def work(corpus: Path, out: Path, job: Job, processes: int) -> Result:
    """Trains and decodes."""
    system = SYSTEMS[job.system]
    place = prep_of(out, job.fold, system.preparation)
    name = f"{job.system.replace(' ', '-').replace(',', '')}-{job.fold}-{job.seed}"
    facts = {}
    begun = time.monotonic()
    for half_done in (f"run-{name}", f"decoded-{name}"):
        shutil.rmtree(out / half_done, ignore_errors=True)
    if system.sets is not None:
        flags = {"prep": str(place.resolve()), "seed": job.seed}
        run = out / f"run-{name}"
        with run.with_suffix(".log").open("w") as log, redirect_stdout(log):
            summary = train(load(system.config, [*system.sets, "threads=1"], flags), run)
        place = run
        facts["logprob"] = summary.validation_logprob or 0.0
        facts["accuracy"] = summary.validation_accuracy or 0.0
        facts["train_s"] = time.monotonic() - begun
    data = data_of(corpus, out, job.fold) / "test"
    score = decode(place, data, out / f"decoded-{name}", DecodeOptions(processes=processes), _quiet)
    assert score is not None
    chosen = json.loads((out / f"decoded-{name}" / "score.json").read_text())
    facts["scale"], facts["penalty"] = chosen["acoustic_scale"], chosen["word_insertion_penalty"]
    facts["tuning"] = chosen["tuning"]["errors"] / max(chosen["tuning"]["words"], 1)
    facts["all_s"] = time.monotonic() - begun
    errors = {who: (own.total, own.words) for who, own in score.speakers.items()}
    return Result(job, errors, facts)


def _quiet(_: str) -> None:
    return


def rate(counts: Sequence[tuple[int, int]]) -> float:
    """Errors a word, in percent."""
    return 100 * sum(e for e, _ in counts) / max(sum(w for _, w in counts), 1)


def interval(counts: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """95% of the rates when speakers are drawn again; errors may be differences of errors."""
    table = np.array(counts, dtype=np.float64)
    chosen_rows = np.random.default_rng(0).integers(len(table), size=(_REPLICATIONS, len(table)))
    sums = table[chosen_rows].sum(1)
    low, high = np.percentile(100 * sums[:, 0] / np.maximum(sums[:, 1], 1), [2.5, 97.5])
    return float(low), float(high)


def merged(results: Sequence[Result], system: str) -> dict[str, tuple[int, int]]:
    """The errors and words of each speaker over the folds of a system."""
    own: dict[str, tuple[int, int]] = {}
    for result in results:
        if result.job.system == system and result.job.fold != GIVEN:
            own |= result.speakers
    return own


def table(results: Sequence[Result], trained: frozenset[str]) -> list[str]:
    """The systems, the best first, and the seeds on the given division."""
    lines = []
    for system in SYSTEMS:
        own = merged(results, system)
        if not own:
            continue
        mine = [r for r in results if r.job.system == system and r.job.fold != GIVEN]
        known = [count for who, count in own.items() if who in trained]
        low, high = interval(list(own.values()))
        tuned = np.mean([r.facts["tuning"] for r in mine])
        accuracy = np.mean([r.facts.get("accuracy", np.nan) for r in mine])
        seconds = np.mean([r.facts["all_s"] for r in mine])
        lines.append(
            (
                rate(list(own.values())),
                f"{system:24} {rate(list(own.values())):6.2f} ({low:5.2f} to {high:5.2f}) "
                f"{rate(known):9.2f} {100 * tuned:8.2f} {100 * accuracy:8.2f} "
                f"{sum(w for _, w in own.values()):7} {len(mine):5} {seconds:7.0f}",
            )
        )
    head = (
        f"{'system':24} {'WER %':>6} {'95% by speakers':>17} {'of train':>8} {'held out':>8} "
        f"{'frames %':>8} {'words':>7} {'folds':>5} {'s each':>7}"
    )
    texts = [head, *(text for _, text in sorted(lines))]
    seeds = [r for r in results if r.job.fold == GIVEN]
    for result in sorted(seeds, key=lambda r: (r.job.system, r.job.seed)):
        counts = list(result.speakers.values())
        texts.append(
            f"given test, {result.job.system}, seed {result.job.seed}: {rate(counts):.2f}%, "
            f"scale {result.facts['scale']:.3f}, penalty {result.facts['penalty']:+.1f}, "
            f"held out {100 * result.facts['tuning']:.2f}%"
        )
    for system in sorted({r.job.system for r in seeds}):
        rates = [rate(list(r.speakers.values())) for r in seeds if r.job.system == system]
        texts.append(
            f"given test, {system}, mean of {len(rates)} seeds: {float(np.mean(rates)):.2f}%"
        )
    return texts


def paired_lines(results: Sequence[Result], chosen: str) -> list[str]:
    """How many more errors the others make than the chosen one on the speakers that both heard."""
    lines, best = [], merged(results, chosen)
    for system in SYSTEMS:
        own = merged(results, system)
        both = sorted(own.keys() & best.keys())
        if system == chosen or not both:
            continue
        more = [(own[who][0] - best[who][0], own[who][1]) for who in both]
        low, high = interval(more)
        lines.append(
            f"{system:24} {rate([own[who] for who in both]):6.2f} against "
            f"{rate([best[who] for who in both]):6.2f}: {rate(more):+6.2f} "
            f"({low:+5.2f} to {high:+5.2f}), {len(both)} speakers"
        )
    return [f"the same speakers, {chosen} and others:", *lines] if lines else []


def speaker_lines(results: Sequence[Result]) -> list[str]:
    """The rate of each speaker by each system, where each was a fold."""
    lines = []
    for system in SYSTEMS:
        own = merged(results, system)
        folds = sum(r.job.system == system and r.job.fold != GIVEN for r in results)
        if own and len(own) == folds:
            rates = ", ".join(f"{who} {rate([count]):.1f}%" for who, count in sorted(own.items()))
            lines.append(f"{system}: {rates}")
    return lines


def best_network(results: Sequence[Result], trained: frozenset[str]) -> str | None:
    """The network with the fewest errors on the speakers of train; it must have all folds."""
    most = max((len(merged(results, name)) for name in SYSTEMS), default=0)
    rates = {}
    for name, system in SYSTEMS.items():
        own = merged(results, name)
        if system.sets is not None and own and len(own) == most:
            rates[name] = rate([count for who, count in own.items() if who in trained])
    return min(rates, key=lambda name: rates[name]) if rates else None


@dataclass(frozen=True)
class Task:
    """A fold to prepare (`job` None), or a job that needs it prepared."""

    fold: int
    how: PrepareOptions
    job: Job | None = None


class Bench:
    """Does tasks in their order, as many at a time as there are cores for them."""

    def __init__(self, corpus: Path, out: Path, options: argparse.Namespace) -> None:
        self._corpus, self._out = corpus, out
        self._options = options
        self._begun = time.monotonic()
        self._pool = ProcessPoolExecutor(options.jobs, get_context("spawn"))
        self._folds, self._trained = divide(corpus, out, options.folds)
        self._done = results_in(out / "results.jsonl")
        check_folds(corpus, out, list(self._done.values()))
        self._made = {place for place in out.glob("prep-*") if place.is_dir()}

    def run(self) -> None:
        """All folds of all systems, then the seeds."""
        names = self._options.systems.split("; ") if self._options.systems else list(SYSTEMS)
        tasks, last = [], []
        for name in names:
            how, network = SYSTEMS[name].preparation, SYSTEMS[name].sets is not None
            tasks += self._missing(how, [Job(name, fold) for fold in range(self._folds)])
            if network and self._options.seeds:
                last.append(Task(GIVEN, how))
        self._do([*tasks, *last], 1, self._options.minutes)
        chosen = best_network(self._results(), self._trained)
        if self._options.seeds and chosen is not None:
            self._say(f"chosen by the speakers of train: {chosen}")
            seeds = [Job(chosen, GIVEN, seed) for seed in range(self._options.seeds)]
            tasks = self._missing(SYSTEMS[chosen].preparation, seeds)
            self._do(tasks, max(1, self._options.jobs // len(seeds)), math.inf)
        self._pool.shutdown()
        self._write_table()

    def _results(self) -> list[Result]:
        return list(self._done.values())

    def _missing(self, how: PrepareOptions, jobs: Sequence[Job]) -> list[Task]:
        """What those jobs need that are not done, then they themselves."""
        left = [job for job in jobs if job not in self._done]
        return [Task(job.fold, how) for job in left] + [Task(job.fold, how, job) for job in left]

    def _do(self, tasks: Sequence[Task], cores: int, minutes: float) -> None:
        """Does tasks, each job on so many cores; none begins later than that."""
        waiting, free = list(dict.fromkeys(tasks)), self._options.jobs
        running: dict[Future[Result | None], tuple[Task, int]] = {}
        while True:
            late = time.monotonic() - self._begun > 60 * minutes
            for task in [] if late else list(waiting):
                place = prep_of(self._out, task.fold, task.how)
                need = min(self._options.prepare if task.job is None else cores, self._options.jobs)
                if (task.job is None) == (place in self._made) or need > free:
                    continue
                waiting.remove(task)
                free -= need
                running[self._begin(task, need)] = task, need
            if not running:
                break
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                task, need = running.pop(future)
                free += need
                self._take(future, task)
        left = [task for task in waiting if task.job is not None]
        if left:
            self._say(f"{len(left)} jobs were left out")

    def _begin(self, task: Task, processes: int) -> Future[Result | None]:
        if task.job is not None:
            return self._pool.submit(work, self._corpus, self._out, task.job, processes)
        how = replace(task.how, processes=processes)
        return self._pool.submit(make_prep, self._corpus, self._out, task.fold, how)

    def _take(self, future: Future[Result | None], task: Task) -> None:
        try:
            result = future.result()
        except Exception as error:  # a job that fails must not take the others with it
            self._say(f"{task} failed: {error}")
            return
        if task.job is None:
            self._made.add(prep_of(self._out, task.fold, task.how))
            self._say(f"prepared {prep_of(self._out, task.fold, task.how).name}")
        elif result is not None:
            job = result.job
            self._done[job] = result
            with (self._out / "results.jsonl").open("a") as file:
                file.write(result.line())
            self._say(f"{job.system}, fold {job.fold}, seed {job.seed}: {_brief(result)}")
            self._write_table()

    def _write_table(self) -> None:
        results = self._results()
        lines = [*table(results, self._trained), "", *speaker_lines(results)]
        chosen = best_network(results, self._trained)
        if chosen is not None:
            lines += paired_lines(results, chosen)
        (self._out / "table.txt").write_text("\n".join(lines) + "\n")

    def _say(self, text: str) -> None:
        print(f"[{(time.monotonic() - self._begun) / 60:5.1f} min] {text}", flush=True)


def _brief(result: Result) -> str:
    facts = ", ".join(f"{name} {value:.3g}" for name, value in result.facts.items())
    return f"{rate(list(result.speakers.values())):.2f}% ({facts})"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="made, or gone on with")
    parser.add_argument("--folds", type=int, default=5, help="0: each speaker")
    parser.add_argument("--seeds", type=int, default=0, help="of the best, on the given test part")
    parser.add_argument("--systems", default="", help=f"some of: {'; '.join(SYSTEMS)}")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at a time")
    parser.add_argument("--prepare", type=int, default=1, help="processes of one preparation")
    parser.add_argument("--minutes", type=float, default=600.0, help="no job begins later")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(options.corpus.resolve(), options.out.resolve(), options)
    bench.run()
    print((options.out / "table.txt").read_text())


if __name__ == "__main__":
    main()
