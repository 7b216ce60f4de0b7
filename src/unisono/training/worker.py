"""One learner of ``unisono train``: ``python -m unisono.training.worker RUN``."""

from __future__ import annotations

import argparse
import functools
import json
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.table import Table
from rich.text import Text
from safetensors.torch import save
from torch import Tensor, nn

from unisono.config import ComputePrecision, Config, OptimizerChoice
from unisono.coordinator.client import Abandoned
from unisono.coordinator.service import PATIENCE
from unisono.data import Part, UtteranceSource
from unisono.errors import Cause, Diverged, UserError
from unisono.fabric.local.forked import name_process
from unisono.fabric.local.stack_dump import allow_stack_dumps
from unisono.launch.exit_codes import ABANDONED, DIVERGED, exit_on_error, leave
from unisono.learner.arguments import warn_of_few_rounds
from unisono.learner.learner import Learner
from unisono.learner.placement import (
    DIRECTORY,
    LEARNER,
    SERVES,
    find_placement,
    stacks_file,
)
from unisono.learner.uncaught import install, say_once
from unisono.models import build
from unisono.optim import NaturalGradientSGD, Schedule, Switched
from unisono.output import go_on_without_output
from unisono.runs.directory import RunDirectory, write_atomically
from unisono.text import counted
from unisono.training.allocator import keep_freed_memory
from unisono.training.builders import (
    Examples,
    choose_device,
    ctc_facts,
    examples_in,
    frames_an_example,
    make_optimizer,
    open_data,
    shape_of,
    source_of,
    strategy_of,
)
from unisono.training.compiled_loss import WORTH_STEPS, CompiledLoss
from unisono.training.display import PARENT_SHOWS, show
from unisono.training.helpers import Helpers
from unisono.training.initial_model import load_initial
from unisono.training.kaldi.combination import combine, estimate_statistics, has_statistics
from unisono.training.kaldi.recipe import KaldiRecipe
from unisono.training.objective import objective_of
from unisono.training.precision import autocast, choose_precision, is_recurrent
from unisono.training.rates import make_schedule
from unisono.training.sources import Sources, inherited
from unisono.training.usage import operations, peak_memory
from unisono.training.validation import sample, score_groups
from unisono.training.validator import TIMES_AN_EPOCH, Validation, Validator
from unisono.verbosity import log_to_terminal

CHECKPOINTS_AN_EPOCH = 4
"""Where the configuration does not say how many."""
STEPS_A_CHECKPOINT = 250
"""The fewest steps of each learner from one of those to the next."""
STATISTICS = 50
"""Minibatches that batch norm's statistics are estimated from."""

Step = Callable[[Tensor, Tensor], Tensor]

log = logging.getLogger("unisono")


def schedule_of(config: Config, learners: int | None = None) -> Schedule:
    """The schedule for so many learners, by default those that the run begins with.

    While one of them trains alone at the start, it is that of a solo run.
    """
    schedule = make_schedule(config, learners)
    alone = strategy_of(config).round_plan(config.minibatch).alone
    if alone == 0:
        return schedule
    solo = make_schedule(
        config.model_copy(update={"learners": "1", "optimizer": config.chosen_optimizer})
    )
    return Switched(first=solo, until=alone, rest=schedule)


