from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from reference_pages import configuration
from unisono.config import Config, DeviceChoice, OptimizerChoice, dump, load
from unisono.errors import UserError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.toml"))


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            keys.update(flat(value, f"{prefix}{key}."))
        else:
            keys[prefix + key] = value
    return keys


def refusal(file: Path | None = None, *sets: str, **flags: object) -> str:
    with pytest.raises(UserError) as caught:
        load(file, sets, flags)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 200
    return text


def write(folder: Path, text: str) -> Path:
    file = folder / "my.toml"
    file.write_text(text)
    return file


def test_docs_list_every_key_with_its_default() -> None:
    rows = re.findall(r"^\| `([a-z_.]+)` \| `(.*?)` \|", configuration(), flags=re.MULTILINE)
    documented = {
        key: None if default == "unset" else tomllib.loads(f"value = {default}")["value"]
        for key, default in rows
    }
    assert documented == flat(Config().model_dump())


def test_every_key_says_what_it_means() -> None:
    for name, field in Config.model_fields.items():
        inner = getattr(field.annotation, "model_fields", {name: field})
        assert all(each.description for each in inner.values()), name


def test_later_layers_win(tmp_path: Path) -> None:
    file = write(tmp_path, "epochs = 5\nseed = 5\nminibatch = 5\n[rate]\nstart = 0.5\nend = 0.5\n")
    config = load(file, ["seed=7", "rate.end=0.7"], {"seed": 6, "minibatch": 6, "threads": None})
    assert (config.epochs, config.minibatch, config.seed, config.threads) == (5, 6, 7, 0)
    assert (config.rate.start, config.rate.end, config.rate.momentum) == (0.5, 0.7, 0.9)


def test_set_reads_toml_or_a_bare_word() -> None:
    sets = ["network.hidden=[8, 4]", "cluster=auto", "optimizer=adamw", "validation.enabled=false"]
    config = load(None, [*sets, "rate.start=1e-3", "strategy.outer.kind=nesterov"], {})
    assert config.network.hidden == [8, 4]
    assert config.cluster == "auto"
    assert config.optimizer is OptimizerChoice.ADAMW
    assert config.validation.enabled is False
    assert config.rate.start == 0.001
    assert config.strategy_options == {"outer": {"kind": "nesterov"}}


def test_a_key_that_holds_text_keeps_what_looks_like_a_number() -> None:
    assert load(None, ["prep=2024"], {}).prep == "2024"
    assert load(None, ["prep='2024'"], {}).prep == "2024"
    assert load(None, ["prep=2024-01-01"], {}).prep == "2024-01-01"


def test_a_value_cannot_smuggle_in_another_key() -> None:
    assert "epochs" in refusal(None, "epochs=1\nseed=3")


def test_strategy_is_merged_and_replaced(tmp_path: Path) -> None:
    file = write(tmp_path, '[strategy]\nevery = 4\nouter = "plain"\n')
    config = load(file, ["strategy.every=8", "strategy.outer.momentum=0.5"], {})
    assert config.strategy_options == {"every": 8, "outer": {"momentum": 0.5}}


def test_options_of_a_strategy_keep_their_types() -> None:
    sets = ["strategy.a=1", "strategy.b=1.0", "strategy.c=true", "strategy.d=inf"]
    options = load(None, sets, {}).strategy_options
    assert [type(value) for value in options.values()] == [int, float, bool, float]


@pytest.mark.parametrize(
    ("said", "nearest"),
    [
        ("rate.strat=1", "rate.start"),
        ("momentum=0.5", "rate.momentum"),
        ("network.droput=0.1", "network.dropout"),
        ("epoch=1", "epochs"),
        ("optimiser=sgd", "optimizer"),
        ("rat.start=1", "rate.start"),
    ],
)
def test_an_unknown_key_names_the_nearest(said: str, nearest: str) -> None:
    text = refusal(None, said)
    assert f"'{said.partition('=')[0]}'" in text
    assert "--set" in text
    assert f"'{nearest}'" in text


def test_an_unknown_key_names_its_source(tmp_path: Path) -> None:
    file = write(tmp_path, "epochs = 2\n[rate]\nstrat = 1\n")
    assert f"'rate.strat' in {file};" in refusal(file, "seed=1")
    assert "'min_batch' from --min-batch;" in refusal(None, min_batch=3)


