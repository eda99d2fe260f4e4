"""Models that return an object, and their own loss: the same training as a plain loop, whoever shares it."""

from pathlib import Path

import pytest
import torch
from returning_objects import Sentences, Tags
from safetensors.torch import load_file
from torch import Tensor, nn

from paceline import engine
from paceline.engine import Result, prepare
from paceline.tasks.partition import ShuffledPartition

HERE = "returning_objects"
SHORT = ["tracking=none", "checkpoint.every=0", "evaluate.every=100", "optimizer.lr=0.2", "optimizer.momentum=0.5"]
STEPS = 7  # of 16 samples: the fourth of each epoch has 12


def words(task: str = "model", **knobs: object) -> list[str]:
    """`knobs`: of the data."""
    told = "".join(f",{key}:{str(value).lower()}" for key, value in knobs.items())
    return [f"model={{_target_:{HERE}.Tags}}", f"data={{_target_:{HERE}.Sentences{told}}}", f"task={task}"]


def trained(root: Path, *overrides: str, name: str | None = None) -> Result:
    result = engine.run([*SHORT, *overrides], allow_modules=[HERE], root=root, quiet=True, name=name)
    assert result is not None
    return result


def by_hand(model: nn.Module, data: Sentences, steps: int = STEPS) -> dict[str, Tensor]:
    """The model's own loss in plain torch, with the batches of 16."""
    order, optimizer = ShuffledPartition(len(data), 1, 16, 0), torch.optim.SGD(model.parameters(), 0.2, momentum=0.5)
    for step in range(steps):
        rows = [data[int(i)] for i in order.indices(step, 0)]
        outputs = model(**{key: torch.stack([row[key] for row in rows]) for key in rows[0]})
        optimizer.zero_grad()
        (outputs["loss"] if isinstance(outputs, dict) else outputs.loss).backward()
        optimizer.step()
    return {name: each.detach() for name, each in model.named_parameters()}


