"""distillation: a loop in plain torch; workers as one; alpha 0 as plain training; a teacher is counted and not sent."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from measured_machines import machine
from safetensors.torch import load_file
from short_runs import weights
from torch import Tensor, nn

from paceline.batches import Fields
from paceline.conf.errors import ConfigError
from paceline.cost.predicted import NotPredicted
from paceline.engine import prepare, run
from paceline.engine.base.errors import CorruptCheckpointError
from paceline.engine.config.compose import compose
from paceline.engine.features.distilling import Distilled
from paceline.engine.planning.build import assemble
from paceline.engine.training.batches import seed_for
from paceline.strategies.core.cost import payload
from paceline.strategies.core.state import state_of
from paceline.tasks.distillation import Hinton, soft_loss
from paceline.verify.check import verify

slow = pytest.mark.slow
ALIKE = ("tracking=none", "data.limit=96", "evaluate.every=1000", "checkpoint.every=0", "optimizer.lr=0.1")
SMALL = (*ALIKE, "batch_size=16", "model.hidden=[12]", "steps=8", "epochs=1000", "hardware=virtual")
ONE = ("strategy=single", "hardware.workers=1")
TWO = ("hardware.workers=2", "batch_size=8")
WIDE = [24, 20]  # of the teacher


def finished(folder: Path, *overrides: str, name: str = "run", **how: Any) -> Any:
    result = run([*overrides], root=folder, quiet=True, name=name, **how)
    assert result is not None
    return result


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a wider model."""
    folder = tmp_path_factory.mktemp("teachers")
    return finished(folder, *ALIKE, *ONE, f"model.hidden={WIDE}", "epochs=3", "hardware=virtual", "seed=7").path


def taught(teacher: Path, alpha: float = 0.7, temperature: float = 3.0) -> tuple[str, ...]:
    knobs = (f"teacher={teacher}", f"alpha={alpha}", f"temperature={temperature}")
    return "distillation=hinton", *(f"distillation.{knob}" for knob in knobs)


# -- the loss


def by_its_definition(z: Tensor, v: Tensor, t: float) -> Tensor:
    """T^2 sum_c p_c (log p_c - log q_c), the mean over rows."""
    p, q = (torch.exp(each / t) / torch.exp(each / t).sum(-1, keepdim=True) for each in (v, z))
    return t**2 * (p * (p.log() - q.log())).sum(-1).mean()


@pytest.mark.parametrize("shape", [(5, 7), (3, 4, 6)], ids=["images", "text"])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_the_soft_loss_is_t_squared_times_the_divergence_by_definition(
    shape: tuple[int, ...], temperature: float
) -> None:
    draw = torch.Generator().manual_seed(3)
    z, v = (torch.randn(shape, generator=draw, dtype=torch.float64) for _ in range(2))
    torch.testing.assert_close(soft_loss(z, v, temperature), by_its_definition(z, v, temperature))
    assert soft_loss(z, z, temperature).abs() < 1e-12


def test_t_squared_keeps_gradients_as_large_as_they_are_for_high_temperatures() -> None:
    """Hinton et al., equation 4: where logits have mean 0, the gradient goes to (z - v) / C, whatever T is."""
    draw = torch.Generator().manual_seed(4)
    z, v = (each - each.mean(-1, keepdim=True) for each in torch.randn(2, 1, 5, generator=draw, dtype=torch.float64))
    for temperature in (1e3, 1e4):
        z = z.detach().requires_grad_()
        soft_loss(z, v, temperature).backward()
        assert z.grad is not None
        torch.testing.assert_close(z.grad, (z - v).detach() / 5, rtol=1e-2, atol=1e-4)


def test_student_and_teacher_of_other_outputs_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"puts out \[2, 3\] .* \[2, 4\]; must be the same"):
        soft_loss(torch.zeros(2, 4), torch.zeros(2, 3), 1.0)