@pytest.mark.parametrize(
    "said",
    [
        "epochs=three",
        "epochs=1.5",
        "epochs=true",
        "epochs=0",
        "epochs=1000001",
        "minibatch=99999999999999999999999",
        "threads=100000",
        "prefetch=1000000000",
        "epochs.x=1",
        "seed=-1",
        "rate=3",
        "rate.start=nan",
        "rate.end=0",
        "timeout_s=inf",
        "network.hidden=[1, 'a']",
        "network.hidden=7",
        "network.dropout=1",
        "optimizer=foo",
        "device=tpu",
        "strategy=3",
        "strategy.a=[1]",
        "strategy.a.b.c=1",
        "validation.enabled=1",
        "learners=0",
        "learners=4:2",
        "learners=2.5",
        "learners=2:",
    ],
)
def test_a_wrong_value_is_one_line(said: str) -> None:
    key = said.partition("=")[0].removesuffix(".x").removesuffix(".b.c")
    text = refusal(None, said)
    assert text.startswith(f"{key} from --set must be ")


def test_a_wrong_value_names_the_last_layer_that_said_it(tmp_path: Path) -> None:
    file = write(tmp_path, 'epochs = "two"\n[rate]\nend = 3\n')
    assert refusal(file).startswith(f"epochs in {file} must be a valid integer, but is 'two'")
    assert refusal(file, epochs=1).startswith(f"rate.end in {file} must be")
    assert refusal(file, "rate.end=0.5", epochs="x").startswith("epochs from --epochs must be")


@pytest.mark.parametrize("said", ["epochs", "=1", "rate..start=1", ".=1"])
def test_set_needs_a_key_and_a_value(said: str) -> None:
    assert "is not key=value" in refusal(None, said)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "none.toml")
    assert "directory" in refusal(tmp_path)
    assert "line 2" in refusal(write(tmp_path, "epochs = 1\nseed =\n"))
    deep = tmp_path / "deep.toml"
    for text in ("seed = " + "[" * 2000 + "]" * 2000, "[" + ".".join("a" * 2000) + "]\nb = 1"):
        deep.write_text(text)
        assert "deep.toml: tables or lists within each other too deep" in refusal(deep)
    (tmp_path / "latin").write_bytes(b"prep = '\xe9'")
    assert "is not a TOML file" in refusal(tmp_path / "latin")


def test_learners_are_a_number_or_a_range() -> None:
    assert load(None, [], {"learners": 4}).learner_range == (4, 4)
    assert load(None, ["learners=2:8"], {}).learner_range == (2, 8)
    assert load(None, ["learners=3"], {}).learners == "3"


def test_defaults_that_depend_on_other_keys() -> None:
    assert Config().strategy_name == "solo"
    assert Config(learners="2").strategy_name == "averaging"
    assert Config(learners="1:2").strategy_name == "averaging"
    assert Config(learners="2", strategy={"name": "gossip-random"}).strategy_name == "gossip-random"
    assert Config().start_rate == 0.05
    assert Config(learners="8").start_rate == 0.025
    assert load(None, ["optimizer=adamw"], {}).start_rate == 0.0005
    assert load(None, ["rate.start=0.2"], {}).start_rate == 0.2
    assert Config(learners="2").threads_per_process(cores=9) == 4
    assert Config(learners="4").threads_per_process(cores=2) == 1
    assert Config(threads=3, learners="4").threads_per_process(cores=2) == 3


def test_flags_may_be_paths_and_choices() -> None:
    config = load(None, [], {"prep": Path("a") / "b", "device": DeviceChoice.CPU})
    assert (config.prep, config.device) == ("a/b", DeviceChoice.CPU)


def test_nothing_changes_later() -> None:
    with pytest.raises(ValidationError):
        Config().epochs = 4


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
plain = st.one_of(
    words,
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False),
    st.booleans(),
)


@given(
    prep=words,
    seed=st.integers(0, 2**63 - 1),
    hidden=st.lists(st.integers(1, 10**6), max_size=4),
    start=st.floats(0, 1e300),
    optimizer=st.sampled_from(OptimizerChoice),
    strategy=st.dictionaries(
        words, st.one_of(plain, st.dictionaries(words, plain, max_size=2)), max_size=3
    ),
)
def test_dump_reads_back_equal(
    tmp_path_factory: pytest.TempPathFactory,
    prep: str,
    seed: int,
    hidden: list[int],
    start: float,
    optimizer: OptimizerChoice,
    strategy: dict[str, Any],
) -> None:
    config = Config.model_validate(
        {
            "prep": prep,
            "seed": seed,
            "optimizer": optimizer,
            "network": {"hidden": hidden},
            "rate": {"start": start},
            "strategy": strategy,
        }
    )
    file = tmp_path_factory.getbasetemp() / "round_trip.toml"
    file.write_bytes(dump(config).encode())
    again = load(file, [], {})
    assert again == config
    assert dump(again) == dump(config)  # 1, 1.0 and True are equal, but not the same


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_an_example_is_a_config(file: Path) -> None:
    said = flat(tomllib.loads(file.read_text(encoding="utf-8")))
    config = flat(load(file, [], {}).model_dump(mode="json"))
    assert said == {key: config[key] for key in said}