def alike(result: Result, expected: dict[str, Tensor]) -> None:
    found = load_file(result.path / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("returns", ["dict", "object"])
@pytest.mark.parametrize("task", ["model", "cross_entropy"])
def test_the_logits_or_the_loss_of_an_object_are_trained(root: Path, task: str, returns: str) -> None:
    given = [*words(task), f"+model.returns={returns}", "hardware=virtual", f"steps={STEPS}"]
    result = trained(root, *given, "batch_size=4", "hardware.workers=4")
    torch.manual_seed(0)
    alike(result, by_hand(Tags(), Sentences()))
    assert result.summary["wire"]["bytes_per_step"] == result.summary["predicted"]["bytes_per_step"]
    again = trained(root, *given, "batch_size=16", "strategy=single", "hardware.workers=1")
    assert again.summary["loss"] == pytest.approx(result.summary["loss"], rel=1e-4)


@pytest.mark.parametrize("shifts", [False, True])
def test_labels_that_a_model_leaves_out_count_for_no_replica(root: Path, shifts: bool) -> None:
    """Replicas have different numbers of labels that count."""
    given = [*words(masks=True, shifts=shifts), f"+model.shifts={str(shifts).lower()}", f"task.shifts={shifts}"]
    result = trained(
        root, *given, "task.ignore_index=-100", "hardware=virtual", "batch_size=4", "hardware.workers=4",
        f"steps={STEPS}",
    )  # fmt: skip
    torch.manual_seed(0)
    model = Tags(shifts=shifts)
    alike(result, by_hand(model, Sentences(masks=True, shifts=shifts)))
    test = Sentences(masks=True, shifts=shifts, train=False)
    with torch.no_grad():
        outputs = model(test.words, test.mask.long(), test.labels)
        assert result.summary["loss"] == pytest.approx(outputs.loss.item(), rel=1e-3)  # pyright: ignore
        guessed = outputs.logits.argmax(-1)  # pyright: ignore
    guessed, labels = (guessed[:, :-1], test.labels[:, 1:]) if shifts else (guessed, test.labels)
    right = (guessed == labels)[labels != -100].double().mean().item()
    assert result.summary["accuracy"] == pytest.approx(right, abs=0.02)


@pytest.mark.parametrize("sync", ["local_sgd", "asp", "fedavg"])
def test_other_sync_modes_train_it(root: Path, sync: str) -> None:
    given = [*words(), f"sync={sync}", "hardware=virtual", "batch_size=8", "hardware.workers=2", "epochs=20"]
    assert trained(root, *given).summary["accuracy"] > 0.8


@pytest.mark.parametrize("task", ["model_numbers", "squared"])
def test_a_regression_of_a_models_own(root: Path, task: str) -> None:
    given = [f"model={{_target_:{HERE}.Prices}}", f"data={{_target_:{HERE}.Priced}}", f"task={task}"]
    result = trained(root, *given, "hardware=virtual", "batch_size=4", "hardware.workers=2", "epochs=5")
    assert result.summary["r2"] > 0.9 and len(load_file(result.path / "model.safetensors")) == 2


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    ["sync=bsp", "strategy=torch_ddp", "strategy=torch_fsdp", "strategy=zero", "strategy=zero strategy.stage=3"],
)
@pytest.mark.parametrize("task", ["model", "cross_entropy"])
def test_strategies_that_keep_the_model_whole_train_it(root: Path, fork_server: None, way: str, task: str) -> None:
    result = trained(root, *words(task), *way.split(), "batch_size=8", "hardware.workers=2", f"steps={STEPS}")
    torch.manual_seed(0)
    alike(result, by_hand(Tags(), Sentences()))


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["strategy=pipeline"], "strategy=pipeline: cuts a model into layers, of which each is given the one tensor"),
        (["strategy=offload"], "task=model gives the model labels beside its inputs. Choose strategy=data_parallel"),
        (["strategy=pipeline"], "or wrap the model for task=cross_entropy (docs/your_own.md)."),
        (["+model.returns=nothing"], "Tags returns a dict; must return a dict or an object with a `loss` of one numb"),
        (["+model.returns=detached"], "Tags returns a Returned whose `loss` has no gradient"),
        (["+model.returns=each"], "Tags returns a Returned with a `loss` of shape [3] and torch.float32; must return"),
        (["task=cross_entropy", "+model.returns=nothing"], "or a dict or an object with `logits`"),
        (["task.argument=input_ids"], "task.argument=input_ids: is an input of the data, too."),
        (["model=mlp"], "model=mlp: its forward takes"),
        (["+data.targets=tags"], "+data.targets=tags: a sample has the entries input_ids, attention_mask, labels"),
        (["+data.masks=true"], "its label is -100, by which torch leaves out targets. Choose task.ignore_index=-100"),
    ],
)
def test_what_does_not_go_is_refused_by_name(root: Path, overrides: list[str], sentence: str) -> None:
    given = [*SHORT, *words(), "hardware=virtual", "steps=1", *overrides]
    with pytest.raises(Exception) as caught:
        prepare(given, allow_modules=[HERE]).plan()
        engine.run(given, allow_modules=[HERE], root=root, quiet=True)
    assert sentence in str(caught.value)


def test_a_loss_of_shape_1_is_one_number(root: Path) -> None:
    given = [*words(), "hardware=virtual", "batch_size=8", "hardware.workers=2", "steps=4"]
    one, plain = (trained(root, *given, f"+model.returns={kind}", name=kind) for kind in ("one", "object"))
    assert one.summary["loss"] == plain.summary["loss"]


def test_replicas_must_know_each_others_labels_where_some_do_not_count(root: Path) -> None:
    given = [*SHORT, *words(masks=True, knows=False), "hardware=virtual", "task.ignore_index=-100", "steps=1"]
    with pytest.raises(Exception, match="Give the Dataset an attribute `targets`"):
        engine.run([*given, "hardware.workers=2"], allow_modules=[HERE], root=root, quiet=True)
    assert engine.run([*given, "hardware.workers=1", "strategy=single"], allow_modules=[HERE], root=root, quiet=True)