def test_labels_have_what_alpha_leaves() -> None:
    z, v, y = torch.randn(4, 3), torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    targets = Fields({"targets": y, "teacher": v})
    hard = F.cross_entropy(z, y)
    found = [Hinton("run", alpha, 2.0).loss(F.cross_entropy)(z, targets) for alpha in (0.0, 0.25, 1.0)]
    soft = by_its_definition(z, v, 2.0)
    for loss, alpha in zip(found, (0.0, 0.25, 1.0), strict=True):
        torch.testing.assert_close(loss, (1 - alpha) * hard + alpha * soft)
    assert not Hinton("run", 0.0).teaches


# -- training


def plainly(overrides: list[str], teacher: Path, alpha: float, t: float) -> dict[str, Tensor]:
    """A loop in plain torch over the samples that the run takes. The soft loss is the paper's: the cross-entropy with
    soft targets, whose gradient is that of the divergence.
    """
    experiment = compose(overrides)
    parts = assemble(experiment, ())
    first, second, last = nn.Linear(64, 24), nn.Linear(24, 20), nn.Linear(20, 10)
    wide = nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU(), last)
    saved = [*load_file(teacher / "model.safetensors").values()]
    with torch.no_grad():
        for parameter in wide.parameters():  # no two of them have the same shape
            parameter.copy_(next(each for each in saved if each.shape == parameter.shape))
    torch.manual_seed(experiment.seed)
    model = parts.make_model()
    optimizer, partition, (train, _) = parts.make_optimizer(model.parameters()), parts.deal(), parts.load()
    for step in range(8):
        numbers = torch.cat([partition.indices(step, j) for j in range(partition.replicas)])
        taken = train.take(numbers)
        seed_for(experiment.seed, step, 0, torch.device("cpu"))
        optimizer.zero_grad()
        z = model(taken.inputs)
        soft = (wide(taken.inputs).detach() / t).softmax(-1)
        hard = F.cross_entropy(z, taken.targets)
        ((1 - alpha) * hard - alpha * t**2 * (soft * (z / t).log_softmax(-1)).sum(-1).mean()).backward()
        optimizer.step()
    return state_of(model)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("alpha", "temperature"), [(0.7, 3.0), pytest.param(1.0, 1.0, marks=SLOW), pytest.param(0.2, 8.0, marks=SLOW)]
)
def test_one_worker_is_a_plain_loop_in_torch(tmp_path: Path, teacher: Path, alpha: float, temperature: float) -> None:
    overrides = [*SMALL, *ONE]
    result = finished(tmp_path, *overrides, *taught(teacher, alpha, temperature))
    found = load_file(result.weights)
    wanted = plainly(overrides, teacher, alpha, temperature)
    untaught = plainly(overrides, teacher, 0.0, 1.0)
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6)
    assert any(not torch.allclose(found[name], untaught[name], rtol=1e-3, atol=1e-3) for name in found)


def test_alpha_0_is_plain_training_bit_for_bit(tmp_path: Path, teacher: Path) -> None:
    plain = finished(tmp_path, *SMALL, *TWO, name="plain")
    none = finished(tmp_path, *SMALL, *TWO, *taught(teacher, 0), name="none")
    some = finished(tmp_path, *SMALL, *TWO, *taught(teacher, 1e-3), name="some")
    assert weights(plain.path) == weights(none.path) != weights(some.path)


def close(one: Path, other: Path) -> None:
    mine, its = (load_file(each / "model.safetensors") for each in (one, other))
    for name, tensor in mine.items():
        torch.testing.assert_close(its[name], tensor, rtol=1e-4, atol=2e-6)


def test_two_workers_with_micro_batches_train_as_one(tmp_path: Path, teacher: Path) -> None:
    serial = finished(tmp_path, *SMALL, *ONE, *taught(teacher), name="serial")
    two = finished(tmp_path, *SMALL, *TWO, *taught(teacher), "accumulate=3", name="two")
    close(serial.path, two.path)


