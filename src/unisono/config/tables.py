"""What a run was asked to do: every key of `config.toml`, with its default and its meaning."""

from __future__ import annotations

import re
from enum import Enum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

MOST = 10**12
"""Of anything that is counted: as frames, 300 years of speech."""
MOST_EPOCHS = 10**6
"""So many epochs of ``MOST`` minibatches are numbered in 64 bits."""
MOST_AHEAD = 10**4
"""Minibatches made ahead: each has a place and a message of its own from the start."""
_MOST_THREADS = 1024
"""Above the cores of any machine; of many more the system refuses some, and torch ends."""

Count = Annotated[int, Field(ge=0, le=MOST)]
Positive = Annotated[int, Field(ge=1, le=MOST)]
Share = Annotated[float, Field(ge=0, lt=1)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Plain = str | int | float | bool
Option = Plain | dict[str, Plain]

_MOST_LEARNERS = 999_999_999
_RANGE = re.compile(r"([0-9]{1,99})(?::([0-9]{1,99}))?")


class OptimizerChoice(str, Enum):
    """The optimizers that `optimizer` may name; `auto`: sgd for 1 learner, ng-sgd for more."""

    AUTO = "auto"
    SGD = "sgd"
    NG_SGD = "ng-sgd"
    ADAMW = "adamw"


class ObjectiveChoice(str, Enum):
    """What `objective` may name: what a model is trained to do."""

    STATES = "states"
    """To tell the aligned state of each frame: cross entropy."""
    CTC = "ctc"
    """To tell the phones of each utterance, whenever they are said; needs no alignment."""


class DeviceChoice(str, Enum):
    """Where a learner computes; `auto` takes a GPU where there is one."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class ComputePrecision(str, Enum):
    """What a learner computes in; `auto`: bfloat16 where the device is faster with it."""

    AUTO = "auto"
    FLOAT32 = "float32"
    TF32 = "tf32"
    BFLOAT16 = "bfloat16"


class ValidationChoice(str, Enum):
    """Which speakers a run is checked on."""

    HELDOUT = "heldout"
    NONE = "none"


class ScheduleChoice(str, Enum):
    """How the learning rate goes over a run (unisono.optim.schedules); `auto`: the strategy's."""

    AUTO = "auto"
    CONSTANT = "constant"
    EXPONENTIAL = "exponential"
    POWER = "power"
    WARMUP = "warmup"


def read_range(text: str) -> tuple[int, int]:
    """Reads `N` or `MIN:MAX`.

    Raises:
        ValueError: it is neither.
    """
    found = _RANGE.fullmatch(text)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= least <= most:
        raise ValueError("must be N or MIN:MAX with 1 <= MIN <= MAX")
    if most > _MOST_LEARNERS:
        raise ValueError(f"must be at most {_MOST_LEARNERS}")
    return least, most


DEFAULT_RATES = {
    OptimizerChoice.SGD: 0.05,
    OptimizerChoice.NG_SGD: 0.025,
    OptimizerChoice.ADAMW: 0.0005,
}
"""What each optimizer learns best with on 8 h of speech, one learner (docs/evidence.md)."""


FRAMES_AN_UTTERANCE = 256
"""With ctc, where an example is an utterance, it counts as so many in keys that count frames."""
_CTC_NETWORK = {"hidden": [512] * 4, "dropout": 0.2}
_CTC_DEFAULTS = {"model": "tdnn", "epochs": 15, "minibatch": 2 * FRAMES_AN_UTTERANCE}
"""Where ctc has other defaults: what it learned most with on an hour of speech, 2 learners
(docs/evidence/speech.md)."""


class ConfigTable(BaseModel):
    """A table of keys: unknown ones are refused, types are not guessed, nothing changes later."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class NetworkConfig(ConfigTable):
    """`[network]`: the shape of the model."""

    hidden: list[Positive] = Field(
        default=[512, 512, 512],
        description="units of each hidden layer; ctc: four of them by default",
    )
    context: Count = Field(
        default=5, description="dnn: frames on each side of the one that is classified"
    )
    dropout: Share = Field(
        default=0.0, description="share of hidden units dropped in training; ctc: 0.2 by default"
    )
    batch_norm: bool = Field(
        default=False, description="dnn, tdnn: normalise each hidden layer over the minibatch"
    )
    chunk: Positive = Field(
        default=32, description="tdnn, lstm, blstm: frames in a row that are classified together"
    )
    steps: Annotated[list[Positive], Field(min_length=1)] = Field(
        default=[1, 2, 3],
        description="tdnn: frames to a layer's neighbours each side; the last is repeated",
    )
    left: Count = Field(
        default=40, description="lstm, blstm: frames before a chunk that prepare the state"
    )
    right: Count = Field(
        default=40, description="blstm: frames behind a chunk, for the other direction"
    )
    delay: Count = Field(
        default=5, description="lstm: frames (ctc: outputs) heard after the one that is classified"
    )
    subsampling: Positive = Field(default=3, description="ctc: frames from one output to the next")
    projection: Count | None = Field(
        default=None,
        description="lstm: outputs of each layer; 0: no projection; unset: a quarter of its cells",
    )
    bottleneck: Count = Field(
        default=256, description="blstm: numbers before the output layer; 0: no bottleneck"
    )


class AugmentConfig(ConfigTable):
    """`[augment]`: SpecAugment, masks on each training utterance, drawn anew in each epoch."""

    frequency_masks: Count = Field(default=0, description="frequency masks per utterance; 0: none")
    frequency_width: Positive = Field(default=8, description="most bands of a frequency mask")
    time_masks: Count = Field(default=0, description="time masks per utterance; 0: none")
    time_width: Positive = Field(default=20, description="most frames of a time mask")
    time_share: float = Field(
        default=0.2,
        gt=0,
        le=1,
        description="most of an utterance that a time mask covers, as a share",
    )


class RateConfig(ConfigTable):
    """`[rate]`: the learning rate, a function of progress, 0..1 in data seen."""

    start: Amount = Field(
        default=0.0, description="first learning rate; 0: the optimizer's own default"
    )
    schedule: ScheduleChoice = Field(
        default=ScheduleChoice.AUTO,
        strict=False,
        description="how the learning rate goes: constant, exponential, power or warmup; auto: "
        "constant for averaged-server, else exponential",
    )
    end: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="last learning rate as a share of the first (exponential, power); unset: 0.1",
    )
    warmup: Amount = Field(
        default=0.05,
        description="epochs in which the rate rises from that of one learner to the scaled one",
    )
    scaled: bool = Field(
        default=True, description="multiply by what the strategy's rule says for so many learners"
    )
    max_change: Amount = Field(
        default=2.0,
        description="sgd: longest step in the parameters, a bound on divergence; 0: any",
    )
    factor: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="multiplies the learning rate; halved whenever a run diverges and goes back",
    )
    retries: Count = Field(
        default=3,
        description="times in a row a run that diverges goes back, without progress; 0: it ends",
    )
    momentum: Share = Field(default=0.9, description="momentum of sgd and ng-sgd")
    weight_decay: Amount = Field(default=0.0, description="weight decay")


class NaturalGradientConfig(ConfigTable):
    """`[natural_gradient]`: what ng-sgd learns of the Fisher matrix, and how far a step may go."""

    rank_in: Positive = Field(
        default=20, description="directions held one by one of a layer's inputs"
    )
    rank_out: Positive = Field(
        default=80, description="directions held one by one of a layer's output derivatives"
    )
    update_period: Positive = Field(
        default=4, description="minibatches from one update of the estimates to the next"
    )
    num_samples_history: float = Field(
        default=2000.0,
        gt=0,
        allow_inf_nan=False,
        description="rows over which the estimates remember",
    )
    alpha: Amount = Field(
        default=4.0, description="smoothing of the Fisher matrix; the larger, the more like SGD"
    )
    max_change: Amount = Field(default=0.75, description="longest step of one layer; 0: any")
    max_change_output: Amount = Field(
        default=0.75, description="longest step of the output layer; 0: any"
    )
    max_change_total: Amount = Field(
        default=2.0, description="longest step of all layers together; 0: any"
    )


class RecipeConfig(ConfigTable):
    """`[recipe]`: Kaldi's rules for rounds of averaging; see docs/howto/kaldi_recipe.md."""

    enabled: bool = Field(
        default=False, description="follow Kaldi's rules; each of those below can be turned off"
    )
    first_learners: Count = Field(
        default=0, description="learners at the start, from which they ramp up; 0: all at once"
    )
    rate_by_round: bool = Field(
        default=True, description="one learning rate a round; the last round has the final one"
    )
    divide_decay: bool = Field(
        default=True, description="divide weight decay by the number of learners"
    )
    best_first: bool = Field(
        default=True, description="the first round keeps the best learner's model alone"
    )
    gentle_first: bool = Field(
        default=True,
        description="first round: half minibatches at half the rate, max_change_total / sqrt 2",
    )
    gap: Amount = Field(
        default=1.0,
        description="leave learners out that are so much worse in log-prob a frame; 0: nobody",
    )
    dropout: str = Field(
        default="",
        description="share dropped against data seen, as 0,0@0.2,0.5@0.5,0; empty: network.dropout",
    )
    combine: Count = Field(
        default=20, description="last rounds whose models the final one is chosen from; 0: none"
    )
    statistics: bool = Field(
        default=True, description="batch norm: estimate the final model's statistics anew"
    )


class ValidationConfig(ConfigTable):
    """`[validation]`: checks of the consensus on held-out frames."""

    on: ValidationChoice = Field(
        default=ValidationChoice.HELDOUT,
        strict=False,
        description="who is checked: heldout speakers, or none: then they are trained on as well",
    )
    every: Count = Field(
        default=0, description="examples between two checks; 0: about 8 times an epoch"
    )
    examples: Count = Field(default=10000, description="held-out frames a check, at most; 0: all")
    enabled: bool = Field(default=True, description="check at all")
    halves: bool = Field(
        default=False,
        description="score two halves of the held-out speakers apart as well, for `compare`",
    )

    @property
    def wanted(self) -> bool:
        """Whether held-out speakers are needed."""
        return self.enabled and self.on is ValidationChoice.HELDOUT


class CheckpointConfig(ConfigTable):
    """`[checkpoint]`: what a killed run goes on from."""

    every: Count = Field(
        default=0, description="examples between two checkpoints; 0: up to 4 times an epoch"
    )
    keep: Positive = Field(default=2, description="newest checkpoints kept")


class LinksConfig(ConfigTable):
    """`[links]`: connections between machines; on one machine there are none."""

    interface: str = Field(
        default="",
        description="interface or address to listen on; empty: the one on the way to the others",
    )


class Config(ConfigTable):
    """The whole configuration of a run, as `config.toml` holds it."""

    prep: str = Field(default="", description="prepared data, a folder made by `unisono prepare`")
    init: str = Field(
        default="", description="run whose model training starts from; empty: random parameters"
    )
    learners: str = Field(
        default="1", description="learners: N, or MIN:MAX where they may come and go"
    )
    servers: Count = Field(
        default=0,
        description="processes that hold the shards of server, averaged-server or elastic and "
        "train nothing; 0: the learners hold them",
    )
    cluster: str = Field(
        default="", description="Ray cluster: auto or an address; empty: this machine"
    )
    model: str = Field(
        default="dnn",
        description="the network: dnn, tdnn, lstm, blstm, or one of another package; ctc: tdnn by "
        "default",
    )
    objective: ObjectiveChoice = Field(
        default=ObjectiveChoice.STATES,
        strict=False,
        description="states: the aligned state of each frame; ctc: the phones of each utterance, "
        "without alignment",
    )
    optimizer: OptimizerChoice = Field(
        default=OptimizerChoice.AUTO,
        strict=False,
        description="sgd, ng-sgd or adamw; auto: sgd for 1 learner, ng-sgd for more",
    )
    epochs: int = Field(
        default=3,
        ge=1,
        le=MOST_EPOCHS,
        description="passes over the training frames; ctc: 15 by default",
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="seed of parameters and order of data")
    minibatch: Positive = Field(
        default=256,
        description="frames a step of one learner; ctc: 256 an utterance, 512 by default",
    )
    processes_per_learner: Positive = Field(
        default=1, description="processes per learner; each computes a slice of every minibatch"
    )
    threads: int = Field(
        default=0,
        ge=0,
        le=_MOST_THREADS,
        description="cores per process; 0: cores // processes of all learners, at least 1",
    )
    device: DeviceChoice = Field(
        default=DeviceChoice.AUTO, strict=False, description="where learners compute"
    )
    precision: ComputePrecision = Field(
        default=ComputePrecision.AUTO,
        strict=False,
        description="numbers that models compute in: float32, tf32 (GPUs) or bfloat16; parameters "
        "stay float32; auto: bfloat16 where it is faster",
    )
    capture: bool = Field(
        default=True, description="on a GPU, replay training steps as CUDA graphs"
    )
    timeout_s: float = Field(
        default=10.0,
        gt=0,
        allow_inf_nan=False,
        description="seconds a silent learner is believed to live",
    )
    respawn: bool = Field(default=True, description="replace learners that die")
    tracking: str = Field(
        default="",
        description="where figures go besides metrics.jsonl: tensorboard, or a tracker of another "
        "package; empty: nowhere",
    )
    prefetch: int = Field(
        default=4,
        ge=0,
        le=MOST_AHEAD,
        description="minibatches made ahead; 0: none, as where the data stays on a GPU",
    )
    network: NetworkConfig = NetworkConfig()
    augment: AugmentConfig = AugmentConfig()
    rate: RateConfig = RateConfig()
    natural_gradient: NaturalGradientConfig = NaturalGradientConfig()
    strategy: dict[str, Option] = Field(
        default={},
        description="`name` of the strategy (default: solo for 1 learner, averaging for more) "
        "and its options, checked by the strategy",
    )
    recipe: RecipeConfig = RecipeConfig()
    validation: ValidationConfig = ValidationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    links: LinksConfig = LinksConfig()

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_ctc(cls, values: object) -> object:
        if not isinstance(values, dict) or values.get("objective") != ObjectiveChoice.CTC:
            return values
        network = values.get("network", {})
        if isinstance(network, dict):
            network = {**_CTC_NETWORK, **network}
        return {**_CTC_DEFAULTS, **values, "network": network}

    @field_validator("learners", mode="before")
    @classmethod
    def _learners_are_a_range(cls, value: object) -> object:
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if isinstance(text, str):
            read_range(text)
        return text

    @property
    def learner_range(self) -> tuple[int, int]:
        """The fewest and the most learners."""
        return read_range(self.learners)

    @property
    def first_learners(self) -> int:
        """How many learners the run begins with: on one host all, on a cluster the fewest."""
        if self.recipe.enabled and self.recipe.first_learners:
            return self.recipe.first_learners
        return self.learner_range[0 if self.cluster else 1]

    @property
    def strategy_name(self) -> str:
        """The strategy, with the default filled in."""
        default = "solo" if self.learner_range[1] == 1 else "averaging"
        return str(self.strategy.get("name") or default)

    @property
    def strategy_options(self) -> dict[str, Option]:
        """The strategy's options, without its name; the recipe's rules need rounds of all."""
        options = {key: value for key, value in self.strategy.items() if key != "name"}
        if self.recipe.enabled and self.strategy_name == "averaging":
            options.setdefault("sharding", "static")
        return options

    @property
    def chosen_optimizer(self) -> OptimizerChoice:
        """The optimizer, with the default filled in.

        Averaged models learn best from natural gradients (Povey et al. 2015; docs/evidence.md);
        one learner ends best with plain SGD.
        """
        if self.optimizer is not OptimizerChoice.AUTO:
            return self.optimizer
        several = self.learner_range[1] > 1
        return OptimizerChoice.NG_SGD if several else OptimizerChoice.SGD

    @property
    def start_rate(self) -> float:
        """The first learning rate, with the optimizer's default filled in."""
        return self.rate.start or DEFAULT_RATES[self.chosen_optimizer]

    def threads_per_process(self, cores: int) -> int:
        """Returns how many cores each process uses on a machine that runs them all."""
        processes = self.learner_range[1] * self.processes_per_learner
        return self.threads or max(1, cores // processes)
