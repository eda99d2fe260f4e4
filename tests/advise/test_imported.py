"""Configurations of other tools become lines that paceline takes, and what has no override is named."""

import json
from pathlib import Path

import pytest

from paceline import engine
from paceline.advise import formats
from paceline.advise.imported import MODELS, SCHEDULES, read
from paceline.conf.errors import ConfigError

FILES = Path(__file__).parent / "imported"
# Each file: the tool, what it becomes, what is left out
BECOMES = {
    "zero3.json": (
        "deepspeed",
        "strategy=zero strategy.stage=3 strategy.offload=all precision=bf16 strategy.micro_batches=4 batch_size=16 "
        "hardware.workers=4 clip=norm clip.max=1 optimizer=adamw optimizer.lr=3e-05 optimizer.eps=1e-08 "
        "optimizer.weight_decay=0.1 optimizer.betas=[0.9,0.95]",
        "zero_optimization.offload_optimizer.pin_memory=true zero_optimization.offload_param.pin_memory=true "
        "zero_optimization.overlap_comm=true zero_optimization.stage3_prefetch_bucket_size=50000000 "
        "scheduler.type=WarmupLR scheduler.params.warmup_num_steps=500 wall_clock_breakdown=false",
    ),
    "trainer.json": (
        "deepspeed",
        "strategy=zero strategy.stage=2 strategy.offload=optimizer optimizer=adamw optimizer.weight_decay=0.01",
        "fp16.enabled=auto fp16.loss_scale=0 fp16.initial_scale_power=16 optimizer.params.lr=auto "
        "zero_optimization.allgather_bucket_size=200000000.0 gradient_accumulation_steps=auto gradient_clipping=auto "
        "train_batch_size=auto train_micro_batch_size_per_gpu=auto",
    ),
    "fsdp.yaml": (
        "accelerate",
        "strategy=torch_fsdp strategy.reshard=false precision=bf16 hardware.workers=4",
        "compute_environment=LOCAL_MACHINE debug=false downcast_bf16=no fsdp_config.fsdp_activation_checkpointing=true "
        "fsdp_config.fsdp_auto_wrap_policy=TRANSFORMER_BASED_WRAP machine_rank=0 main_training_function=main",
    ),
    "megatron.yaml": (
        "accelerate",
        "strategy=hybrid strategy.stages=2 strategy.tensor=2 strategy.schedule=1f1b strategy.micro_batches=4 "
        "strategy.sequence=true clip=norm clip.max=1 precision=fp32 hardware.workers=8",
        "megatron_lm_config.megatron_lm_recompute_activations=true",
    ),
    "llama3_8b.toml": (
        "torchtitan",
        "model=llama_8b data=tokens data.context=8192 strategy=torch_fsdp batch_size=1 steps=1000 clip=norm clip.max=1 "
        "optimizer=adamw optimizer.lr=0.0003 optimizer.eps=1e-08",
        "job.description=Llama 3 8B training lr_scheduler.warmup_steps=200 training.dataset=c4 "
        "activation_checkpoint.mode=selective activation_checkpoint.selective_ac_option=op",
    ),
    "staged.toml": (
        "torchtitan",
        "strategy=hybrid strategy.stages=2 strategy.tensor=2 strategy.schedule=1f1b strategy.micro_batches=16 "
        "batch_size=32 hardware.workers=8 precision=bf16 optimizer=adamw optimizer.betas=[0.9,0.95] "
        "strategy.recompute=true",
        "model.name=deepseek_v3 model.flavor=16B",
    ),
}


@pytest.mark.parametrize("name", BECOMES)
def test_a_file_becomes_overrides_and_names_the_rest(name: str) -> None:
    tool, overrides, left_out = BECOMES[name]
    found = read(tool, FILES / name)
    assert " ".join(found.overrides) == overrides
    assert " ".join(found.left_out) == left_out