@pytest.mark.parametrize(
    "sync", ["bsp_naive", *(pytest.param(each, marks=slow) for each in ("asp", "local_sgd", "gossip", "fedavg"))]
)
def test_the_teacher_is_neither_sent_nor_saved_and_is_counted(tmp_path: Path, teacher: Path, sync: str) -> None:
    plain = finished(tmp_path, *SMALL, *TWO, f"sync={sync}", name="plain")
    student = finished(tmp_path, *SMALL, *TWO, f"sync={sync}", *taught(teacher), name="student")
    assert student.summary["wire"]["bytes_per_step"] == plain.summary["wire"]["bytes_per_step"]
    assert load_file(student.weights).keys() == load_file(plain.weights).keys()
    held = payload([*load_file(teacher / "model.safetensors").values()])
    buffers = {run.path.name: run.summary["memory"]["buffers"] for run in (plain, student)}
    assert buffers["student"] - buffers["plain"] == held > 0
    plans = [prepare([*SMALL, *TWO, f"sync={sync}", *more]).plan() for more in ((), taught(teacher))]
    assert plans[1].parts[0].memory["buffers"] - plans[0].parts[0].memory["buffers"] == held
    assert plans[1].parts[0].memory["activations"] == student.summary["memory"]["activations"]


def test_a_forward_pass_of_the_teacher_takes_its_time_on_the_virtual_cluster(tmp_path: Path, teacher: Path) -> None:
    """Of 2 m n flops for each matrix and sample, and a third of a step's overhead."""
    of_network = ("hardware.flops=1e6", "hardware.overhead=0.003")
    runs = [
        finished(tmp_path, *SMALL, *ONE, *of_network, *more, name=name)
        for name, more in (("plain", ()), ("student", taught(teacher)))
    ]
    plain, student = (each.summary["step_time"]["compute"] for each in runs)
    flops = 16 * 2 * sum(m * n for m, n in ((64, 24), (24, 20), (20, 10)))
    assert student - plain == pytest.approx(flops / 1e6 + 0.001)


@pytest.mark.dist
@slow
@pytest.mark.usefixtures("fork_server")
def test_on_processes_it_resumes_bit_for_bit_and_its_checkpoints_hold_no_teacher(tmp_path: Path, teacher: Path) -> None:
    local = [each for each in SMALL if each not in ("hardware=virtual", "checkpoint.every=0", "steps=8")]
    local += [*TWO, *taught(teacher), "checkpoint.every_steps=4"]
    whole = finished(tmp_path, *local, "steps=8", name="whole")
    finished(tmp_path, *local, "steps=4", name="parts")
    again = run(["steps=8"], root=tmp_path, quiet=True, resume="parts")
    assert again is not None and weights(whole.path) == weights(again.path)
    [folder, *_] = sorted((again.path / "checkpoints").iterdir())
    saved = sum(each.stat().st_size for each in folder.rglob("*.safetensors"))
    assert saved < 3 * payload([*load_file(whole.weights).values()]) + 10_000


@slow
@pytest.mark.parametrize(
    "adapt",
    [
        ("adapt=lora",),
        ("adapt=quantized", "adapt.ends=true"),
        ("adapt=pruned",),
        ("adapt=pufferfish", "adapt.warm_up=4", "adapt.unit=steps", "model.hidden=[12,12]"),
    ],
    ids=lambda words: words[0],
)
def test_the_student_may_be_adapted(tmp_path: Path, teacher: Path, adapt: tuple[str, ...]) -> None:
    plain = finished(tmp_path, *SMALL, *TWO, *adapt, name="plain")
    student = finished(tmp_path, *SMALL, *TWO, *adapt, *taught(teacher), name="student")
    assert math.isfinite(student.summary["loss"]) and weights(plain.path) != weights(student.path)


