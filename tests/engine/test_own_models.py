"""Users' models, losses and data: allowed behaviour, and the refusal of the rest."""

import re
import sys
from contextlib import nullcontext
from operator import is_
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from looking_models import CONSTRUCTORS, FORWARDS
from own_models import Changing, Unseeded
from safetensors.torch import load_file
from short_runs import HERE
from torch import nn

from paceline import engine
from paceline.comm import Comm
from paceline.conf.errors import ConfigError
from paceline.engine import Result, prepare
from paceline.engine.base.errors import ChangedModelError, WorkerFailedError
from paceline.engine.base.memory import held, optimizer_state
from paceline.engine.base.trained import FixedState
from paceline.engine.config import looking as looking_at_values
from paceline.engine.planning.build import assemble
from paceline.engine.planning.planned import Plan
from paceline.engine.training.alike import begin_alike
from paceline.strategies.core.read_only import ReadOnlyWeights
from paceline.testing.fabrics import run_virtual
from paceline.tracking.run_directory import RunDirectory

QUICK = ["tracking=none", "steps=4", "checkpoint.every=0", "hardware=virtual"]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fork_server: None) -> Any:
    monkeypatch.setattr(sys, "path", [*sys.path, str(HERE)])

    def train(model: str, *overrides: str, workers: int = 2, unknown: int = 0, **knobs: str) -> Result:
        told = "".join(f",{key}:{value}" for key, value in knobs.items())
        chosen = [
            f"model={{_target_:own_models.{model}{told}}}",
            f"data={{_target_:own_models.Rows,unknown:{unknown}}}",
            f"hardware.workers={workers}",
            f"batch_size={32 // workers}",
        ]
        result = engine.run(
            [*QUICK, *chosen, *overrides],
            allow_modules=["own_models"],
            name=f"own-{workers}",
            root=tmp_path,
            quiet=True,
        )
        assert result is not None
        return result

    return train


@pytest.mark.dist
@pytest.mark.parametrize("sync", ["bsp", pytest.param("asp", marks=pytest.mark.slow)])
def test_nan_in_the_inputs_of_test_rows_is_no_accuracy_and_ends_the_run(train, tmp_path: Path, sync: str) -> None:
    with pytest.raises(WorkerFailedError) as caught:
        train("InPlace", f"sync={sync}", f"stop_at_target={str(sync == 'bsp').lower()}", unknown=3)
    assert caught.value.exit_code == 6
    assert "the inputs of test sample 29 (counted from 0) hold NaN or infinite values. Look at the data" in str(
        caught.value
    )
    records = list(RunDirectory(tmp_path / "own-2").records())
    assert not any(record["kind"] == "evaluation" for record in records)
    assert records[-1]["kind"] == "end" and records[-1]["status"] == "diverged"


@pytest.mark.dist
def test_a_forward_that_changes_its_input_is_evaluated_alike_each_time(train, tmp_path: Path) -> None:
    train("InPlace", "optimizer.lr=1e-30", "epochs=4", "evaluate.every=1", "steps=8")
    evaluations = [record for record in RunDirectory(tmp_path / "own-2").records() if record["kind"] == "evaluation"]
    assert len(evaluations) > 2 and len({(each["loss"], each["accuracy"]) for each in evaluations}) == 1


@pytest.mark.dist
@pytest.mark.parametrize("buffered", ["false", "true"])
def test_a_run_notes_a_number_of_the_model_that_evaluations_do_not_have(train, buffered: str) -> None:
    run = train("Counting", "evaluate.every=100", buffered=buffered)
    notes = [record["text"] for record in RunDirectory(run.path).records() if record["kind"] == "note"]
    told = ["model=Counting: steps is 4 where it trained, and 0 in evaluations, which have"]
    assert [text[: len(told[0])] for text in notes if "model=" in text] == (told if buffered == "false" else [])


CHANGES = {
    "thawed": "first.weight requires gradients since step 2, and did not when the run began",
    "swapped": "second.weight is another tensor since step 2",
    "swapped_weight": "second.weight is another tensor since step 2",
    "grown": "second.weight is gone since step 2",
    "another_dtype": "first.weight is torch.bfloat16 since step 2, and was torch.float32 when the run began",
    "another_buffer": "saved buffer second.seen is [3] since step 2, and was nothing when the run began",
}


@pytest.mark.dist
@pytest.mark.parametrize(
    ("kind", "sync"),
    [
        pytest.param(kind, sync, marks=[] if sync == "bsp" or kind == "thawed" else pytest.mark.slow)
        for kind in CHANGES
        for sync in ("bsp", "local_sgd", "parameter_server")
    ],
)
def test_a_model_that_changes_what_is_trained_ends_the_run(train, kind: str, sync: str) -> None:
    with pytest.raises(WorkerFailedError) as caught:
        train("Changing", f"sync={sync}", kind=kind)
    assert caught.value.exit_code == 4 and CHANGES[kind] in str(caught.value)


