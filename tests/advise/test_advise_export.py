"""Layouts in the configurations of torchtitan, Accelerate and DeepSpeed."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from needs import needs_accelerate

from paceline.advise.answer import Answer, answer
from paceline.advise.export import export
from paceline.advise.formats import ExportedLayout, InexpressibleError, accelerate, deepspeed, torchtitan
from paceline.advise.question import ask
from paceline.conf.errors import ConfigError
from paceline.cost.layout import ParallelLayout
from paceline.exchange.clip import ByNorm, Unclipped
from paceline.strategies.external.deepspeed_settings import Noting
from paceline.strategies.precision import BFloat16, Float16, Float32

TOML, PYTHON, YAML, JSON = map(Path, ("run.toml", "run.py", "run.yaml", "run.json"))
SHARDED = ExportedLayout(
    layout=ParallelLayout(batch=64, micro_batch=4, data=8, zero=3, recompute="full"),
    command="paceline train model=llama_8b",
    model="llama_8b",
    layers=32,
    tokens=8192,
    workers=8,
    hosts=1,
    schedule=None,
    groups=1,
    reshards=True,
    config=None,
    clip=Unclipped(),
    precision=BFloat16(),
)


def but(of: ExportedLayout = SHARDED, /, **changed: Any) -> ExportedLayout:
    """Returns the layout with other fields, of its own or of its `ParallelLayout`."""
    own = {name: value for name, value in changed.items() if hasattr(of, name)}
    inner = {name: value for name, value in changed.items() if name not in own}
    return replace(of, layout=replace(of.layout, **inner), **own)


STAGED = but(
    batch=64, micro_batch=2, data=2, tensor=2, stages=2, zero=2, recompute="none", schedule="1f1b", reshards=False
)


# -- torchtitan


def test_shards_are_fsdp_in_torchtitan() -> None:
    made = torchtitan(but(clip=ByNorm(0.5)), TOML)
    assert made.text.startswith("# paceline train model=llama_8b\n") and made.notes == []
    assert tomllib.loads(made.text) == {
        "model": {"name": "llama3", "flavor": "8B"},
        "training": {
            "local_batch_size": 4,
            "global_batch_size": 64,
            "seq_len": 8192,
            "enable_cpu_offload": False,
            "mixed_precision_param": "bfloat16",
            "max_norm": 0.5,
        },
        "parallelism": {
            "data_parallel_replicate_degree": 1,
            "data_parallel_shard_degree": 8,
            "fsdp_reshard_after_forward": "always",
            "tensor_parallel_degree": 1,
            "pipeline_parallel_degree": 1,
            "context_parallel_degree": 1,
        },
        "activation_checkpoint": {"mode": "full"},
    }


def test_whole_copies_and_groups_of_shards_are_replicas_in_torchtitan() -> None:
    whole = tomllib.loads(torchtitan(but(zero=0, reshards=False, precision=Float32()), TOML).text)
    grouped = tomllib.loads(torchtitan(but(groups=2, offload="all"), TOML).text)
    degrees = [
        (each["parallelism"]["data_parallel_replicate_degree"], each["parallelism"]["data_parallel_shard_degree"])
        for each in (whole, grouped)
    ]
    assert degrees == [(8, 1), (2, 4)]
    assert whole["training"]["mixed_precision_param"] == "float32"
    assert [each["training"]["enable_cpu_offload"] for each in (whole, grouped)] == [False, True]


def test_stages_have_their_schedule_and_micro_batches_in_torchtitan() -> None:
    made = tomllib.loads(torchtitan(STAGED, TOML).text)
    assert made["training"]["local_batch_size"] == 32 and made["activation_checkpoint"]["mode"] == "none"
    assert made["parallelism"] == {
        "data_parallel_replicate_degree": 1,
        "data_parallel_shard_degree": 2,
        "fsdp_reshard_after_forward": "never",
        "tensor_parallel_degree": 2,
        "pipeline_parallel_degree": 2,
        "context_parallel_degree": 1,
        "pipeline_parallel_schedule": "1F1B",
        "pipeline_parallel_microbatch_size": 2,
    }


@pytest.mark.parametrize(("stages", "chunks", "less", "layers"), [(2, 2, 1, 9), (2, 4, 0, 4), (4, 4, 0, 2)])
def test_interleaved_stages_have_as_many_layers_as_make_their_number(
    stages: int, chunks: int, less: int, layers: int
) -> None:
    """torchtitan counts 32 layers, and `less` for the embedding and for the head, and rounds stages up."""
    of = but(STAGED, stages=stages, chunks=chunks, schedule="interleaved")
    made = tomllib.loads(torchtitan(of, TOML).text)["parallelism"]
    assert made["pipeline_parallel_schedule"] == "Interleaved1F1B"
    ends = [made[f"pipeline_parallel_{end}_stage_less_layers"] for end in ("first", "last")]
    assert (ends, made["pipeline_parallel_layers_per_stage"]) == ([less, less], layers)
    assert -(-(32 + 2 * less) // layers) == stages * chunks


def test_torchtitan_is_told_to_choose_a_model_that_is_not_among_its_own() -> None:
    made = torchtitan(but(model="gpt_1b"), TOML)
    assert "model" not in tomllib.loads(made.text) and "name and flavor of [model]" in made.notes[0]


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_newer_torchtitan_gets_a_function(recompute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = SimpleNamespace(FullAC=SimpleNamespace(Config=lambda: "full"))
    monkeypatch.setitem(__import__("sys").modules, "torchtitan.distributed.activation_checkpoint", policy)
    names: dict[str, Any] = {}
    exec(torchtitan(but(STAGED, recompute=recompute, sequence=True), PYTHON).text, names)
    config = SimpleNamespace(training=SimpleNamespace(), parallelism=SimpleNamespace())
    made = names["laid_out"](config)
    assert made is config and made.activation_checkpoint == (None if recompute == "none" else "full")
    assert made.parallelism.tensor_parallel_degree == 2 and made.parallelism.enable_sequence_parallel is True
    assert made.parallelism.pipeline_parallel_schedule == "1F1B" and made.training.mixed_precision_param == "bfloat16"


# -- Accelerate


def test_shards_are_fsdp_2_in_accelerate() -> None:
    made = accelerate(but(workers=16, hosts=2), YAML)
    assert made.text.startswith("# paceline train model=llama_8b\n# Batches are the script's: 4 a process, Accel")
    assert "gradient_accumulation_steps=2" in made.notes[0] and "--machine_rank K" in made.notes[1]
    assert yaml.safe_load(made.text) == {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "mixed_precision": "bf16",
        "num_machines": 2,
        "num_processes": 16,
        "machine_rank": 0,
        "rdzv_backend": "static",
        "same_network": True,
        "main_training_function": "main",
        "use_cpu": False,
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": True,
            "fsdp_offload_params": False,
            "fsdp_activation_checkpointing": True,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        },
    }


def test_whole_copies_are_a_process_a_card_in_accelerate() -> None:
    made = accelerate(but(zero=0, tokens=None, precision=Float16()), YAML)
    config = yaml.safe_load(made.text)
    assert config["distributed_type"] == "MULTI_GPU" and "fsdp_config" not in config
    assert config["mixed_precision"] == "fp16" and "recomputed by the model" in made.notes[1]
    alone = accelerate(but(zero=0, batch=8, data=1, workers=1, recompute="none", precision=Float32()), YAML)
    config = yaml.safe_load(alone.text)
    assert (config["distributed_type"], config["mixed_precision"], len(alone.notes)) == ("NO", "no", 1)


def test_groups_of_shards_are_degrees_in_accelerate() -> None:
    made = yaml.safe_load(accelerate(but(groups=2, reshards=False, offload="all"), YAML).text)
    assert made["parallelism_config"] == {
        "parallelism_config_dp_replicate_size": 2,
        "parallelism_config_dp_shard_size": 4,
        "parallelism_config_tp_size": 1,
        "parallelism_config_cp_size": 1,
    }
    assert made["fsdp_config"]["fsdp_reshard_after_forward"] is False
    assert made["fsdp_config"]["fsdp_offload_params"] is True


@needs_accelerate
@pytest.mark.slow
@pytest.mark.parametrize("of", [SHARDED, but(groups=2), but(zero=0)])
def test_accelerate_reads_what_is_written(of: ExportedLayout, tmp_path: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file  # pyright: ignore[reportMissingImports]

    file = tmp_path / "run.yaml"
    file.write_text(accelerate(of, file).text)
    read = load_config_from_file(str(file))
    assert read.num_processes == 8 and bool(read.fsdp_config) == (of.layout.zero > 0)


# -- DeepSpeed


@pytest.mark.parametrize(
    ("of", "stage"),
    [
        (SHARDED, 3),
        (but(zero=2, reshards=False, offload="optimizer"), 2),
        (but(offload="all"), 3),
        (but(zero=1, reshards=False, precision=Float32(), config={"wall_clock_breakdown": True}), 1),
        (but(zero=0, reshards=False, precision=Float16(), clip=ByNorm(1.0)), 0),
    ],
)
def test_deepspeed_reads_what_is_written_and_knows_each_key(
    of: ExportedLayout, stage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paceline.strategies.external.deepspeed_start import quiet_import

    quiet_import()
    from deepspeed.runtime import config as theirs

    monkeypatch.setattr(theirs.dist, "get_rank", lambda: 0)
    made = Noting(json.loads(deepspeed(of, JSON).text))
    world = SimpleNamespace(get_data_parallel_world_size=lambda: 8)
    read = theirs.DeepSpeedConfig(made, mpu=world)
    assert made.keys() <= made.seen
    sizes = read.train_batch_size, read.train_micro_batch_size_per_gpu, read.gradient_accumulation_steps
    assert sizes == (64, 4, 2)
    zero, narrow = read.zero_config, of.precision.name
    assert zero.stage == stage and read.gradient_clipping == (1.0 if stage == 0 else 0.0)
    assert (read.bfloat16_config.enabled, read.float16_config.enabled) == (narrow == "bf16", narrow == "fp16")
    held = [each is not None and each.pin_memory for each in (zero.offload_optimizer, zero.offload_param)]
    assert held == [of.layout.offload != "none", of.layout.offload == "all"]
    assert made.get("wall_clock_breakdown", False) is (stage == 1)


def test_what_strategy_zero_sets_for_itself_is_not_in_deepspeeds_file() -> None:
    made = json.loads(deepspeed(SHARDED, JSON).text)
    assert made["zero_optimization"] == {"stage": 3}
    assert made.keys() == {
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
        "zero_optimization",
        "bf16",
    }


# -- what cannot be expressed


@pytest.mark.parametrize(
    ("write", "of", "says"),
    [
        (torchtitan, but(tokens=None), "sequences of tokens"),
        (torchtitan, but(precision=Float16()), "no float16"),
        (torchtitan, but(zero=1), "torchtitan shards no optimizer state without gradients"),
        (torchtitan, but(offload="optimizer"), "torchtitan keeps no optimizer state on the host without parameters"),
        (torchtitan, but(STAGED, zero=0), "no whole copies beside tensor parallelism or stages"),
        (torchtitan, but(STAGED, data=1, batch=64), "rounds to bfloat16 with shards"),
        (torchtitan, but(STAGED, schedule="naive"), "no strategy.schedule=naive"),
        (torchtitan, but(STAGED, stages=5, chunks=4, schedule="interleaved"), "does not cut 32 layers into 20 stages"),
        (accelerate, STAGED, "has no stages"),
        (accelerate, but(STAGED, stages=1), "leaves tensor parallelism to the model's own plan"),
        (accelerate, but(zero=1), "FSDP of Accelerate shards no optimizer state"),
        (deepspeed, but(STAGED, stages=1), "cuts no layers"),
        (deepspeed, but(STAGED, tensor=1), "cuts no layers"),
        (deepspeed, but(groups=2), "shards over all workers"),
        (deepspeed, but(reshards=False), "after each pass"),
    ],
)
def test_a_layout_that_a_format_cannot_express_is_refused(write, of: ExportedLayout, says: str) -> None:
    file = {torchtitan: TOML, accelerate: YAML, deepspeed: JSON}[write]
    with pytest.raises(InexpressibleError, match=says):
        write(of, file)


def test_the_newer_torchtitan_rounds_without_shards() -> None:
    assert "tensor_parallel_degree = 2" in torchtitan(but(STAGED, data=1, batch=64), PYTHON).text


# -- of an answer


@pytest.fixture(scope="module")
def found() -> Answer:
    words = ["model=gpt", "data=text", "hardware=h100_8", "hardware.hosts=2", "strategy=zero"]
    return answer(ask(words, batch=64), patience=0.0)


def test_the_first_line_is_written_with_its_hosts(found: Answer) -> None:
    row = next(row for row in found.rows if row.candidate.kind == ("zero", "stage 2", 16))
    made = yaml.safe_load(export(replace(found, rows=[row]), "accelerate", YAML).text)
    assert (made["num_processes"], made["num_machines"]) == (16, 2)


def test_weights_that_are_not_trained_are_left_to_the_script(found: Answer) -> None:
    lora = ask([*found.question.overrides, "adapt=lora"], batch=64)
    made = export(replace(found, question=lora), "deepspeed", JSON)
    assert made.notes == ["adapt=lora is the script's: without it, all weights are trained."]
    assert export(found, "deepspeed", JSON).notes == []


def test_a_refusal_names_the_line_that_can_be_written(found: Answer) -> None:
    rows = [next(row for row in found.rows if row.candidate.group == f"stage {stage}") for stage in (1, 3)]
    with pytest.raises(ConfigError) as refused:
        export(replace(found, rows=rows), "torchtitan", TOML)
    says = "torchtitan shards no optimizer state without gradients. Choose deepspeed, or type the settings of line 2"
    assert str(refused.value) == f"--export torchtitan=run.toml: {says} (zero, stage 3)."


def test_no_format_has_what_must_be_raced_or_other_hardware(found: Answer) -> None:
    row = replace(found.rows[0], candidate=replace(found.rows[0].candidate, raced="must be raced"))
    tpu = ask(["model=gpt", "data=text", "hardware=tpu_v5e_8"])
    for changed, says in (
        (replace(found, rows=[row]), "no other tool has the layout zero, stage"),
        (replace(found, question=tpu), "the hardware describes no GPUs. Choose another layout or other hardware."),
    ):
        with pytest.raises(ConfigError, match=says):
            export(changed, "deepspeed", JSON)