@pytest.mark.parametrize("name", ["fsdp.yaml", "staged.toml", "zero3.json"])
def test_a_byte_order_mark_is_no_part_of_the_settings(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text((FILES / name).read_text(), "utf-8-sig")
    tool, overrides, _ = BECOMES[name]
    assert " ".join(read(tool, tmp_path / name).overrides) == overrides


@pytest.mark.parametrize("name", [name for name in BECOMES if name != "llama3_8b.toml"])
def test_the_overrides_are_accepted_with_a_model_of_tokens(name: str) -> None:
    tool, *_ = BECOMES[name]
    model = ["model=gpt", "model.n_layer=2", "data=text", "tracking=none"]
    plan = engine.prepare([*model, *read(tool, FILES / name).overrides]).plan()
    assert plan.layout.workers in (2, 4, 8)


def test_schedules_and_models_are_those_that_are_exported() -> None:
    assert {ours: theirs for theirs, ours in SCHEDULES.items()} == formats.SCHEDULES
    assert {ours: theirs for theirs, ours in MODELS.items()} == formats.FLAVORS


def changed(tmp_path: Path, name: str, **settings: object) -> Path:
    file = tmp_path / name
    file.write_text(json.dumps(settings))
    return file


@pytest.mark.parametrize(
    ("settings", "becomes"),
    [
        ({"train_batch_size": "auto"}, "strategy=zero strategy.stage=0"),
        ({"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}}, "optimizer=adam optimizer.weight_decay=0"),
        ({"optimizer": {"type": "SGD", "params": {"lr": 1}}}, "optimizer=sgd optimizer.lr=1 optimizer.weight_decay=0"),
        ({"fp16": {"enabled": True, "initial_scale_power": 8}}, "precision=fp16 precision.scale=256.0"),
        ({"train_micro_batch_size_per_gpu": 4, "train_batch_size": 64}, "batch_size=4"),
        ({"zero_optimization": {"stage": 2, "cpu_offload": True}}, "strategy.stage=2 strategy.offload=optimizer"),
        ({"zero_optimization": {"stage": 3, "cpu_offload_param": True}}, "strategy.stage=3 strategy.offload=all"),
    ],
    ids=str,
)
def test_settings_of_deepspeed_keep_their_meaning(settings: dict[str, object], becomes: str, tmp_path: Path) -> None:
    found = read("deepspeed", changed(tmp_path, "a.json", wall_clock_breakdown=True, **settings))
    assert becomes in " ".join(found.overrides) and "hardware.workers" not in " ".join(found.overrides)


@pytest.mark.parametrize(
    ("tool", "name", "text", "says"),
    [
        ("megatron", "a.json", "{}", "import megatron: there is no such format. Choose deepspeed, accelerate"),
        ("deepspeed", "none.json", None, "cannot be read (No such file or directory)"),
        ("deepspeed", "a.json", "{", "is not valid JSON"),
        ("deepspeed", "a.json", "[]", "has no settings by name"),
        ("deepspeed", "a.json", '{"gradient_clipping": true}', "gradient_clipping=true: must be a finite number"),
        ("deepspeed", "a.json", '{"optimizer": {"type": "Adam", "params": {"betas": [1]}}}', "must be two numbers."),
        ("deepspeed", "a.json", '{"gradient_clipping": NaN}', "=NaN: must be a finite number of at least 0."),
        ("deepspeed", "a.json", '{"zero_optimization": {"stage": 7}}', "must be a whole number from 0 to 3."),
        ("deepspeed", "a.json", '{"fp16": {"enabled": true, "initial_scale_power": 1024}}', "number from 1 to 1023."),
        ("deepspeed", "a.json", '{"fp16": {"enabled": true}, "bf16": {"enabled": true}}', "Choose one precision."),
        ("deepspeed", "a.json", '{"dependencies": {}, "name": "x"}', "has no setting of deepspeed."),
        (
            "deepspeed",
            "a.json",
            '{"train_batch_size": 9, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}',
            "train_batch_size=9: is no multiple of 2 samples x 2 micro-batches. Choose 4.",
        ),
        ("accelerate", "a.yaml", "distributed_type: XLA", "distributed_type=XLA: paceline has nothing like it"),
        ("accelerate", "a.yaml", "num_processes: 4", "distributed_type is missing. Choose NO"),
        ("accelerate", "a.yaml", "distributed_type: NO\nnum_processes: 0", "num_processes=0: must be a whole number"),
        ("accelerate", "a.yaml", "distributed_type: FSDP\nnum_machines: 3\nnum_processes: 8", "is no multiple of"),
        ("torchtitan", "a.toml", "a = ", "is not valid TOML"),
        pytest.param("torchtitan", "a.toml", f"a = {'9' * 5000}", "5000 digits", id="long number"),
        pytest.param("torchtitan", "a.toml", f"a = {'[' * 2000}", "is nested more than 64 deep", id="deep TOML"),
        ("torchtitan", "a.toml", f"a = {'[' * 70}{']' * 70}", "is nested more than 64 deep"),
        ("torchtitan", "a.toml", "[project]", "has no setting of torchtitan."),
        ("torchtitan", "a.py", "import os", "is Python, which is not run"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_a_choice(
    tool: str, name: str, text: str | None, says: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as refused:
        read(tool, tmp_path / name)
    assert says in str(refused.value)