@pytest.mark.dist
@pytest.mark.parametrize(
    ("kind", "name", "told"),
    [
        ("max_norm", "table.weight", ["sync=bsp"]),
        ("own_optimizer", "scale", ["sync=bsp", "hardware.workers=3", "batch_size=8"]),
        ("from_batch", "scale", ["sync=bsp_naive", "hardware=local"]),
        ("from_batch", "scale", ["sync=bsp", "sync.shard=gradients"]),
        ("frozen", "scale", ["sync=parameter_server"]),
        ("from_batch", "scale", ["strategy=torch_ddp", "hardware=local"]),
    ],
)
def test_a_model_that_changes_weights_apart_ends_a_run_whose_replicas_are_equal(
    train, kind: str, name: str, told: list[str]
) -> None:
    with pytest.raises(WorkerFailedError) as caught:
        train("Apart", *told, kind=kind)
    assert caught.value.exit_code == 4 and caught.value.cause == "ReplicasDifferError"
    assert f"parameter {name} of worker 1 differs from worker 0's in step 1" in str(caught.value)
    assert "hosts of several kinds round it differently" in str(caught.value)


@pytest.mark.dist
@pytest.mark.parametrize(("sync", "workers"), [("bsp", 1), ("local_sgd", 2)])
def test_a_model_may_change_weights_where_replicas_differ_or_there_is_one(train, sync: str, workers: int) -> None:
    assert train("Apart", f"sync={sync}", kind="own_optimizer", workers=workers).summary["status"] == "completed"


def test_a_model_whose_first_weights_ignore_the_seed_begins_alike_on_all_workers() -> None:
    parts: Any = SimpleNamespace(experiment=SimpleNamespace(weights=None), sync=None)

    def begun(comm: Comm) -> tuple[bool, dict[str, torch.Tensor]]:
        model = Unseeded()
        return begin_alike(parts, model, comm, torch.device("cpu")), model.state_dict()

    first, *others = run_virtual(3, begun)
    assert first[0] and len(first[1]) == 5
    assert all(torch.equal(other[name], first[1][name]) for _, other in others for name in other)


@pytest.mark.dist
@pytest.mark.parametrize("told", [["sync=bsp"], ["sync=independent", "hardware=local"], ["sync=ssp"]])
def test_a_run_notes_that_first_weights_ignore_the_seed(train, told: list[str]) -> None:
    run = train("Unseeded", *told)
    notes = [record["text"] for record in RunDirectory(run.path).records() if record["kind"] == "note"]
    assert sum("draws numbers that do not follow from the seed" in text for text in notes) == 1


@pytest.mark.dist
def test_a_constructor_that_draws_the_sizes_of_layers_ends_the_run(train) -> None:
    with pytest.raises(WorkerFailedError, match="worker 1 builds another model than worker 0") as caught:
        train("Unseeded", sizes="true")
    assert caught.value.exit_code == 4


@pytest.mark.dist
def test_a_parameter_that_is_thawed_while_fsdp_has_it_whole_ends_the_run(train) -> None:
    with pytest.raises(WorkerFailedError) as caught:
        train("Changing", "strategy=torch_fsdp", "hardware=local", kind="thawed")
    assert caught.value.exit_code == 4 and CHANGES["thawed"] in str(caught.value)


@pytest.mark.dist
@pytest.mark.parametrize("kind", ["another_activation", "unsaved_buffer"])
def test_a_module_without_parameters_and_a_buffer_that_nobody_saves_may_come(train, kind: str) -> None:
    assert train("Changing", kind=kind).summary["status"] == "completed"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("another_norm", "norm.running_mean is [2] since step 7, and was nothing"),
        ("given_buffer", "given is [3] since step 7, and was nothing"),
        ("longer_buffer", "long is [4] since step 7, and was [2]"),
        ("no_buffer", "long is nothing since step 7, and was [2]"),
    ],
)
def test_saved_buffers_that_come_go_or_grow_are_refused(kind: str, said: str) -> None:
    model = Changing(kind)
    saved = FixedState(model)
    saved.check("since step 6")
    model.second.unsaved = nn.Buffer(torch.zeros(3), persistent=False)
    saved.check("since step 6")
    model.change()
    with pytest.raises(ChangedModelError, match=f"^model: saved buffer {re.escape(said)} when the run began"):
        saved.check("since step 7")


@pytest.mark.dist
@pytest.mark.parametrize(
    "layout",
    [
        "sync.shard=none",
        "strategy=torch_fsdp hardware=local",
        *(pytest.param(f"sync.shard={shard}", marks=pytest.mark.slow) for shard in ("optimizer", "gradients")),
    ],
)
def test_what_is_frozen_and_thawed_in_mid_run_trains_as_on_one_worker(train, layout: str) -> None:
    """Its momentum and its weights rest meanwhile."""
    told = ("optimizer=sgd", "optimizer.momentum=0.9", "optimizer.weight_decay=0.1", "steps=8", "epochs=100")
    one = load_file(train("Thawing", *told, workers=1).path / "model.safetensors")
    two = load_file(train("Thawing", *told, *layout.split()).path / "model.safetensors")
    assert all(torch.allclose(one[name], two[name], rtol=0, atol=1e-6) for name in one)