@slow
def test_a_teacher_with_batch_norms_stays_as_it_is(tmp_path: Path) -> None:
    net = ("model=resnet", "model.depth=8", "model.width=2", *ALIKE[:2], *ONE, "hardware=virtual", "steps=2")
    made = finished(tmp_path, *net, name="resnet").path
    parts = assemble(prepare([*SMALL, *ONE, *taught(made)]).experiment, ())
    [teaches] = [each for each in parts.features if isinstance(each, Distilled)]
    before = load_file(made / "model.safetensors")
    model, images = teaches.teacher.on(torch.device("cpu")), parts.load()[0].take(slice(0, 9)).inputs
    logits = teaches.targets(images, torch.zeros(9), model).tensors["teacher"]
    alone = teaches.targets(images[:1], torch.zeros(1), model).tensors["teacher"]
    torch.testing.assert_close(logits[:1], alone)  # as no batch norm is over the batch
    assert not logits.requires_grad
    assert all(torch.equal(before[name], tensor) for name, tensor in state_of(model).items())


def test_a_teacher_may_change_what_it_is_given(teacher: Path) -> None:
    parts = assemble(prepare([*SMALL, *ONE, *taught(teacher)]).experiment, ())
    [teaches] = [each for each in parts.features if isinstance(each, Distilled)]
    images = torch.full((9, 1, 8, 8), -1.0)
    changes = nn.Sequential(nn.ReLU(inplace=True), teaches.teacher.on(torch.device("cpu")))
    assert teaches.targets(images, torch.zeros(9), changes) is not None and (images == -1).all()


def test_a_teacher_goes_with_adversarial_training(tmp_path: Path, teacher: Path) -> None:
    overrides = [*SMALL, *ONE, "hardware=virtual", *taught(teacher), "adversarial_training=fast", "steps=2"]
    assert math.isfinite(finished(tmp_path, *overrides, name="both").summary["loss"])


# -- what is refused


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("strategy=pipeline",), "strategy=pipeline has the model in pieces"),
        (
            ("strategy=zero",),
            "its passes to a library. Choose distillation=none, or strategy=data_parallel",
        ),
        (("strategy=tensor",), "strategy=tensor has the model in pieces"),
        (("task=hinge",), "task=hinge makes none of a model's outputs; task=cross_entropy"),
        (("privacy=dp_sgd",), "privacy=dp_sgd clips the gradients of samples, or changes. Choose distillation=none"),
        (("distillation.teacher=null",), "distillation.teacher=null: must be a finished run"),
        (("distillation.alpha=1.5",), "distillation.alpha=1.5"),
        (("distillation.temperature=0",), "distillation.temperature=0"),
        (("distillation.teacher=nobody",), "distillation.teacher=nobody: there is no such file, and no run of that"),
        (("distillation.teacher=.",), "distillation.teacher=.: must be a run, by its name or its directory"),
    ],
)
def test_what_it_does_not_go_with_is_refused_by_name(teacher: Path, overrides: tuple[str, ...], says: str) -> None:
    local = [*ALIKE, "model.hidden=[12]", "hardware.workers=2", *taught(teacher), *overrides]
    with pytest.raises(ConfigError) as refused:
        prepare(local).plan()
    assert says in str(refused.value)


def test_a_teacher_that_was_changed_or_has_other_inputs_is_refused(tmp_path: Path, teacher: Path) -> None:
    text = [*ALIKE[:1], "data=text", "model=gpt", "hardware.workers=1", *taught(teacher)]
    with pytest.raises(ConfigError):
        prepare(text).plan()
    copy = tmp_path / "copied"
    copy.mkdir()
    for name in ("config.yaml", "summary.json", "metrics.jsonl", "model.safetensors"):
        (copy / name).write_bytes((teacher / name).read_bytes())
    assert prepare([*SMALL, *ONE, *taught(copy)]).plan() is not None
    damaged = bytearray((copy / "model.safetensors").read_bytes())
    damaged[-1] ^= 1
    (copy / "model.safetensors").write_bytes(damaged)
    with pytest.raises(CorruptCheckpointError, match="is damaged"):
        prepare([*SMALL, *ONE, *taught(copy)]).plan()


