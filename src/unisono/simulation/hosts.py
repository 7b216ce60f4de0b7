"""hosts.toml: the machines of a simulated cluster, their links, and what computing costs."""

from __future__ import annotations

import math
import reprlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import tomli_w
from pydantic import Field, ValidationError

from unisono.config.layers import TOO_DEEP
from unisono.config.tables import Amount, ConfigTable, OptimizerChoice, Positive
from unisono.errors import UserError
from unisono.simulation.fault_tables import FaultTable, StragglerTable

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

_MOST_LEARNERS = 100_000
"""On all hosts: each is simulated in full, with some 0.1 MB of memory."""
_SLOWEST, _FASTEST = 1e-3, 1e6
"""Learners speak every few seconds, of virtual time too: minibatches that take years do not end."""
MBIT = 1e6 / 8
"""Bytes a second."""

_Few = Annotated[int, Field(ge=1, le=_MOST_LEARNERS)]
Above = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Link(ConfigTable):
    """What messages cost on one way."""

    bandwidth_mbit: Above = Field(description="megabits a second")
    latency_ms: Amount = Field(description="milliseconds that each message takes besides")

    @property
    def bandwidth(self) -> float:
        """Bytes a second."""
        return self.bandwidth_mbit * MBIT

    @property
    def latency(self) -> float:
        """Seconds."""
        return self.latency_ms / 1000


class HostTable(ConfigTable):
    """`[[host]]`: one machine."""

    name: str = Field(min_length=1, description="what the machine is called")
    learners: _Few = Field(default=1, description="learners on it")
    speed: float = Field(
        default=1.0,
        ge=_SLOWEST,
        le=_FASTEST,
        description="minibatches a second, relative to others",
    )
    spread: Amount = Field(
        default=0.0,
        le=3,
        description="standard deviation of the logarithm of a minibatch's time",
    )
    contention: Amount = Field(
        default=0.0,
        le=100,
        description="how much longer a minibatch takes for each doubling of the learners on it",
    )
    count: _Few = Field(
        default=1, description="machines like this, named NAME-0, NAME-1, ...; 1: NAME"
    )
    rack: str = Field(default="", description="the [[rack]] whose uplink it uses; empty: none")
    bandwidth_mbit: Above | None = Field(
        default=None, description="of its link, each way; unset: that of [network]"
    )
    latency_ms: Amount | None = Field(
        default=None, description="of its link; unset: that of [network]"
    )
    straggler: StragglerTable | None = Field(default=None, description="when it is slow")
    deaths_per_hour: Amount = Field(default=0.0, description="mean number, at random times")
    back_after_s: Above | None = Field(
        default=None, description="mean seconds after which it is back; unset: it stays away"
    )
    partitions_per_hour: Amount = Field(default=0.0, description="mean number, at random times")
    partition_s: Above = Field(default=30.0, description="mean seconds of such a partition")

    @property
    def slowness(self) -> float:
        """How many times longer than ``minibatch_ms`` a minibatch takes here.

        Learners of one machine share caches and memory: (1 + contention log2 learners) / speed.
        """
        return (1 + self.contention * math.log2(self.learners)) / self.speed


class RackTable(Link):
    """`[[rack]]`: the uplink that hosts share for messages to other racks, each way."""

    name: str = Field(min_length=1, description="what the rack is called")


class TrainingTable(ConfigTable):
    """`[training]`: what is to be trained, where there is no PREP to tell it."""

    examples: Positive = Field(description="of one epoch")
    parameters: Positive = Field(description="of the model")
    minibatch: Positive | None = Field(
        default=None, description="examples a step of one learner; unset: that of the configuration"
    )


