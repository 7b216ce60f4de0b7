"""A Trainer on two learners, of which one is killed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from support.commands import Command

pytestmark = pytest.mark.long
SCRIPT = """
import os, signal, sys
import torch
from torch import nn
from transformers import TrainerCallback, TrainingArguments
import unisono
from unisono.integrations.transformers import UnisonoTrainer

out, killed = sys.argv[1], sys.argv[2] == "killed"
generator = torch.Generator().manual_seed(0)
x = torch.randn(2000, 16, generator=generator)
y = (x @ torch.randn(16, 4, generator=generator)).argmax(1)
data = [{"x": a, "labels": b} for a, b in zip(x, y)]

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    def forward(self, x, labels=None):
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

class Dies(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if killed and os.environ.get("UNISONO_LEARNER") == "1" and state.global_step == 20:
            os.kill(os.getpid(), signal.SIGKILL)

rates = []
class Watches(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **_):
        if "learning_rate" in logs:
            rates.append(logs["learning_rate"])

torch.manual_seed(1)
trainer = UnisonoTrainer(
    Model(),
    TrainingArguments(
        out, num_train_epochs=4, per_device_train_batch_size=10, learning_rate=0.02,
        save_strategy="no", eval_strategy="steps", eval_steps=40, logging_steps=10,
        report_to=[], disable_tqdm=True, use_cpu=True, lr_scheduler_type="linear",
    ),
    train_dataset=data[:1800],
    eval_dataset=data[1800:],
    compute_metrics=lambda p: {"accuracy": float((p.predictions.argmax(1) == p.label_ids).mean())},
    callbacks=[Dies(), Watches()],
    strategy=unisono.Averaging(every=100),
)
trainer.train()
assert rates == sorted(rates, reverse=True) and rates[-1] < 0.3 * rates[0], rates
if trainer.is_leader:
    print(f"accuracy {trainer.evaluate()['eval_accuracy']}", flush=True)
trainer.save_model(out)
"""


@pytest.mark.parametrize("how", ["together", "killed", "alone"])
def test_a_trainer_is_a_learner(how: str, tmp_path: Path, start: Callable[..., Command]) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    script, out = tmp_path / "script.py", tmp_path / "out"
    script.write_text(SCRIPT)
    learners = 1 if how == "alone" else 2
    command = start("launch", "--learners", learners, script, out, how)
    assert command.wait(250) == 0, command.output()
    text = command.output()
    accuracies = re.findall(r"accuracy ([\d.]+)", text)  # other processes print to it as well
    assert len(accuracies) == 1 and float(accuracies[0]) > 0.8, text
    assert ("learner 1 was lost" in text) == (how == "killed")
    assert "eval_accuracy" in text
    assert [path.name for path in out.glob("*.safetensors")] == ["model.safetensors"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps must be 1"),
        ({"max_steps": 10}, "max_steps must be unset"),
        ({"save_strategy": "epoch"}, 'save_strategy must be "no"'),
    ],
)
def test_what_counts_own_steps_is_refused(
    arguments: dict[str, object], what: str, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from unisono.errors import UserError
    from unisono.integrations.transformers import UnisonoTrainer

    settings = {"save_strategy": "no", "use_cpu": True, "report_to": [], **arguments}
    with pytest.raises(UserError, match=what):
        UnisonoTrainer(
            torch.nn.Linear(2, 2), transformers.TrainingArguments(str(tmp_path), **settings)
        )
