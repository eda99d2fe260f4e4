"""Trainers of other packages on paceline's replicas: each script beside the same one without paceline."""

import os
import subprocess
import sys
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from needs import needs_accelerate, needs_lightning, needs_transformers

from paceline.conf.errors import ConfigError
from paceline.tracking.files import read_json
from paceline.wrap.launched import check_device, planned, put_aside, put_back, told

DATA = """
torch.manual_seed(0)
inputs = torch.randn(88, 8, generator=torch.Generator().manual_seed(0))
targets = (inputs[:, 0] > 0).long()
loader = DataLoader(TensorDataset(inputs, targets), 16, shuffle=True, generator=torch.Generator().manual_seed(1))
"""
HUGGING_FACE = """
import sys
if sys.argv[1:]:
    from paceline.wrap.hugging_face import Trainer
else:
    from transformers import Trainer
import torch
from transformers import BertConfig, BertForSequenceClassification, TrainerCallback, TrainingArguments

class Slower(TrainerCallback):
    def on_train_begin(self, args, state, control, **more):
        if state.is_world_process_zero:
            print("of worker 0 alone")

    def on_step_end(self, args, state, control, optimizer, **more):
        for group in optimizer.param_groups:
            group["lr"] *= 0.9

torch.manual_seed(0)
small = dict(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
model = BertForSequenceClassification(BertConfig(**small, hidden_dropout_prob=0, attention_probs_dropout_prob=0))
words = torch.randint(0, 50, (88, 8), generator=torch.Generator().manual_seed(0))
data = [{"input_ids": each, "labels": int(each[0]) % 2} for each in words]
args = TrainingArguments(
    "out", per_device_train_batch_size=8, num_train_epochs=2, learning_rate=1e-2, use_cpu=True, report_to=[],
    save_strategy="no", eval_strategy="epoch", gradient_accumulation_steps=2, disable_tqdm=True,
)
more = dict(paceline=sys.argv[2:], name=sys.argv[1]) if sys.argv[1:] else {}
right = lambda made: {"accuracy": float((made.predictions.argmax(-1) == made.label_ids).mean())}
given = dict(train_dataset=data, eval_dataset=data[:32], compute_metrics=right, callbacks=[Slower()])
trainer = Trainer(model, args, **given, **more)
trainer.train()
print("after", trainer.evaluate()["eval_accuracy"])
trainer.save_model(f"saved-{len(sys.argv)}")
"""
LIGHTNING = f"""
import sys
if sys.argv[1:]:
    from paceline.wrap.lightning import Replicas
    more = dict(strategy=Replicas(*sys.argv[2:], name=sys.argv[1]))
else:
    more = {{}}
import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
{DATA}
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

    def training_step(self, batch, number):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, number):
        self.log("right", (self.net(batch[0]).argmax(-1) == batch[1]).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return {{"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)}}

model = Module()
quiet = dict(logger=False, enable_checkpointing=False, enable_model_summary=False, enable_progress_bar=False)
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", devices=1, accumulate_grad_batches=2, gradient_clip_val=0.5, **quiet, **more
)
tested = DataLoader(TensorDataset(inputs, targets), 44)
trainer.fit(model, loader, tested)
trainer.validate(model, tested, verbose=False)
"""
ACCELERATE = f"""
import sys
if sys.argv[1:]:
    from paceline.wrap.accelerator import Accelerator
    more = dict(paceline=sys.argv[2:], name=sys.argv[1])
else:
    from accelerate import Accelerator
    more = {{}}
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4, mixed_precision="no", **more)
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
{DATA}
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 6, 0.5)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
assert len(loader.dataset) == 88
for epoch in range(2):
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
accelerator.print("of worker 0 alone")
accelerator.save_state("state")
accelerator.end_training()
"""
TWO_OPTIMIZERS = """
from types import SimpleNamespace
own = more["strategy"]  # as Lightning leaves it where optimization is manual
own._lightning_module = SimpleNamespace(trainer=SimpleNamespace(training=True))
own.optimizers = [torch.optim.SGD(model.parameters(), 0.1) for _ in range(2)]
own.process_dataloader(loader)
"""
LAUNCH = [sys.executable, "-m", "paceline.cli.main", "launch", "--workers", "2"]
KEEP = """
import os
torch.save(model.state_dict(), f"{sys.argv[1] if sys.argv[1:] else 'plain'}-{os.environ.get('RANK', 0)}.pt")
"""