@pytest.mark.dist
@pytest.mark.parametrize("schedule", ["gpipe", pytest.param("zb_h1", marks=pytest.mark.slow)])
def test_a_first_stage_may_be_frozen_in_mid_run(train, schedule: str) -> None:
    told = ("optimizer=sgd", "optimizer.momentum=0", "batch_size=32")
    one = load_file(train("FreezingStage", *told, workers=1).path / "model.safetensors")
    pipeline = ("strategy=pipeline", f"strategy.schedule={schedule}", "strategy.micro_batches=1", "strategy.cut=[1]")
    two = load_file(train("FreezingStage", *told, *pipeline).path / "model.safetensors")
    assert all(torch.allclose(one[name], two[name], rtol=0, atol=1e-6) for name in one)


@pytest.mark.dist
@pytest.mark.parametrize("sync", ["gossip", pytest.param("local_sgd", marks=pytest.mark.slow)])
def test_other_memory_under_a_parameter_is_a_change_of_its_values(train, tmp_path: Path, sync: str) -> None:
    made = []
    for kind in ("in_place", "replaced"):
        run = train("Shrinking", f"sync={sync}", kind=kind).path.rename(tmp_path / kind)
        made.append(load_file(run / "model.safetensors"))
    assert all(torch.equal(made[0][name], made[1][name]) for name in made[0])


def outside(kind: str) -> list[str]:
    model = f"model={{_target_:own_models.Outside,kind:{kind}}}"
    return [*QUICK[:-1], "hardware.workers=2", "batch_size=16", "data={_target_:own_models.Rows}", model]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("alone", r"its forward uses a parameter of shape \[8, 2\] that the model does not hold"),
        ("newest", r"its forward uses a parameter of shape \[8, 2\] that the model does not hold"),
        ("shared", "its constructor takes weight from outside, so that a second model has the same parameter"),
    ],
)
@pytest.mark.parametrize("told", [[], ["sync.shard=gradients"], ["strategy=torch_fsdp"], ["strategy=zero"]])
def test_a_forward_that_uses_a_parameter_outside_of_its_model_is_refused(
    plan, kind: str, words: str, told: list[str]
) -> None:
    for _ in range(2):  # in one process
        with pytest.raises(ConfigError, match=words):
            plan([*outside(kind), *told])


def test_a_frozen_parameter_may_be_outside_of_the_model(plan) -> None:
    plan(outside("frozen"))


@pytest.mark.parametrize("kind", ["in_place", "data", "replaced", "read"])
@pytest.mark.parametrize(
    "told",
    [["strategy=torch_fsdp"], ["strategy=zero"], ["strategy=zero", "strategy.stage=0"], ["strategy=data_parallel"]],
)
def test_a_forward_that_writes_to_weights_is_refused_where_that_would_be_lost(plan, kind: str, told: list[str]) -> None:
    chosen = [f"model={{_target_:own_models.Clamped,kind:{kind}}}", "data={_target_:own_models.Rows}"]
    run = [*QUICK, *chosen, "batch_size=16", "hardware=local", "hardware.workers=2", *told]
    if kind == "read" or told[-1] in ("strategy.stage=0", "strategy=data_parallel"):
        plan(run)
        return
    with pytest.raises(ConfigError, match=f"{told[0]}: the model changes its parameter first.weight in its forward"):
        plan(run)


@pytest.mark.parametrize("kind", ["weight", "held", "penalty", "clamped"])
@pytest.mark.parametrize("adapt", ["adapt=lora adapt.rank=1", "adapt=quantized"])
def test_a_forward_that_does_more_than_call_a_layer_which_adapt_replaced_is_refused(plan, kind: str, adapt: str):
    with pytest.raises(ConfigError, match=f"{adapt.split()[0]}: the model uses its parameter second.weight outside"):
        plan(bypassing(kind, adapt))


def test_a_forward_may_use_a_replaced_layers_dtype_and_bias_and_calls_no_factored_one_by_reference(
    plan,
) -> None:
    for adapt in ("adapt=lora adapt.rank=1", "adapt=quantized"):
        plan(bypassing("dtype", adapt))
    with pytest.raises(ConfigError, match=r"a parameter of shape \[8, 8\] that the model does not hold"):
        plan(bypassing("held", "adapt=pufferfish adapt.unit=steps adapt.warm_up=1"))


def bypassing(kind: str, adapt: str) -> list[str]:
    model = f"model={{_target_:own_models.Bypassing,kind:{kind}}}"
    return [*QUICK, model, "data={_target_:own_models.Rows}", "batch_size=16", *adapt.split()]


LOCAL = ["hardware=local", "hardware.threads=1"]
KEPT = ["transpose", "data", "buffer", "function"]
REST = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("data", "function")]
MOVES = (
    ["sync=local_sgd", "hardware.workers=1"],
    *(
        pytest.param(way, marks=pytest.mark.slow)
        for way in (["sync=asp"], [*LOCAL, "strategy=zero", "strategy.stage=1"], [*LOCAL, "strategy=torch_fsdp"])
    ),
)