class Hosts(ConfigTable):
    """A cluster: its hosts, the network between them, and the costs that were measured.

    Attributes:
        training: size of the data and of the model; data that are given go before it.
        minibatch_ms: milliseconds that a minibatch takes at speed 1 for a learner alone on its
            host, by optimizer: forward, backward and the step.
        shared_memory: what messages cost between learners of one host.
        network: the links of hosts that do not say otherwise.
        rack: uplinks that hosts share.
        host: the machines.
        fault: what goes wrong, and when.
    """

    training: TrainingTable | None = None
    minibatch_ms: dict[
        Annotated[OptimizerChoice, Field(strict=False)], Annotated[Above, Field(le=1e7)]
    ] = Field(default={})
    shared_memory: Link | None = None
    network: Link = Link(bandwidth_mbit=1000.0, latency_ms=0.1)
    rack: list[RackTable] = Field(default=[])
    host: list[HostTable] = Field(min_length=1)
    fault: list[FaultTable] = Field(default=[])

    @property
    def learners(self) -> int:
        """How many there are on all hosts."""
        return sum(host.learners for host in self.host)

    @property
    def places(self) -> list[HostTable]:
        """The host of each learner."""
        return [host for host in self.host for _ in range(host.learners)]

    def host_of(self, learner: int) -> HostTable:
        """The host of a learner: they are numbered from the first host on."""
        for host in self.host:
            learner -= host.learners
            if learner < 0:
                return host
        return self.host[-1]

    def fastest(self) -> Hosts:
        """The fastest host alone, with one learner."""
        best = max(self.host, key=lambda host: host.speed)
        alone = best.model_copy(update={"learners": 1, "straggler": None})
        return self.model_copy(update={"host": [alone]}).without_faults()

    @property
    def has_faults(self) -> bool:
        """Whether anybody dies, joins late or is cut off."""
        return bool(self.fault) or any(
            host.deaths_per_hour or host.partitions_per_hour for host in self.host
        )

    def without_faults(self) -> Hosts:
        """The same where nobody dies, joins late or is cut off."""
        quiet = {"deaths_per_hour": 0.0, "partitions_per_hour": 0.0}
        hosts = [host.model_copy(update=quiet) for host in self.host]
        return self.model_copy(update={"host": hosts, "fault": []})

    def fastest_learners(self, count: int) -> Hosts:
        """The same with so many learners: the fastest hosts first, then those with faster links."""

        def rank(host: HostTable) -> tuple[float, float]:
            return host.slowness, -self.link(host).bandwidth_mbit

        chosen = []
        for host in sorted(self.host, key=rank):
            if count > 0:
                here = min(count, host.learners)
                chosen.append(host.model_copy(update={"learners": here}))
                count -= here
        return self.model_copy(update={"host": chosen})

    def link(self, host: HostTable) -> Link:
        """A host's link to the others."""
        mbit, latency = host.bandwidth_mbit, host.latency_ms
        return Link(
            bandwidth_mbit=self.network.bandwidth_mbit if mbit is None else mbit,
            latency_ms=self.network.latency_ms if latency is None else latency,
        )

    def with_costs(
        self, minibatch_ms: Mapping[OptimizerChoice, float], shared_memory: Link | None
    ) -> Hosts:
        """The same with these costs where it has none."""
        return self.model_copy(
            update={
                "minibatch_ms": {**minibatch_ms, **self.minibatch_ms},
                "shared_memory": self.shared_memory or shared_memory,
            }
        )

    def dump(self) -> str:
        """As TOML; ``read_hosts`` reads back an equal one."""
        values = self.model_dump(mode="json", exclude_none=True, exclude={"rack", "host", "fault"})
        text = tomli_w.dumps(values)
        for key, tables in (
            ("rack", self.rack),
            ("host", _together(self.host)),
            ("fault", self.fault),
        ):
            text += "".join(_dump_table(key, table) for table in tables)
        return text


def one_host(learners: int) -> Hosts:
    """All learners on one machine; raises ``UserError`` for too many."""
    _check_learners("--learners", learners)
    return Hosts(host=[HostTable(name="localhost", learners=learners)])


