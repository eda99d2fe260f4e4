"""A plan's step on accelerators that are described: which layout it stands for, and what is not predicted."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.cost.devices import DEVICES, INSIDE
from paceline.cost.layout import ParallelLayout
from paceline.cost.links import Link, Links
from paceline.cost.predicted import NotPredicted, PredictedStep
from paceline.cost.published import efficiency
from paceline.cost.step import Cluster, step_time
from paceline.cost.transformer import Transformer
from paceline.engine.predict.step_time import FORMULAS

SMALL = ["data=text", "data.context=128", "model=gpt", "model.n_layer=8", "model.width=256", "batch_size=64"]
EIGHT = ["hardware=a100_8", *SMALL]
OF = Transformer(8, 256, 4, 128, 256, tied=False, dropout=False)
CLUSTER = Cluster(
    DEVICES["A100"], Links(Link(INSIDE["A100"].latency, 2.5e11), Link(INSIDE["A100"].latency, 2.5e11), 8), 2.4e10
)
LLAMA = "model.n_kv_head=2 model.ffn_width=704 model.gated=true model.rotary=10000 model.rms_norm=true"
TWO, FOUR = {"data": 2, "batch": 128}, {"data": 4, "batch": 256, "micro_batch": 16}
USUAL = ParallelLayout(8 * 64, 64, data=8, fused=True, overlap=True, dtype="float32")


def predicted(*overrides: str) -> PredictedStep:
    prepared = engine.prepare(list(overrides))
    return prepared.step_time(prepared.plan())


@pytest.mark.parametrize(
    ("overrides", "layout"),
    [
        ("", {}),
        ("strategy=torch_ddp", {}),
        ("sync.shard=optimizer", {"zero": 1}),
        ("strategy=torch_fsdp", {"zero": 3}),
        ("strategy=torch_fsdp strategy.shard_over=4", {"zero": 3, "shard_over": 4}),
        ("strategy=zero", {"zero": 2}),
        ("strategy=zero strategy.stage=3 precision=bf16", {"zero": 3, "dtype": "bfloat16"}),
        ("strategy=zero strategy.offload=all", {"zero": 3, "offload": "all"}),
        ("strategy=zero strategy.micro_batches=4", {"zero": 2, "micro_batch": 16}),
        ("strategy=zero accumulate=4", {"zero": 2, "micro_batch": 16}),
        ("accumulate=4", {"micro_batch": 16}),
        ("strategy=zero strategy.recompute=true", {"zero": 2, "recompute": "full"}),
        ("model.recompute=true", {"recompute": "full"}),
        ("strategy=tensor strategy.degree=4", TWO | {"tensor": 4}),
        ("strategy=pipeline strategy.stages=4", TWO | {"micro_batch": 16, "stages": 4}),
        ("strategy=pipeline strategy.schedule=interleaved", FOUR | {"stages": 2, "chunks": 2}),
        ("strategy=hybrid", TWO | {"micro_batch": 16, "stages": 2, "tensor": 2}),
    ],
)
def test_a_strategy_stands_for_its_layout(overrides: str, layout: dict[str, Any]) -> None:
    step = predicted(*EIGHT, *overrides.split())
    assert step.parts == asdict(step_time(OF, replace(USUAL, **layout), CLUSTER, efficiency(CLUSTER.device)))


def test_rates_shares_and_prices_follow_from_the_time() -> None:
    step = predicted(*EIGHT)
    seconds = step.seconds
    assert step.mfu == pytest.approx(OF.pass_flops(8 * 64, recomputed=False) / (seconds * 8 * 19.5e12))
    assert step.of_tokens(1e9) == pytest.approx(1e9 / (8 * 64 * 128) * seconds)
    assert step.price(3600) == pytest.approx(27.44705)
    raw = step.as_dict()
    assert sum(raw["parts"].values()) == pytest.approx(raw["seconds"])
    assert raw["samples_per_second"] * 128 == pytest.approx(raw["tokens_per_second"])
    assert set(raw["parts"]) == set(raw["formulas"]) == set(FORMULAS)
    assert step.record() == {key: raw[key] for key in ("seconds", "parts", "formulas", "how")}


def test_the_feed_forward_layer_of_the_configuration_is_predicted() -> None:
    of = replace(OF, kv_heads=2, inner=704, gated=True, positions=False)
    step = predicted(*EIGHT, *LLAMA.split())
    assert step.parts == asdict(step_time(of, USUAL, CLUSTER, efficiency(CLUSTER.device)))
    assert step.flops == of.pass_flops(8 * 64, recomputed=False)


def test_the_active_ones_of_all_experts_compute_a_token() -> None:
    of = replace(OF, experts=4, active=2)
    step = predicted(*EIGHT, "model.experts=4", "model.active=2")
    assert step.parts == asdict(step_time(of, USUAL, CLUSTER, efficiency(CLUSTER.device)))
    assert step.flops == of.pass_flops(8 * 64, recomputed=False)
    with pytest.raises(NotPredicted, match=r"factors beside attention alone, as adapt has it with model\.experts"):
        predicted(*EIGHT, "model.experts=8", "adapt=lora")


def test_a_gpt_of_your_own_file_that_leaves_knobs_out_has_their_defaults(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("_target_: paceline.tasks.models.gpt.GPT\nn_layer: 8\nwidth: 256\n")
    own = [each for each in EIGHT if not each.startswith("model")]
    prepared = engine.prepare([*own, "model=mine"], config_dir=tmp_path)
    assert prepared.step_time(prepared.plan()).parts == predicted(*EIGHT).parts


def test_two_hosts_talk_over_their_cards_and_cost_twice_as_much() -> None:
    two = predicted(*EIGHT, "hardware.workers=16")
    cluster = replace(CLUSTER, links=Links(CLUSTER.links.inside, Link(6e-5, 5e10), 8))
    layout = replace(USUAL, data=16, batch=16 * 64)
    assert two.parts == asdict(step_time(OF, layout, cluster, efficiency(cluster.device)))
    assert two.price(3600) == pytest.approx(2 * 27.44705)


def test_batch_size_is_what_one_replica_takes_as_everywhere() -> None:
    one, eight = (predicted(*EIGHT, f"hardware.workers={n}") for n in (1, 8))
    assert (one.samples, eight.samples) == (64, 8 * 64)
    assert one.parts["compute"] == eight.parts["compute"]
    assert predicted(*EIGHT, "batch_size=4").samples == 32


def test_micro_batches_that_are_not_of_one_size_take_as_long_as_the_largest() -> None:
    step = predicted(*EIGHT, "strategy=pipeline", "strategy.stages=4", "batch_size=10")
    layout = replace(USUAL, data=2, batch=24, micro_batch=3, stages=4)
    assert step.parts == asdict(step_time(OF, layout, CLUSTER, efficiency(CLUSTER.device)))
    assert step.samples == 20


def test_clipping_and_averaging_take_bytes_beside_adams_32() -> None:
    plain = predicted(*EIGHT).parts
    for overrides, nbytes in (("clip=norm", 12), ("clip=value", 8), ("clip=norm average=ema", 24), ("average=swa", 0)):
        parts = predicted(*EIGHT, *overrides.split()).parts
        assert parts == {**plain, "optimizer": pytest.approx((1 + nbytes / 32) * plain["optimizer"])}


def test_an_unknown_price_stays_unknown() -> None:
    assert predicted(*EIGHT, "hardware.machine.price_per_hour=null").price(3600) is None


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (SMALL, "hardware.machine names no accelerator"),
        (["hardware=laptop", *SMALL], "hardware.machine names no accelerator"),
        ([*EIGHT, "hardware.device=cpu"], "workers do not compute on the accelerators"),
        (
            ["hardware=a100_8", "model=cnn", "data=fashion_mnist"],
            "model=cnn: on accelerators, times are known of model=gpt and",
        ),
        ([*EIGHT, "sync=asp"], "sync=asp sends what the data and the run decide"),
        ([*EIGHT, "aggregate=median"], "aggregate=median: the time that it takes on accelerators is not known"),
        ([*EIGHT, "attack=sign_flip"], "attack=sign_flip: the time that it takes"),
        ([*EIGHT, "stragglers=exponential"], "stragglers=exponential: the time that it takes"),
        ([*EIGHT, "compress=qsgd"], "compress=qsgd: the time that it takes on accelerators"),
        ([*EIGHT, "strategy=pipeline", "strategy.schedule=zb_h1"], "zb_h1: no closed form gives its bubble"),
        (
            [*EIGHT, "strategy=torch_zero_optimizer"],
            "strategy=torch_zero_optimizer: the time that it takes",
        ),
        (
            [*EIGHT, "strategy=torch_ddp", "strategy.zero_optimizer=true"],
            "strategy=torch_ddp: the time that it takes",
        ),
        ([*EIGHT, "sync=bsp_naive"], "sync=bsp_naive sends what"),
        ([*EIGHT, "strategy=torch_fsdp", "accumulate=4"], "accumulate=4: times of torch_fsdp are known of"),
        (["hardware=h200", *SMALL, "hardware.workers=8"], "hardware.machine.network does not say"),
        ([*EIGHT, "hardware.machine.accelerator=B200"], "how fast B200 is in float32 is not known"),
    ],
)
def test_what_is_not_predicted_says_why(overrides: list[str], why: str) -> None:
    with pytest.raises(NotPredicted, match=why):
        predicted(*overrides)


def test_an_accelerator_that_nobody_knows_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"accelerator=A1000: not a device. Choose one of V100, T4, .*, or null"):
        engine.prepare([*EIGHT, "hardware.machine.accelerator=A1000"])