@pytest.mark.dist
@pytest.mark.parametrize("kind", ["transpose", *(pytest.param(k, marks=pytest.mark.slow) for k in KEPT[1:])])
@pytest.mark.parametrize("way", MOVES, ids=" ".join)
def test_a_view_of_a_parameter_that_is_moved_is_refused_and_else_trains(train, kind: str, way: list[str]) -> None:
    """strategy=data_parallel sync=bsp leaves parameters where they are, as torch's own loop does."""
    with pytest.raises(WorkerFailedError, match=r"keeps a view of its parameter first\.weight.*Let the forw") as told:
        train("Holding", *way, kind=kind)
    assert told.value.exit_code == 2


@pytest.mark.dist
@pytest.mark.parametrize("kind", [pytest.param("transpose", marks=pytest.mark.slow), "buffer", *REST])
def test_a_view_of_a_parameter_follows_it_where_it_stays(train, tmp_path: Path, kind: str) -> None:
    one = load_file(train("Holding", "strategy=single", workers=1, kind=kind).path / "model.safetensors")
    two = load_file(train("Holding", kind=kind).path / "model.safetensors")
    assert all(torch.allclose(one[name], two[name], rtol=0, atol=1e-6) for name in one)


@pytest.mark.dist
def test_an_attribute_that_a_layers_hook_makes_anew_is_no_view(train) -> None:
    train("Holding", "sync=local_sgd", kind="hooked")


@pytest.mark.parametrize("kind", ["child", "parameter", "called", "penalty"])
def test_a_layers_weights_used_outside_of_it_are_refused_under_fsdp(plan, kind: str) -> None:
    chosen = [f"model={{_target_:own_models.Holding,kind:{kind}}}", "data={_target_:own_models.Rows}"]
    run = [*QUICK, *chosen, "batch_size=16", "hardware=local", "hardware.workers=2"]
    plan([*run, "strategy=torch_ddp"])
    with pytest.raises(ConfigError, match=r"strategy=torch_fsdp: the model uses its parameter first\.weight outside"):
        plan([*run, "strategy=torch_fsdp"])


@pytest.mark.dist
def test_each_build_of_a_model_begins_with_the_same_default_dtype(train) -> None:
    try:
        weights = load_file(train("Defaulting").path / "model.safetensors")
        assert {each.dtype for each in weights.values()} == {torch.float32} == {torch.get_default_dtype()}
    finally:
        torch.set_default_dtype(torch.float32)


UNFIT = {
    "raises": r"its loss raises, of outputs torch.float32 \[\d+, 2\]: own_models\.Unfit\.loss \(.*, line \d+\): Run",
    "vector": r"its loss is a tensor \[\d+\]; must be a tensor of one number",
    "number": r"its loss is a float; must be",
    "pair": r"its loss is a tuple; must be",
    "detached": r"its loss has no gradient",
    "count": r"its loss has no gradient",
    "parameter": r"scale has parameters, and only the model's are trained",
    "frozen": None,
}


@pytest.mark.parametrize("kind", UNFIT)
def test_a_loss_that_cannot_be_trained_is_refused_by_the_plan(plan, kind: str) -> None:
    run = [*QUICK, f"task={{_target_:own_models.Unfit,kind:{kind}}}", "data={_target_:own_models.Rows}", "model=linear"]
    if (said := UNFIT[kind]) is None:
        plan(run)
        return
    with pytest.raises(ConfigError, match=f"^task=Unfit: {said}"):
        plan(run)


def test_a_models_own_loss_that_raises_is_named_by_the_plan(plan) -> None:
    run = [*QUICK, "task=model", "model={_target_:own_models.WithLoss}", "data={_target_:own_models.Rows}"]
    with pytest.raises(ConfigError, match=r"or its own loss raises: own_models\.WithLoss\.forward \(.*, line \d+\)"):
        plan(run)


IDS = r"are from 0 to 300, and the embedding table\.weight has 256 rows, for ids from 0 to 255\. Choose"


@pytest.mark.dist
@pytest.mark.parametrize(
    "told",
    [
        "strategy=pipeline",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("sync=bsp", "strategy=torch_fsdp")),
    ],
)
def test_an_id_that_an_embedding_lacks_is_told_with_the_embedding(train, told: str) -> None:
    column = "inputs" if told == "strategy=pipeline" else "tokens"
    with pytest.raises(WorkerFailedError, match=f"IndexError: the ids in {column} {IDS}"):
        hardware = "virtual" if told == "sync=bsp" else "local"
        train("Tagger", "data={_target_:own_models.Tokens}", told, f"hardware={hardware}", "hardware.workers=2")


def test_an_id_that_an_embedding_lacks_is_told_by_a_plan_that_reads_samples(plan) -> None:
    with pytest.raises(ConfigError, match=f"IndexError: the ids in tokens {IDS}"):
        plan([*QUICK, "model={_target_:own_models.Tagger,looks:true}", "data={_target_:own_models.Tokens}"])


