"""``unisono train``: a run from its configuration to its summary and report."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from unisono.config import Config, ObjectiveChoice, dump
from unisono.data import Part, Prep, long_enough
from unisono.errors import Diverged, ProcessLost, UserError
from unisono.fabric import Address
from unisono.fabric.limits import require_files
from unisono.fabric.local.background import now
from unisono.fabric.local.child_processes import can_fork
from unisono.launch.control import single_control
from unisono.launch.coordinator_main import Events, outcome_of
from unisono.launch.learner_job import Training
from unisono.launch.local import Launch, Outcome
from unisono.launch.ray_cluster import ClusterRun
from unisono.launch.ray_engine import cores_for, entered, gpus_for, living_nodes
from unisono.launch.room import check_memory, check_range, warn_of_crowd, warn_of_shared_gpus
from unisono.learner.placement import SingleProcess, at_placement
from unisono.report.report import write_report
from unisono.runs.directory import Earlier, RunDirectory, write_atomically
from unisono.runs.metrics import began_at, since_resumption
from unisono.runs.summary import (
    Exchanges,
    LinkTraffic,
    Minibatches,
    Slowest,
    Staleness,
    Summary,
)
from unisono.runs.tracking import Tracking, find_tracker
from unisono.strategies.base import Sharding, check_servers, describe
from unisono.strategies.every import AUTO, format_schedule
from unisono.strategies.registry import make
from unisono.training.builders import (
    choose_device,
    committed_examples,
    open_data,
    positions_of,
    shape_of,
)
from unisono.training.decoding_assets import save_decoding_assets
from unisono.training.display import PARENT_SHOWS, Display, EventReaders
from unisono.training.divergence import Recovery
from unisono.training.helpers import check_processes
from unisono.training.initial_model import read_initial
from unisono.training.kaldi.recipe import check_recipe, check_rounds
from unisono.training.link_precision import decide_link_precision
from unisono.training.model_card import write_model_card
from unisono.training.precision import check_precision
from unisono.training.rates import make_schedule
from unisono.training.resumption import check_resumable
from unisono.training.sources import read_before_forks
from unisono.training.worker import Worker

Watch = Callable[[dict[str, Any]], None]
"""Looks at the events of a run; raises ``Diverged``."""
Attempt = Callable[[RunDirectory, Config, bool, float | None, Watch], dict[str, Any]]


def train(
    config: Config,
    out: Path,
    *,
    resume: bool = False,
    began: float | None = None,
    forks: bool = False,
) -> Summary:
    """Trains; writes everything that a run holds.

    ``began`` is when the run's clock is at 0, by the monotonic clock; by default now. On a cluster
    it is when the coordinator has started. With ``forks`` learners that compute on CPUs may be
    forks of this process, which has done nothing else before.

    Raises:
        UserError: bad input, or a run that failed.
        Diverged: a run that diverged again and again.
    """
    check(config)
    if config.cluster:
        with entered(config.cluster) as ray:
            config = _with_threads(config, ray)
            several = len({node.host for node in living_nodes(ray)}) > 1
            config = decide_link_precision(config, out, resume=resume, several_hosts=several)
            return _train_with(partial(_train_on_cluster, ray), config, out.resolve(), resume, None)
    config = decide_link_precision(config, out, resume=resume, several_hosts=False)
    began = now() if began is None else began
    if config.learner_range[1] + config.servers == 1:
        return _train_with(_train_alone, config, out, resume, began)
    forks = forks and choose_device(config, 0).type == "cpu"
    if forks:
        torch.set_num_threads(1)
    return _train_with(partial(_train_together, forks), config, out, resume, began)


def _train_with(
    attempt: Attempt, config: Config, out: Path, resume: bool, began: float | None
) -> Summary:
    """Trains until an attempt does not diverge, each from where the last one was good."""
    with made(out, config, resume=resume) as run:
        recovery = Recovery(run, config, resume=resume)
        diverges = recovery.watch if config.rate.retries else lambda event: None
        with tracked(config, run) as track:

            def watch(event: dict[str, Any]) -> None:
                track(event)
                diverges(event)

            resumed = resume and bool(run.read_metrics())
            while True:
                note_start(run, config, 0.0 if began is None else now() - began, resumed=resumed)
                try:
                    outcome = attempt(run, config, resume, began, watch)
                    break
                except Diverged as error:
                    config, resume, resumed = recovery.go_back(error), True, False
        return conclude(run, config, recovery.whole(outcome))


@contextmanager
def tracked(config: Config, run: RunDirectory) -> Iterator[Watch]:
    """Tells the tracker of the configuration, if there is one."""
    if not config.tracking:
        yield lambda event: None
        return
    say = partial(print, file=sys.stderr, flush=True)
    with contextlib.closing(Tracking(find_tracker(config.tracking), run, say)) as tracking:
        yield tracking


@contextmanager
def made(out: Path, config: Config, *, resume: bool) -> Iterator[RunDirectory]:
    """The run's directory, which nobody else trains meanwhile.

    If the run fails before it trains, all is as it was before. So the corrected command is not
    refused because of the first one, and a later ``--resume`` does not go on with settings that
    were refused.
    """
    run = RunDirectory(out)
    with ExitStack() as stack:
        is_begun = resume and run.config.is_file()
        if is_begun:
            stack.enter_context(run.locked())
            check_resumable(run, config)
        initial = None
        if config.init and not (resume and _has_initial(run, config)):
            initial = read_initial(config)
        is_new = not os.path.lexists(out)
        earlier = Earlier.of(run)
        RunDirectory.create(out, config, resume=resume)
        if not is_begun:
            stack.enter_context(run.locked())
        try:
            if initial is not None:
                write_atomically(run.initial_model, save(initial))
            yield run
        except Exception:
            if is_new:
                run.remove_untrained()
            elif earlier is not None:
                earlier.put_back()
            raise


def _has_initial(run: RunDirectory, config: Config) -> bool:
    """Whether a run keeps the model of `config.init` already."""
    return run.initial_model.is_file() and run.read_config().init == config.init


def conclude(run: RunDirectory, config: Config, outcome: dict[str, Any]) -> Summary:
    """Writes what a run holds at its end."""
    if not run.model.is_file():
        raise UserError(f"the run ended without a model: go on with --resume --out {run.path}")
    prep = open_data(config)
    save_decoding_assets(run, prep)
    record_pace(run, config)
    summary = summarise(run, config, outcome)
    run.write_summary(summary)
    write_model_card(run, config, prep, summary)
    write_report([run.path], run.report)
    return summary


def record_pace(run: RunDirectory, config: Config) -> None:
    """Puts a pace that was chosen by measurement into config.toml, so that the run can be repeated.

    Only static sharding promises the same bytes; otherwise the choices stay events.
    """
    strategy = make(config.strategy_name, config.strategy_options)
    if getattr(strategy, "sharding", None) is not Sharding.STATIC:
        return
    chosen: list[tuple[int, int]] = []
    for event in run.read_metrics():
        if event["event"] == "pace":
            # A run that went back, or was resumed, has chosen anew from that round on.
            chosen = [pair for pair in chosen if pair[0] < event["round"]]
            chosen.append((event["round"], event["minibatches"] * config.minibatch))
    if chosen and getattr(strategy, "every", None) == AUTO:
        options = {**config.strategy, "name": strategy.name, "every": format_schedule(chosen)}
        repeatable = config.model_copy(update={"strategy": options})
        write_atomically(run.config, dump(repeatable).encode())


def check(config: Config) -> None:
    """Finds what is wrong before anything is started."""
    if not config.prep:
        raise UserError("no prepared data: give the folder that `unisono prepare` made")
    strategy = make(config.strategy_name, config.strategy_options)
    make_schedule(config)
    if config.tracking:
        find_tracker(config.tracking)
    check_recipe(config)
    learners = config.learner_range[1]
    if not config.cluster:
        check_range(*config.learner_range)
        check_precision(config.precision, choose_device(config, 0))
    if strategy.name == "solo" and learners > 1:
        raise UserError(f"solo is for one learner, not for {learners}: choose another --strategy")
    check_processes(config)
    if config.servers:
        check_servers(strategy)
    prep = open_data(config)
    shape_of(config, prep)
    if config.validation.wanted and not prep.frames_of(Part.HELDOUT):
        raise UserError(
            f"PREP {prep.path} holds no speaker out to check the model on: train with "
            "--validation none, or prepare it with some"
        )
    if config.validation.wanted and config.objective is ObjectiveChoice.CTC:
        long_enough(prep, Part.HELDOUT, config.network.subsampling)
    check_rounds(config, prep.frames_of(Part.TRAIN))
    minibatches = positions_of(config, prep).total
    if minibatches < learners:
        raise UserError(
            f"{learners} learners and only {minibatches} minibatches: use fewer learners or "
            "smaller minibatches"
        )
    if not config.cluster:
        check_memory(learners, config.processes_per_learner, config.servers)
        require_files(learners + config.servers)
    elif config.servers:
        raise UserError(
            "--servers does not work on Ray clusters: start the run without --cluster, or leave "
            "--servers out, and learners hold the shards"
        )


def note_start(
    run: RunDirectory,
    config: Config,
    time: float,
    *,
    resumed: bool = False,
    simulated: bool = False,
) -> None:
    """The first event of a run, and of each resumption, whose clock begins at 0 again."""
    strategy = make(config.strategy_name, config.strategy_options)
    lines = describe(strategy, config.first_learners)
    with contextlib.closing(Events(run.metrics)) as events:
        about = {"lines": lines, "simulated": simulated, "resumed": resumed}
        events({"event": "start", "time": time, "learner": None, **about})


def _train_alone(
    run: RunDirectory, config: Config, resume: bool, began: float | None, watch: Watch
) -> dict[str, Any]:
    events = Events(run.metrics)
    found: list[Diverged] = []
    with Display() as display:

        def sink(event: dict[str, Any]) -> None:
            events(event)
            display(event)
            try:
                watch(event)
            except Diverged as error:
                found.append(error)
                raise

        try:
            with single_control(run.control, display.say) as requests:
                placement = SingleProcess(
                    sink=sink, timeout=config.timeout_s, began=began, requests=requests
                )
                with at_placement(placement):
                    Worker(run, resume=resume).run()
        except ProcessLost as lost:
            raise UserError(f"{lost}; go on from a checkpoint with --resume") from None
        finally:
            events.close()
    if found:
        raise found[0]
    assert placement.service is not None
    return outcome_of(placement.service.state)


def _train_together(
    forks: bool,
    run: RunDirectory,
    config: Config,
    resume: bool,
    began: float | None,
    watch: Watch,
) -> dict[str, Any]:
    command = [sys.executable, "-m", "unisono.training.worker", str(run.path)]
    warn_of_crowd(config.first_learners, config.processes_per_learner)
    if choose_device(config, 0).type == "cuda":
        warn_of_shared_gpus(config.first_learners, torch.cuda.device_count())
    with ExitStack() as stack:
        if forks and can_fork():
            stack.enter_context(read_before_forks(run, config))
        display = stack.enter_context(Display(prints_scores=True))
        outcome = Launch(
            command=command + (["--resume"] if resume else []),
            learners=config.first_learners,
            servers=config.servers,
            timeout=config.timeout_s,
            began=began,
            metrics=run.metrics,
            respawn=config.respawn,
            forks=forks,
            processes=config.processes_per_learner,
            threads=config.threads_per_process(os.cpu_count() or 1),
            say=display.say,
            on_turn=EventReaders(run.metrics, display, watch),
            environment={PARENT_SHOWS: "1"},
            control=run.control,
            wanted=run.read_wanted if config.first_learners < config.learner_range[1] else None,
        ).run()
    return _result(outcome)


def _with_threads(config: Config, ray: Any) -> Config:
    """The cores of a learner on a cluster, by its machines."""
    if config.threads:
        return config
    nodes = living_nodes(ray)
    cores = cores_for(nodes, config.learner_range[0], gpus_for(config.device, nodes))
    return config.model_copy(update={"threads": cores})


def _train_on_cluster(
    ray: Any, run: RunDirectory, config: Config, resume: bool, began: float | None, watch: Watch
) -> dict[str, Any]:
    least, most = config.learner_range
    fingerprint = Prep.open(Path(config.prep)).fingerprint
    outcome = ClusterRun(
        ray=ray,
        work=Training(str(run.path), resume, config.prep, fingerprint),
        least=least,
        most=most,
        cores=config.threads,
        gpus=gpus_for(config.device, living_nodes(ray)),
        timeout=config.timeout_s,
        metrics=run.metrics,
        respawn=config.respawn,
        links=config.links,
        on_turn=EventReaders(run.metrics, watch),
    ).run()
    return _result(outcome)


def _result(outcome: Outcome) -> dict[str, Any]:
    if outcome.diverged:
        raise Diverged(outcome.reason)
    if outcome.failed:
        raise UserError(f"the run failed: {outcome.reason}")
    return outcome.coordinator


def summarise(run: RunDirectory, config: Config, outcome: dict[str, Any]) -> Summary:
    """The summary from the metrics and the coordinator's own counts, since the last resumption.

    Examples are counted by what was committed: who was killed tells no number.
    """
    events = since_resumption(run.read_metrics())
    examples = committed_examples(config, open_data(config), outcome["newly_committed"])
    begun = max(place for place, e in enumerate(events) if e["event"] == "start")
    left = [e for e in events[begun:] if e["event"] == "left"]
    served = [e for e in events[begun:] if e["event"] == "server_left"]
    checks = [e for e in events if e["event"] == "validation"]
    # Scores are told when they are done: the last one told need not be of the last model.
    last = max(checks, key=lambda e: e["global_examples"], default={})
    start_up = began_at(events, config.first_learners)
    wall = max((e["time"] for e in left), default=0.0) - start_up
    rounds = [e for e in events if e["event"] == "round"]
    servers_lost = sum(Address.parse(who).serves for who in outcome["lost"])
    links = [
        LinkTraffic(sender=f"learner {e['learner']}", **link)
        for e in left
        for link in e.get("links", ())
    ]
    links += [
        LinkTraffic(sender=f"server {e['server']}", **link) for e in served for link in e["links"]
    ]
    measured = [link for link in links if link.seconds > 0]
    return Summary(
        strategy=config.strategy_name,
        learners=config.first_learners,
        servers=config.servers,
        optimizer=config.chosen_optimizer.value,
        seed=config.seed,
        epochs=config.epochs,
        examples=examples,
        start_up_s=start_up,
        wall_s=wall,
        validation_stalled_s=sum(e.get("stalled_s", 0.0) for e in checks),
        examples_per_s=examples / wall if wall else 0.0,
        operations_per_s=_operations(config, left) * examples / wall if wall else 0.0,
        peak_memory=max((e.get("peak_memory", 0) for e in left), default=0),
        data_wait_s=sum(e["data_wait_s"] for e in left),
        train_logprob=last.get("train_logprob"),
        validation_logprob=last.get("logprob"),
        validation_accuracy=last.get("accuracy"),
        minibatches=Minibatches(**outcome["minibatches"]),
        rounds=outcome["rounds"] or len(rounds),
        exchanges=_exchanges(config, [e for e in events if e["event"] == "exchanges"]),
        bytes_sent=sum(e["bytes_sent"] for e in [*left, *served]),
        links=links,
        slowest_link=min(measured, key=lambda link: link.rate, default=None),
        slowest_learner=_slowest(events, left),
        late_learners=sorted({e["learner"] for e in events if e.get("in_a_row")}),
        rolled_back=sum(e["rolled_back"] for e in events if e["event"] == "restored"),
        staleness=_staleness(rounds),
        divergences=sum(e["event"] == "diverged" for e in run.read_metrics()),
        rate_factor=config.rate.factor,
        learners_lost=len(outcome["lost"]) - servers_lost,
        servers_lost=servers_lost,
        learners_joined=sum(e["event"] == "joined" and e["time"] > start_up for e in events),
        ended=_ended(outcome),
    )


def _operations(config: Config, left: list[dict[str, Any]]) -> int:
    """Of an example; 0 where examples are utterances, which are not equally long."""
    if config.objective is ObjectiveChoice.CTC:
        return 0
    return max((e.get("operations", 0) for e in left), default=0)


def _ended(outcome: dict[str, Any]) -> str:
    """How a run has ended that has a model."""
    if not outcome["over"]:
        return "early"
    return "stopped" if outcome["stopped"] else "finished"


def _slowest(events: list[dict[str, Any]], left: list[dict[str, Any]]) -> Slowest | None:
    """By what each trained in the time that it did not wait."""
    joined = {e["learner"]: e["time"] for e in events if e["event"] == "joined"}
    speeds = []
    for e in left:
        waited = e["data_wait_s"] + e["round_wait_s"]
        computing = e["time"] - joined.get(e["learner"], 0.0) - waited
        if computing > 0 and e["examples"]:
            rate = e["examples"] / computing
            speeds.append(Slowest(learner=e["learner"], examples_per_s=rate))
    return min(speeds, key=lambda s: s.examples_per_s) if len(speeds) > 1 else None


def _exchanges(config: Config, told: list[dict[str, Any]]) -> Exchanges | None:
    """How many of those that were due, and what that makes of the mixing that was computed."""
    due, completed = (sum(e[key] for e in told) for key in ("due", "completed"))
    if not due:
        return None
    strategy = make(config.strategy_name, config.strategy_options)
    mixing = strategy.mixing(config.first_learners)
    if mixing is None:
        return Exchanges(due=due, completed=completed)
    return Exchanges(
        due=due,
        completed=completed,
        computed=mixing.kept,
        realised=mixing.realised(completed / due),
    )


def _staleness(rounds: list[dict[str, Any]]) -> Staleness:
    """Of the rounds that have one."""
    histogram = Counter(e["staleness"] for e in rounds if "staleness" in e)
    if not histogram:
        return Staleness()
    mean = sum(stale * count for stale, count in histogram.items()) / histogram.total()
    return Staleness(mean=mean, max=max(histogram), histogram=dict(sorted(histogram.items())))