def test_what_a_launcher_told_is_put_aside_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    put_aside()
    try:
        assert "RANK" not in os.environ and told("RANK", "0") == "1" and told("WORLD_SIZE", "1") == "1"
    finally:
        put_back()
    assert os.environ["RANK"] == "1" and os.environ["LOCAL_RANK"] == "0"


def test_several_workers_of_a_trainer_are_on_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    check_device(torch.device("cpu"), "cpu=True")
    with pytest.raises(ConfigError, match=r"device cuda:0: .* Choose cpu=True, or"):
        check_device(torch.device("cuda:0"), "cpu=True")
    monkeypatch.setenv("WORLD_SIZE", "1")
    check_device(torch.device("cuda:0"), "cpu=True")


@pytest.mark.parametrize(
    ("limits", "epochs", "steps"),
    [
        ((11, 2, 2), 2, 12),
        ((11, 2, 0.5), 1, 3),
        ((11, 2, inf, 13), 3, 13),
        ((11, 2, 5, 13), 3, 13),
        ((11, 20, 3), 3, 3),
        ((11, 1, inf), 1, None),
    ],
)
def test_the_steps_of_a_trainer_are_those_of_its_passes_and_limits(
    limits: tuple[Any, ...], epochs: int, steps: int | None
) -> None:
    assert planned(*limits) == (epochs, steps)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "before", "after", "said"),
    [
        pytest.param(HUGGING_FACE, "=8,", "=8, max_steps=7,", "7, in 2 passes", marks=needs_transformers),
        pytest.param(HUGGING_FACE, "epochs=2", "epochs=1.5", "9, in 2 passes", marks=needs_transformers),
        pytest.param(LIGHTNING, "=0.5,", "=0.5, limit_train_batches=3,", "4, in 2 passes", marks=needs_lightning),
        pytest.param(LIGHTNING, "max_epochs=2", "max_epochs=-1", "not known", marks=needs_lightning),
        pytest.param(ACCELERATE, "range(2)", "range(3)", "not known", marks=needs_accelerate),
    ],
)
def test_a_dry_run_says_the_steps_that_a_trainer_will_make(
    script: str, before: str, after: str, said: str, tmp_path: Path
) -> None:
    assert script.count(before) == 1
    (tmp_path / "own.py").write_text(script.replace(before, after))
    command = [*LAUNCH, "--dry-run", "own.py", "mine", "sync=bsp"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and f"\nsteps: {said}" in done.stdout, done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "before", "after", "says"),
    [
        pytest.param(
            HUGGING_FACE,
            ".train()",
            ".train('out')",
            "resume_from_checkpoint=out: has the weights of one replica",
            marks=needs_transformers,
        ),
        pytest.param(
            HUGGING_FACE,
            'save_strategy="no"',
            'load_best_model_at_end=True, save_strategy="epoch"',
            "load_best_model_at_end=true: worker 0 alone has checkpoints",
            marks=needs_transformers,
        ),
        pytest.param(
            LIGHTNING,
            "model = Module()",
            f"model = Module()\n{TWO_OPTIMIZERS}",
            "configure_optimizers: makes 2 optimizers",
            marks=needs_lightning,
        ),
        pytest.param(
            LIGHTNING,
            "(model, loader,",
            "(model, [loader, loader],",
            "train_dataloaders: are",
            marks=needs_lightning,
        ),
        pytest.param(
            LIGHTNING,
            "max_epochs=2,",
            "max_epochs=2, reload_dataloaders_every_n_epochs=1,",
            "reload_dataloaders_every_n_epochs=1: would make further loaders",
            marks=needs_lightning,
        ),
        pytest.param(
            LIGHTNING,
            "fit(model, loader, tested)",
            "fit(model, loader, tested, ckpt_path='out.ckpt')",
            "ckpt_path=out.ckpt: has the weights of one replica",
            marks=needs_lightning,
        ),
        pytest.param(
            ACCELERATE,
            'accelerator.save_state("state")',
            'accelerator.load_state("state")',
            "load_state: a checkpoint of Accelerate has the weights of one replica",
            marks=needs_accelerate,
        ),
        pytest.param(
            ACCELERATE,
            "in loader:",
            "in accelerator.skip_first_batches(loader, 2):",
            "skip_first_batches: would make another loader",
            marks=needs_accelerate,
        ),
        pytest.param(
            ACCELERATE,
            "prepare(model, optimizer, loader, schedule)",
            "prepare(model, model, optimizer, schedule)",
            "prepare: 2 models, 1 optimizers and 0 loaders",
            marks=needs_accelerate,
        ),
    ],
    ids=[
        "a checkpoint",
        "the best checkpoint",
        "two optimizers",
        "two loaders",
        "reloaded",
        "fit from a checkpoint",
        "a state",
        "first batches",
        "no loader",
    ],
)
def test_what_an_adapter_cannot_do_ends_the_script_with_status_2(
    script: str, before: str, after: str, says: str, tmp_path: Path
) -> None:
    assert script.count(before) == 1
    (tmp_path / "own.py").write_text(script.replace(before, after))
    command = [*LAUNCH, "own.py", "refused", "sync=bsp"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr[-2000:]
    assert done.stderr.count(says) == 1  # of two workers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "steps"),
    [
        pytest.param(HUGGING_FACE, 12, marks=needs_transformers),
        pytest.param(LIGHTNING, 6, marks=needs_lightning),
        pytest.param(ACCELERATE, 4, marks=needs_accelerate),
    ],
    ids=["hugging_face", "lightning", "accelerate"],
)
def test_a_trainer_trains_as_without_paceline_on_one_worker_and_on_two(script: str, steps: int, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(script + KEEP)

    def trained(command: list[str], name: str, *overrides: str) -> dict[str, torch.Tensor]:
        given = [name, *overrides] if overrides else []
        done = subprocess.run([*command, "own.py", *given], cwd=tmp_path, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.count("of worker 0 alone\n") == script.count("of worker 0 alone")
        return torch.load(tmp_path / f"{name}-0.pt")

    plain = trained([sys.executable], "plain")
    one = trained([sys.executable], "one", "sync=bsp")
    assert all(torch.equal(one[key], each) for key, each in plain.items())
    two = trained(LAUNCH, "two", "sync=bsp")
    for key, each in plain.items():
        torch.testing.assert_close(two[key], each, rtol=0, atol=2e-5)
    apart = trained(LAUNCH, "apart", "sync=diloco", "sync.period=4")
    agreed = torch.load(tmp_path / "apart-1.pt")
    assert all(torch.equal(agreed[key], each) for key, each in apart.items())
    assert any((apart[key] - each).abs().max() > 1e-4 for key, each in plain.items())
    for name in ("one", "two", "apart"):
        summary = read_json(tmp_path / "runs" / name / "summary.json")
        assert summary["status"] == "completed" and summary["steps"] == steps
    assert read_json(tmp_path / "runs" / "apart" / "summary.json")["wire"]["total"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "before", "after"),
    [
        pytest.param(ACCELERATE, 'precision="no"', 'precision="bf16"', marks=needs_accelerate),
        pytest.param(ACCELERATE, 'precision="no"', 'precision="fp16"', marks=needs_accelerate),
        pytest.param(HUGGING_FACE, "use_cpu=True", "use_cpu=True, fp16=True", marks=needs_transformers),
    ],
)
def test_mixed_precision_of_a_trainer_is_that_of_the_script(
    script: str, before: str, after: str, tmp_path: Path
) -> None:
    assert script.count(before) == 1
    (tmp_path / "own.py").write_text(script.replace(before, after) + KEEP)
    for given in ([], ["one", "sync=bsp"]):
        subprocess.run([sys.executable, "own.py", *given], cwd=tmp_path, check=True, capture_output=True, timeout=120)
    plain, one = (torch.load(tmp_path / f"{name}-0.pt") for name in ("plain", "one"))
    assert all(torch.equal(one[key], each) for key, each in plain.items())