@pytest.mark.parametrize("told", ["sync=bsp", "sync.shard=gradients", "strategy=tensor", "strategy=zero"])
def test_an_optimizer_whose_step_raises_is_refused_by_the_plan_with_its_line(plan, told: str) -> None:
    optimizer = "optimizer={_target_:own_models.Raising,always:true}"
    line = r"own_models\.Raising\.step \(.*own_models\.py, line \d+\): KeyError: 'momentum'"
    with pytest.raises(ConfigError, match=f"^optimizer: Raising cannot be used here: {line}$"):
        plan([*QUICK[:-1], optimizer, "hardware.workers=2", "batch_size=16", told])


@pytest.mark.dist
@pytest.mark.parametrize("told", ["sync=bsp", pytest.param("sync=asp", marks=pytest.mark.slow), "sync.shard=gradients"])
def test_an_optimizer_whose_step_raises_in_training_ends_the_run_with_its_line(train, told: str) -> None:
    with pytest.raises(WorkerFailedError, match=r"KeyError: 'momentum', in own_models\.Raising\.step") as caught:
        train("InPlace", "optimizer={_target_:own_models.Raising,always:false}", told)
    assert caught.value.exit_code == 4


@pytest.mark.dist
@pytest.mark.parametrize("declared", [True, False])
def test_an_error_above_the_target_is_no_accuracy_that_was_reached(train, declared: bool) -> None:
    run = train("InPlace", f"task={{_target_:own_models.Erring,declared:{declared}}}", "target_accuracy=0.5")
    errors = [record["error"] for record in RunDirectory(run.path).records() if record["kind"] == "evaluation"]
    assert errors and min(errors) >= 0.5 and run.time_to_accuracy is None
    assert run.summary["metric"] == {"name": "error", "larger_is_better": not declared}
    assert engine.compare(run).rows[0]["error"] == errors[-1] == engine.compare(run).best("error")["error"]


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("stop_at_target=true", "stop_at_target=true: a smaller error is better"),
        ("callbacks=[early_stop]", "callbacks.early_stop.mode=auto: a smaller error is better. Choose mode=min"),
        ("callbacks=[best]", "callbacks.best.mode=auto: a smaller error is better"),
        ("callbacks=[best] callbacks.best.mode=min", None),
        ("callbacks=[best] callbacks.best.metric=loss", None),
    ],
)
def test_callbacks_that_take_larger_for_better_refuse_an_error(plan, told: str, said: str | None) -> None:
    run = [*QUICK, "task={_target_:own_models.Erring,declared:true}", "data={_target_:own_models.Rows}", "model=linear"]
    with pytest.raises(ConfigError, match=f"^{said}") if said else nullcontext():
        plan([*run, *told.split()])


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_that_would_end_the_run_is_refused_by_a_plan(plan, kind: str) -> None:
    said = re.escape(CHANGES[kind].replace("since step 2", "after a forward pass"))
    model = f"model={{_target_:own_models.Changing,kind:{kind},at:0}}"
    with pytest.raises(ConfigError, match=f"^model: [a-z ]*{said}"):
        plan([*QUICK, model, "data={_target_:own_models.Rows}"])


@pytest.mark.parametrize("kind", ["none", "empty", "mean", "unsaved"])
def test_a_saved_buffer_that_a_forward_pass_gives_another_shape_is_refused(plan, kind: str) -> None:
    run = [*QUICK, f"model={{_target_:own_models.Remembering,kind:{kind}}}", "data={_target_:own_models.Rows}"]
    if kind in ("mean", "unsaved"):
        plan(run)
        return
    with pytest.raises(
        ConfigError, match=r": saved buffer last is \[\d+, 2\] after a forward pass, and was (nothing|\[0\])"
    ):
        plan(run)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("layer", "head.weight is new after"),
        ("bias", "head.bias is new after"),
        ("empty", "scale is another tensor after"),
        ("filled", r"scale is \[2\] after a forward pass, and was \[0\]"),
    ],
)
def test_a_parameter_that_a_forward_pass_makes_is_refused_with_advice_for_parameters(
    plan, kind: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=rf": parameter {said}") as caught:
        plan([*QUICK, f"model={{_target_:own_models.BuiltLate,kind:{kind}}}", "data={_target_:own_models.Rows}"])
    assert "constructor" in str(caught.value) and "nn.LazyLinear" in str(caught.value)
    assert "persistent" not in str(caught.value)