def checkpoint_interval(config: Config, epoch: int) -> int:
    """Examples between two checkpoints of a run whose epoch has so many.

    By default four an epoch, so that a run that diverges or is killed loses little; but each after
    ``STEPS_A_CHECKPOINT`` steps of every learner, so that they cost little where data is scarce.
    """
    if config.checkpoint.every:
        return examples_in(config, config.checkpoint.every)
    steps = STEPS_A_CHECKPOINT * examples_in(config, config.minibatch) * config.first_learners
    return min(epoch, max(epoch // CHECKPOINTS_AN_EPOCH, steps))


@dataclass(frozen=True)
class Simulated:
    """What the learners of a simulated run have in common: one process, which holds the data once.

    Attributes:
        clock: virtual seconds.
        sources: the examples of each part of the data, once somebody has read it.
    """

    clock: Callable[[], float]
    sources: Sources = field(default_factory=dict)


class Worker:
    """Trains the model of a run's configuration, as one of its learners.

    ``local_number`` is this learner's place among those on its machine; there are ``local_count``
    of them where others are elsewhere. One that ``serves`` holds shards and trains
    nothing. With ``simulated`` it prints nothing, and keeps no checkpoints.
    """

    def __init__(
        self,
        run: RunDirectory,
        *,
        resume: bool,
        local_number: int = 0,
        local_count: int | None = None,
        serves: bool = False,
        simulated: Simulated | None = None,
    ) -> None:
        self._run = run
        self._simulated = simulated
        self._resume = resume
        self._config = run.read_config()
        size = self._config.processes_per_learner
        beside = (local_count or self._config.learner_range[1]) * size
        cores = max(1, (os.cpu_count() or 1) // beside)
        bound = len(os.sched_getaffinity(0))  # Open MPI gives a process one core
        torch.set_num_threads(self._config.threads or min(cores, bound))
        keep_freed_memory()
        self._serves = serves
        self._place = local_number * size
        self._helpers: Helpers | None = None
        self._device = choose_device(self._config, self._place)
        if self._serves:  # it computes nothing but updates of its shards
            torch.set_num_threads(1)
            self._device = torch.device("cpu")
        self._prep = open_data(self._config)
        self._objective = objective_of(self._config)
        self._shape = shape_of(self._config, self._prep)
        model = build(self._config.model, seed=self._config.seed, **self._shape)
        if self._config.init:
            load_initial(model, run)
        self._model = model.to(self._device)
        self._precision = ComputePrecision.FLOAT32
        if not self._serves:
            self._precision = choose_precision(self._config.precision, self._device, self._model)
        self._train = self._source(Part.TRAIN)
        checks = self._config.validation
        self._validator: Validator | None = None
        if checks.wanted and not self._serves:
            copy = build(self._config.model, seed=self._config.seed, **self._shape)
            self._heldout = self._source(Part.HELDOUT)
            self._validator = Validator(
                self._config,
                copy.to(self._device),
                self._heldout,
                self._train,
                beside,
                None if simulated is None else simulated.clock,
            )
        torch.manual_seed(self._config.seed)
        self._schedule = functools.cache(partial(schedule_of, self._config))

    def run(self) -> None:
        """Trains to the end; the learner that leads writes the model.

        Raises:
            Diverged: this learner's steps or parameters are not finite.
        """
        try:
            if self._config.processes_per_learner > 1 and not self._serves:
                self._helpers = Helpers(self._run, find_placement().number, self._place)
                self._helpers.join(self._model, self._device, self._precision)
            self._learn()
        finally:
            if self._helpers is not None:
                self._helpers.close()
            if self._validator is not None:
                self._validator.close()

    def _learn(self) -> None:
        config = self._config
        optimizer = make_optimizer(config, self._model, self._schedule().rate(0.0))
        minibatch = examples_in(config, config.minibatch)
        rules = KaldiRecipe(
            config,
            self._model,
            optimizer,
            self._schedule,
            len(self._train),
            minibatch,
            ask=self._ask,
        )
        strategy = rules.strategy(strategy_of(config))
        epoch = len(self._train)
        asked = examples_in(config, config.validation.every)
        every = asked or max(1, epoch // TIMES_AN_EPOCH)
        with Learner(
            self._model,
            optimizer,
            strategy,
            seed=config.seed,
            prefetch=self._prefetch,
            checkpoints=None if self._simulated is not None else self._run.checkpoints,
            checkpoint_every=checkpoint_interval(config, epoch),
            keep=config.checkpoint.keep,
            resume=self._resume,
            log=self._run.log(find_placement().number, "server" if self._serves else "learner"),
            quiet=True,
            reduce_gradients=(lambda: None) if self._helpers is None else self._helpers.reduce,
        ) as learner:
            torch.manual_seed(config.seed * 1000 + learner.number)
            self._announce(learner, optimizer)
            step = self._step(learner, optimizer)
            for x, y in learner.draw(self._train, config.epochs, minibatch):
                rules.begin(learner)
                for some, targets in rules.parts(x.to(self._device), y.to(self._device)):
                    rules.note(step(some, targets), targets.numel())
                rules.end(learner)
                epoch_ends = learner.every(examples=epoch)
                due = learner.every(examples=every) or (epoch_ends and not asked)
                if self._validator is not None:
                    train = epoch_ends or every >= epoch
                    self._validate(learner, self._validator, due and learner.progress < 1, train)
            self._end(learner, rules)

    def _step(self, learner: Learner, optimizer: torch.optim.Optimizer) -> Step:
        """What trains a minibatch; it returns the mean loss over its frames."""
        helpers = self._helpers

        def loss(x: Tensor, targets: Tensor) -> Tensor:
            if helpers is not None:
                return helpers.loss(x, targets, optimizer)
            with autocast(self._precision, self._device):
                return self._objective.loss(self._model, x, targets)

        if self._captures:
            return learner.capture(CompiledLoss(loss, self._model) if self._compiles else loss)

        def step(x: Tensor, targets: Tensor) -> Tensor:
            found = loss(x, targets)
            learner.step(found)
            return found.detach()

        return step

    @property
    def _captures(self) -> bool:
        """Whether steps are replayed as CUDA graphs."""
        replays = self._config.capture and self._device.type == "cuda"
        return replays and self._helpers is None and self._simulated is None

    @property
    def _compiles(self) -> bool:
        """Whether compiling pays; natural gradient and cuDNN's layers have kernels of their own."""
        config = self._config
        minibatch = examples_in(config, config.minibatch) * config.first_learners
        steps = config.epochs * len(self._train) // minibatch
        plain = config.chosen_optimizer is not OptimizerChoice.NG_SGD
        return steps >= WORTH_STEPS and plain and not is_recurrent(self._model)

    @property
    def _prefetch(self) -> int:
        """Minibatches that a thread makes ahead.

        Of data on a GPU a minibatch is a few launches; there such a thread would only take turns
        with the learner's own for the interpreter.
        """
        launched = self._train.device is not None and self._simulated is None
        return 0 if launched else self._config.prefetch

    def _source(self, part: Part) -> Examples:
        known = inherited(self._run) if self._simulated is None else self._simulated.sources
        if part not in known:
            device = self._device if self._fits(part) else None
            known[part] = source_of(self._config, self._prep, part, self._model, device)
        return known[part]

    def _fits(self, part: Part) -> bool:
        """Whether a part can stay on the GPU, beside those of the learners that share it."""
        if self._device.type != "cuda":
            return False
        needed = self._prep.frames_of(part) * self._prep.frames.shape[1] * 4
        free, _ = torch.cuda.mem_get_info(self._device)
        return bool(needed * self._config.learner_range[1] < free // 4)

    def _announce(self, learner: Learner, optimizer: torch.optim.Optimizer) -> None:
        """What is about to happen, as a table."""
        if learner.number != 0 or self._simulated is not None:
            return
        config = self._config
        parameters = sum(p.numel() for p in self._model.parameters())
        epochs = counted(config.epochs, "epoch")
        processes = config.processes_per_learner
        lines = [
            *learner.describe(),
            f"schedule  {self._schedule().describe()}",
            f"model     {config.model}, {parameters:,} parameters",
            f"device    {self._device}, computing in {self._precision.value}",
            *([f"processes {processes} a learner"] if processes > 1 else []),
            *([f"servers   {config.servers}, which hold the shards"] if config.servers else []),
            *([f"initial   the model of {config.init}"] if config.init else []),
            *self._describe_objective(),
            f"optimizer {config.chosen_optimizer.value}",
            f"data      {self._prep.frames_of(Part.TRAIN):,} frames, {epochs}",
        ]
        if isinstance(optimizer, NaturalGradientSGD):
            lines += [f"ng-sgd    {line}" for line in optimizer.describe()]
        table = Table(box=None, pad_edge=False, show_header=False)
        for label, text in (line.split(maxsplit=1) for line in lines):
            table.add_row(f"[bold]{label}[/]", Text(text))
        show(table)
        minibatch = examples_in(config, config.minibatch)
        minibatches = config.epochs * -(-len(self._train) // minibatch)
        warn_of_few_rounds(learner.strategy, learner.learners, minibatches, minibatch)

    def _describe_objective(self) -> list[str]:
        """Of CTC, and how many utterances are too short for it."""
        source, frames = self._train, self._config.network.subsampling
        if not isinstance(source, UtteranceSource):
            return []
        lines = [f"objective ctc, an output every {counted(frames, 'frame')}"]
        if source.left_out:
            everyone = len(source) + source.left_out
            lines.append(
                f"left out  {source.left_out} of {everyone} utterances: more phones than outputs"
            )
        return lines

    def _validate(self, learner: Learner, validator: Validator, due: bool, train: bool) -> None:
        """Tells of the validation that is done, and begins the one that is due."""
        can_start = due and validator.can_start(skip=not self._config.validation.every)
        if validator.ready:
            self._tell(learner, validator.take())
        if can_start:
            with learner.consensus() as model:
                validator.start(model, learner.progress, train=train)

    def _tell(self, learner: Learner, validation: Validation | None) -> None:
        if validation is None:
            return
        seen = int(validation.progress * self._config.epochs * len(self._train))
        learner.event("validation", global_examples=seen, **validation.event())
        if PARENT_SHOWS not in os.environ and self._simulated is None:
            print(validation.line(), flush=True)

    def _end(self, learner: Learner, rules: KaldiRecipe) -> None:
        if self._serves:
            sent = {"bytes_sent": learner.bytes_sent, "links": learner.links}
            learner.event("server_left", **sent)
            return
        totals = {
            "examples": learner.meter.examples,
            "data_wait_s": learner.meter.data_wait_s,
            "round_wait_s": learner.meter.round_wait_s,
            "bytes_sent": learner.bytes_sent,
            "links": learner.links,
            "rounds": learner.rounds,
            "operations": operations(self._model, frames_an_example(self._config)),
        }
        if self._simulated is None:
            totals["peak_memory"] = peak_memory(self._device)
        learner.event("left", **totals)
        if self._validator is not None:
            self._tell(learner, self._validator.take())
        if learner.is_leader:
            with learner.consensus() as model:
                if rules.states:
                    self._combine(learner, model, rules)
                if self._validator is not None:
                    self._tell(learner, self._validator.score_now(model))
                tensors = {name: t.contiguous() for name, t in model.state_dict().items()}
                self._keep(self._run.model, save(tensors))
            description = {
                "model": self._config.model,
                **self._shape,
                "context": self._config.network.context,
                "chunk": self._config.network.chunk,
                "prep": self._prep.fingerprint,
                **ctc_facts(self._config),
            }
            self._keep(self._run.model_description, json.dumps(description).encode())

    def _keep(self, path: Path, data: bytes) -> None:
        """Writes what the run was trained for: a disk that is full for a while costs time alone."""
        try:
            write_atomically(path, data, PATIENCE * self._config.timeout_s)
        except UserError as error:
            raise UserError(f"{error}; make room, and go on with --resume") from None

    def _ask(self, learners: int) -> None:
        """Asks for so many learners; where that cannot be written, again after the next round."""
        try:
            self._run.write_wanted(learners)
        except UserError as error:
            log.warning("unisono: %s", error)

    def _combine(self, learner: Learner, model: nn.Module, rules: KaldiRecipe) -> None:
        """The last rounds' models become one, by its log-prob on the held-out frames."""
        examples = examples_in(self._config, self._config.validation.examples)
        validator = self._validator
        source = self._train if validator is None else self._heldout
        group = np.zeros(len(source), dtype=np.int64) if validator is None else validator.groups

        def judge() -> float:
            scores = score_groups(self._objective, model, source, group, examples, self._device)
            return scores[0].logprob

        fresh = self._config.recipe.statistics and has_statistics(model)
        count = examples_in(self._config, self._config.minibatch)
        minibatches = sample(self._train, count, STATISTICS, self._device) if fresh else []
        prepare = partial(estimate_statistics, model, minibatches) if fresh else lambda: None
        chosen, objectives = combine(model, rules.states, judge, prepare)
        learner.event("combined", models=chosen, of=len(rules.states), logprob=max(objectives))
        print(
            f"the mean of the last {chosen} of {len(rules.states)} models: log-prob "
            f"{max(objectives):.4f}, of the last one alone {objectives[0]:.4f}",
            flush=True,
        )


def main() -> None:
    """Runs as a process of its own; errors are one line where they can be."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    serves = SERVES in os.environ
    name_process(f"{'server' if serves else 'learner'} {os.environ.get(LEARNER, '')}")
    install()
    go_on_without_output(say_once)
    log_to_terminal()
    number = int(os.environ.get(LEARNER, "0"))
    if directory := os.environ.get(DIRECTORY):  # a launcher of this machine, which may ask for them
        with suppress(OSError):  # training needs no stacks
            allow_stack_dumps(stacks_file(Path(directory), number))
    with exit_on_error():
        try:
            run = RunDirectory.open(options.run)
            Worker(run, resume=options.resume, local_number=number, serves=serves).run()
        # The process that started this one says what it does about a run that diverges.
        except Diverged:
            leave(DIVERGED)
        except Abandoned as abandoned:
            if abandoned.failure.cause is Cause.DIVERGED:
                leave(ABANDONED)
            raise


if __name__ == "__main__":
    main()