def read_hosts(file: Path) -> Hosts:
    """Reads hosts.toml.

    Raises:
        UserError: it cannot be read, or a key or value is wrong; the line names the key.
    """
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
        hosts = Hosts.model_validate(values)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{file} is not a TOML file: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        raise UserError(f"{file}: {_explain(error)}") from None
    except RecursionError:
        raise UserError(f"{file}: {TOO_DEEP}") from None
    _check_learners(f"{file}: all hosts", sum(host.learners * host.count for host in hosts.host))
    hosts = hosts.model_copy(update={"host": [one for host in hosts.host for one in _each(host)]})
    _check(file, hosts)
    return hosts


def _check_learners(where: str, learners: int) -> None:
    if learners > _MOST_LEARNERS:
        raise UserError(
            f"{where}: {learners} learners; at most {_MOST_LEARNERS} can be simulated: use fewer"
        )


def _each(host: HostTable) -> list[HostTable]:
    """The machines that a table with ``count`` stands for."""
    if host.count == 1:
        return [host]
    names = (f"{host.name}-{number}" for number in range(host.count))
    return [host.model_copy(update={"name": name, "count": 1}) for name in names]


def _together(hosts: Sequence[HostTable]) -> list[HostTable]:
    """The opposite of ``_each``: equal machines NAME-0, NAME-1, ... as one table."""
    together: list[HostTable] = []
    for host in hosts:
        stem, _, number = host.name.rpartition("-")
        last = together[-1] if together else None
        if last is not None and last.model_copy(update={"name": host.name, "count": 1}) == host:
            first = last.count == 1 and (last.name, number) == (f"{stem}-0", "1")
            if first or (last.count > 1 and (last.name, str(last.count)) == (stem, number)):
                together[-1] = last.model_copy(update={"name": stem, "count": last.count + 1})
                continue
        together.append(host)
    return together


def _dump_table(key: str, table: ConfigTable) -> str:
    """``[[key]]``, with a table inside it below; tomli_w would write it in one line."""
    values = table.model_dump(mode="json", exclude_defaults=True)
    inner = {name: values.pop(name) for name in list(values) if isinstance(values[name], dict)}
    below = "".join(f"[{key}.{name}]\n{tomli_w.dumps(each)}" for name, each in inner.items())
    return f"\n[[{key}]]\n{tomli_w.dumps(values)}{below}"


def _check(file: Path, hosts: Hosts) -> None:
    names = [host.name for host in hosts.host] + [rack.name for rack in hosts.rack]
    seen = set()
    for name in names:
        if name in seen:
            raise UserError(f"{file}: host.name is {name!r} twice: give each host its own")
        seen.add(name)
    racks = {rack.name for rack in hosts.rack}
    for host in hosts.host:
        if host.rack and host.rack not in racks:
            raise UserError(f"{file}: host.rack is {host.rack!r}, and there is no such [[rack]]")
    machines = {host.name for host in hosts.host}
    for number, fault in enumerate(hosts.fault):
        key = f"{file}: fault[{number}]"
        if fault.host not in machines:
            raise UserError(f"{key}.host is {fault.host!r}, and there is no such [[host]]")
        wrong = fault.wrong_key()
        if wrong:
            raise UserError(f"{key}.{wrong}")


def _explain(error: ValidationError) -> str:
    """The first unknown key or fault, as ``host[1].speed must be greater than 0, but is -1``."""
    faults = error.errors()
    fault = next((each for each in faults if each["type"] == "extra_forbidden"), faults[0])
    key = ""
    for part in fault["loc"]:
        key += f"[{part}]" if isinstance(part, int) else f"{'.' if key else ''}{part}"
    key = key.removesuffix(".[key]")
    if fault["type"] == "extra_forbidden":
        return f"unknown key {key}" + ("; did you mean [[host]]?" if key == "hosts" else "")
    if fault["type"] == "missing":
        return f"{key} is missing"
    text = fault["msg"].replace("Input should be", "must be")
    return f"{key} {text}, but is {reprlib.repr(fault['input'])}"