def check_resumed(train: Any, root: Path, model: str, *overrides: str, workers: int) -> None:
    """Checks that a run which is interrupted halfway ends with the weights of one that is not."""
    whole = train(model, *LOCAL, *overrides, "steps=6", workers=workers)
    whole.path.rename(root / "whole")
    train(model, *LOCAL, *overrides, "steps=3", "checkpoint.every_steps=3", workers=workers)
    resumed = engine.run(["steps=6"], allow_modules=["own_models"], resume=f"own-{workers}", root=root, quiet=True)
    one, two = (load_file(each / "model.safetensors") for each in (root / "whole", resumed.path))
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.dist
def test_an_optimizer_that_takes_its_parameters_from_sets_is_refused_when_it_resumes(train, tmp_path: Path) -> None:
    train("Alike", *LOCAL, "optimizer={_target_:own_models.FromSets}", "checkpoint.every_steps=1", "steps=1", workers=1)
    with pytest.raises(WorkerFailedError, match="optimizer=FromSets: has its parameters in another order") as caught:
        engine.run(["steps=2"], allow_modules=["own_models"], resume="own-1", root=tmp_path, quiet=True)
    assert caught.value.exit_code == 2


def test_an_optimizer_of_ones_own_keeps_the_order_of_its_parameters() -> None:
    experiment = prepare([*QUICK, "optimizer={_target_:own_models.Reversed}"], allow_modules=["own_models"]).experiment
    parts = assemble(experiment, ("own_models",))
    params = [*parts.modules[0].parameters()]
    assert all(map(is_, parts.make_optimizer(params).param_groups[0]["params"], reversed(params)))


@pytest.mark.dist
def test_momentum_of_sparse_gradients_is_saved_and_resumes_bit_for_bit(train, tmp_path: Path) -> None:
    check_resumed(train, tmp_path, "Looked", "optimizer=sgd", "optimizer.momentum=0.9", workers=1)


@pytest.mark.dist
@pytest.mark.parametrize(
    "told",
    [
        ["sync=bsp"],
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in (
                ["sync.shard=gradients"],
                ["sync=local_sgd"],
                ["strategy=torch_ddp"],
                ["strategy=torch_fsdp"],
                ["strategy=zero"],
                ["strategy=pipeline", "hardware.workers=4"],
            )
        ),
    ],
    ids=" ".join,
)
def test_a_model_that_trains_with_running_statistics_resumes_bit_for_bit(
    train, tmp_path: Path, told: list[str]
) -> None:
    check_resumed(train, tmp_path, "RunningNorms", *told, workers=2)


def test_an_embedding_that_holds_its_weights_to_a_norm_is_refused_where_that_would_be_lost() -> None:
    model = nn.Sequential(nn.Embedding(8, 4, max_norm=1.0), nn.Linear(4, 2))
    weights = dict(model.named_parameters())
    with pytest.raises(ConfigError, match=r"changes its parameter 0\.weight"), ReadOnlyWeights(weights, "", ""):
        model(torch.tensor([1, 2]))


DROPPING = ["parameter_server", "asp", "asp sync.fetch=2", "ssp", "backup_workers", "push_sum"]


@pytest.mark.parametrize("mode", [*DROPPING, "bsp", "hogwild", "local_sgd", "fedavg", "easgd", "gossip"])
def test_weights_that_a_forward_pass_bounds_stay_so_or_the_sync_mode_is_refused(plan, mode: str) -> None:
    chosen = [*QUICK, "data={_target_:own_models.Rows}", "hardware.workers=2", "batch_size=16", *f"sync={mode}".split()]
    refused = pytest.raises(ConfigError, match=r"sync=\w+: .* its parameter scale .* would drop .* Choose sync=bsp")
    with refused if mode in DROPPING else nullcontext():
        plan([*chosen, "model={_target_:own_models.Bounded}"])
    plan([*chosen, "model={_target_:own_models.Bounded,trained:false}"])


@pytest.mark.parametrize("told", [(), ("strategy.batch_norm=all",)])
def test_torchs_synchronised_batch_norm_is_refused_where_it_would_not_be_synchronised(plan, told: tuple[str]) -> None:
    chosen = [*QUICK, "model={_target_:own_models.Synchronised}", "data={_target_:own_models.Rows}", "batch_size=16"]
    with pytest.raises(ConfigError, match=r"SyncBatchNorm|no batch norm"):
        plan([*chosen, *told, "hardware.workers=2"])


def test_torchs_synchronised_batch_norm_of_one_worker_is_batch_norm(plan) -> None:
    plan([*QUICK, "model={_target_:own_models.Synchronised}", "data={_target_:own_models.Rows}", "hardware.workers=1"])


LOOKING = [*(("Looking", kind) for kind in FORWARDS), *(("Built", kind) for kind in CONSTRUCTORS)]
TRAINED = {("Looking", "item"), ("Looking", "routed"), ("Built", "linspace")}


def looking(name: str, kind: str, *overrides: str, workers: int = 2) -> list[str]:
    chosen = f"model={{_target_:looking_models.{name},kind:{kind}}}"
    sized = (f"hardware.workers={workers}", f"batch_size={32 // workers}")
    return [*QUICK, chosen, "data={_target_:own_models.Rows}", *sized, *overrides]


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [*sys.path, str(HERE)])

    def plan(overrides: list[str]) -> Plan:
        return engine.prepare(overrides, allow_modules=["looking_models", "own_models"]).plan()

    return plan