def rows(path: Path, names: str, columns: str = "ab") -> list[str]:
    cells = {"a": "1.5,-2.5,3.5", "b": "0.5,1.5,-1.5"}
    lines = [",".join([*columns, "kind"])]
    lines += [
        ",".join([*(cells.get(each, "1,2,4").split(",")[i % 3] for each in columns), names[i % 3]]) for i in range(15)
    ]
    path.write_text("\n".join(lines) + "\n")
    return ["tracking=none", "data=table", f"data.path={path}", "data.targets=kind", "model.hidden=[4]", *ONE]


@pytest.mark.budget(2)
def test_a_teacher_of_other_classes_or_columns_or_of_margins_is_refused(tmp_path: Path) -> None:
    first = [*rows(tmp_path / "first.csv", "xyz"), "hardware=virtual", "steps=1"]
    known = finished(tmp_path, *first, name="known").path
    same = rows(tmp_path / "same.csv", "xyz")
    assert prepare([*same, *taught(known)]).plan() is not None
    for other, says in (
        (rows(tmp_path / "named.csv", "xyw"), "its classes are x, y, z, and those of data=table are w, x, y"),
        (rows(tmp_path / "turned.csv", "xyz", "ba"), "its inputs are a, b, and those of data=table are b, a"),
    ):
        with pytest.raises(ConfigError, match=f"distillation.teacher={known}: {says}"):
            prepare([*other, *taught(known)]).plan()
    with pytest.raises(ConfigError, match=f"weights={known}.*: the inputs of its run are a, b, and those of data=tab"):
        prepare([*other, f"weights={known}"]).plan()
    prepare([*rows(tmp_path / "new.csv", "uvw"), f"weights={known}"]).plan()  # of other classes, to be trained on
    margins = finished(tmp_path, *first, "task=hinge", name="margins").path
    with pytest.raises(ConfigError, match="was trained with task=hinge, whose scores are no logits"):
        prepare([*same, *taught(margins)]).plan()


@pytest.mark.budget(2)
def test_columns_and_classes_beyond_those_that_are_told_have_an_order_too(tmp_path: Path) -> None:
    first = [*rows(tmp_path / "first.csv", "xyz", "abcdefgh"), "hardware=virtual", "steps=1"]
    known = finished(tmp_path, *first, name="known").path
    prepare([*rows(tmp_path / "same.csv", "xyz", "abcdefgh"), f"weights={known}", *taught(known)]).plan()
    late = rows(tmp_path / "late.csv", "xyz", "abcdefhg")
    told = "a, b, c, d, e, and 3 more"
    words = f"inputs of its run are {told}, and those of data=table are {told}; the rest differs. Choose data"
    with pytest.raises(ConfigError, match=words):
        prepare([*late, f"weights={known}"]).plan()
    with pytest.raises(ConfigError, match=f"its inputs are {told}, and those .* are {told}; the rest differs. Choose"):
        prepare([*late, *taught(known)]).plan()


def test_a_run_names_its_teacher_by_the_whole_path(teacher: Path) -> None:
    told = prepare([*SMALL, *ONE, "distillation=hinton", f"distillation.teacher={teacher.name}"], root=teacher.parent)
    assert told.experiment.choice("distillation").knobs["teacher"] == str(teacher)


def test_a_step_with_a_teacher_is_not_predicted_and_verify_has_no_reference_for_it(
    tmp_path: Path, teacher: Path
) -> None:
    prepared = prepare(["hardware=lab", "model.hidden=[12]", *taught(teacher)], machine(tmp_path))
    with pytest.raises(NotPredicted, match="distillation=hinton asks another model in each step"):
        prepared.step_time(prepared.plan())
    with pytest.raises(ConfigError, match="distillation=hinton: the reference learns labels alone"):
        verify(["distillation=hinton"])