@pytest.mark.parametrize(("name", "kind"), LOOKING)
def test_a_model_that_looks_at_values_has_a_plan(plan, name: str, kind: str) -> None:
    made = plan(looking(name, kind))
    assert all(part.memory["activations"] > 0 for part in made.phases[0].parts)
    tells = [note for note in made.notes if "looks at values" in note]
    assert len(tells) == (name == "Looking") and all("8 samples of the data" in note for note in tells)
    assert kind != "zeros" or "(it makes a tensor without device=x.device, x its input" in tells[0]


@pytest.mark.dist
@pytest.mark.parametrize(
    ("name", "kind"),
    [pytest.param(*each, marks=[] if each in TRAINED else pytest.mark.slow) for each in LOOKING],
)
def test_a_model_that_looks_at_values_trains(fork_server, plan, tmp_path: Path, name: str, kind: str) -> None:
    allowed = ["looking_models", "own_models"]
    result = engine.run(looking(name, kind), allow_modules=allowed, name="own", root=tmp_path, quiet=True)
    assert result is not None and result.summary["status"] == "completed" and result.summary["accuracy"] is not None


def test_its_activations_are_those_of_the_same_model_without_the_look(plan) -> None:
    plain = plan(looking("Looking", "plain")).phases[0].parts[0].memory
    assert plan(looking("Looking", "formatted")).phases[0].parts[0].memory == plain


@pytest.mark.parametrize("strategy", ["pipeline", "tensor", "torch_pipelining"])
def test_a_strategy_that_computes_shapes_refuses_a_forward_that_looks_at_values(plan, strategy: str) -> None:
    hardware = "hardware=local" if strategy.startswith("torch") else "hardware=virtual"
    with pytest.raises(
        ConfigError, match=r"without values, and model=Looking looks at values \(RuntimeError: Tensor.it"
    ):
        plan(looking("Looking", "item", f"strategy={strategy}", hardware))


@pytest.mark.parametrize("detaches", [False, True])
@pytest.mark.parametrize("strategy", ["data_parallel", "torch_fsdp", "zero"])
def test_outputs_without_a_gradient_are_refused_by_the_plan(plan, strategy: str, detaches: bool) -> None:
    model = f"model={{_target_:own_models.Ungraded,detaches:{detaches}}}"
    chosen = [*QUICK, model, "data={_target_:own_models.Rows}", f"strategy={strategy}", "batch_size=16"]
    with pytest.raises(ConfigError, match=r"^model=Ungraded: its outputs have no gradient, and it has parameters"):
        plan([*chosen, "hardware=local", "hardware.workers=2"])


@pytest.mark.parametrize("attacked", ["evaluate.attack=fgsm", "adversarial_training=fast"])
@pytest.mark.parametrize("detaches", [False, True])
def test_outputs_without_a_gradient_by_inputs_are_refused_by_the_plan_of_an_attack(
    plan, attacked: str, detaches: bool
) -> None:
    model = f"model={{_target_:own_models.OfIntegers,detaches:{detaches}}}"
    with pytest.raises(ConfigError, match=r"^OfIntegers: its outputs have no gradient by its inputs, which an attack"):
        plan([*QUICK, model, "data=digits", attacked])


@pytest.mark.parametrize("free", [1_000, 2_000])  # less than its weights, and than these with their gradients
def test_a_model_that_looks_at_values_is_not_tried_where_it_has_no_room(
    plan, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    monkeypatch.setattr(looking_at_values, "available", lambda: free)
    with pytest.raises(ConfigError, match=r"^model=Looking: looks at values .*this host has .* free"):
        plan(looking("Looking", "item"))


def test_a_constructor_that_looks_at_values_ends_where_its_weights_have_no_room(
    plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking_at_values, "available", lambda: 100)
    with pytest.raises(ConfigError, match=r"^model: its constructor looks at values.*Up to weight its weights take "):
        plan(looking("Built", CONSTRUCTORS[0]))


@pytest.mark.parametrize("kind", CONSTRUCTORS)
def test_a_pipeline_takes_a_constructor_that_looks_at_values(plan, kind: str) -> None:
    assert len(plan(looking("Built", kind, "strategy=pipeline")).phases[0].parts) == 2


@pytest.mark.dist
@pytest.mark.slow
def test_an_orthogonal_layer_trains_in_a_pipeline(fork_server, plan, tmp_path: Path) -> None:
    overrides = looking("Built", "orthogonal", "strategy=pipeline")
    assert engine.run(overrides, allow_modules=["looking_models", "own_models"], root=tmp_path, quiet=True) is not None


@pytest.mark.parametrize("optimizer", ["Adafactor", "ASGD"])
def test_an_optimizer_that_looks_at_values_has_a_plan(plan, optimizer: str) -> None:
    [memory] = {plan["optimizer"] for plan in _memories(plan, f"optimizer={{_target_:torch.optim.{optimizer}}}")}
    model = nn.Linear(8, 2)
    made = getattr(torch.optim, optimizer)(model.parameters())
    model(torch.randn(3, 8)).sum().backward()
    made.step()
    assert memory == held(optimizer_state(made))


def _memories(plan: Any, *overrides: str) -> list[dict[str, int]]:
    chosen = [*QUICK, "model={_target_:own_models.InPlace}", "data={_target_:own_models.Rows}", "hardware.workers=2"]
    return [dict(part.memory) for part in plan([*chosen, *overrides]).phases[0].parts]


@pytest.mark.parametrize("strategy", ["data_parallel", "tensor"])  # the second needs shapes, and asks for them within
def test_a_forward_that_fails_on_values_too_is_refused_for_that(plan, strategy: str) -> None:
    with pytest.raises(ConfigError, match="AssertionError: no_such_kind"):
        plan(looking("Looking", "no_such_kind", f"strategy={strategy}"))


@pytest.mark.dist
def test_a_lazy_layer_is_given_its_shape_and_trains_as_on_one_worker(train) -> None:
    one = load_file(train("Lazy", workers=1).path / "model.safetensors")
    two = load_file(train("Lazy").path / "model.safetensors")
    assert one["first.weight"].shape == (4, 8)
    assert all(torch.allclose(one[name], two[name], rtol=0, atol=1e-6) for name in one)


@pytest.mark.dist
def test_the_older_weight_norm_trains_on_the_virtual_cluster(train) -> None:
    assert train("WeightNorm").summary["status"] == "completed"


def test_an_optimizer_that_asserts_is_refused_with_its_words(plan) -> None:
    with pytest.raises(ConfigError, match="optimizer: Adam cannot be used here: If capturable=True, params"):
        _memories(plan, "optimizer={_target_:torch.optim.Adam,capturable:true}")


@pytest.mark.parametrize("other", ["foreach", "differentiable"])
def test_a_plan_refuses_a_fused_optimizer_as_the_run_does(plan, other: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"optimizer\.fused=True, optimizer\.{other}=True: `fused`.*torch\.optim\.Adam"
    ):
        _memories(plan, f"optimizer={{_target_:torch.optim.Adam,fused:true,{other}:true}}")


@pytest.mark.dist
@pytest.mark.slow
def test_ddp_with_unused_parameters_names_the_knob(train) -> None:
    with pytest.raises(WorkerFailedError, match=r"Choose strategy\.find_unused=true"):
        train("Unused", "strategy=torch_ddp", "hardware=local")


@pytest.mark.parametrize("sync", ["local_sgd", "parameter_server", "gossip"])
def test_an_optimizer_that_renews_the_memory_of_its_parameters_trains(sync: str, train: Any, tmp_path: Path) -> None:
    found = []
    for renews in (False, True):
        optimizer = f"optimizer={{_target_:own_models.Stepping,renews:{renews}}}"
        run = train("Lazy", f"sync={sync}", optimizer).path.rename(tmp_path / str(renews))
        found.append(load_file(run / "model.safetensors"))
    assert all(torch.equal(each, found[1][name]) for name, each in found[0].items())


@pytest.mark.parametrize("chosen", ["sync=bsp", "sync=local_sgd", "sync=parameter_server"])
def test_parameters_that_share_memory_stay_together_or_are_refused(chosen: str, train: Any) -> None:
    if chosen == "sync=bsp":
        weights = load_file(train("Transposed", chosen).path / "model.safetensors")
        assert torch.equal(weights["first.weight"].t(), weights["second.weight"])
        return
    with pytest.raises(WorkerFailedError, match=r"first\.weight and second\.weight share memory") as told:
        train("Transposed", chosen)
    assert told.value.exit_code == 2


def test_a_label_is_not_taken_for_a_parameter_that_is_called_name() -> None:
    words = ["model={_target_:own_models.Named,name:biased}", "data={_target_:own_models.Rows}", "tracking=none"]
    with pytest.raises(ConfigError, match=r"^model.name=biased: .* Named takes a `name`, too. Add \+model.name=biased"):
        engine.prepare(words, allow_modules=["own_models"])
    for added, shapes in (("+model.name=biased", ["bias", "weight"]), ("+model.name=plain", ["weight"])):
        assert sorted(engine.prepare([*words, added], allow_modules=["own_models"]).plan().shapes) == shapes


@pytest.mark.dist
def test_a_run_with_weights_in_columns_resumes_bit_for_bit(train, tmp_path: Path) -> None:
    kept = ["hardware=local", "checkpoint.every_steps=2", "optimizer=adam"]
    whole = train("Columns", *kept, workers=1)
    (tmp_path / "own-1").rename(tmp_path / "whole")
    train("Columns", *kept, "steps=2", workers=1)
    resumed = engine.run(["steps=4"], resume="own-1", allow_modules=["own_models"], root=tmp_path, quiet=True)
    assert resumed is not None and whole.weights is not None
    weights = load_file(resumed.weights), load_file(tmp_path / "whole" / "model.safetensors")
    assert all(each.equal(weights[1][name]) for name, each in weights[0].items())
