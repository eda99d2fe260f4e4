"""The table of training costs of public models: what its rows state, how they are completed, and what it counts."""

import pytest

from benchmarks.published.levels import alike, level
from benchmarks.published.models import (
    BEGIN,
    DEVICES,
    DOCS,
    EFFECTIVE,
    END,
    TrainedModel,
    completed,
    is_close,
    models,
    table,
)
from benchmarks.published.rows import Row
from paceline.cost.device import Efficiency
from paceline.cost.step import step_time

ROW = {
    "model": "some 7B", "params_b": "6.7", "tokens_b": "1000", "gpu": "A100-SXM", "gpu_mem_gb": "80", "gpus": "64",
    "interconnect": "", "framework": "Megatron-LM", "attention": "flash", "precision": "bf16", "arch": "llama",
    "layers": "32", "hidden": "4096", "heads": "32", "kv_heads": "", "ffn": "11008", "vocab": "32000", "seq": "2048",
    "tp": "", "pp": "", "vp": "", "zero": "", "micro_batch": "", "global_batch": "1024", "recompute": "",
    "gpu_hours": "1e5", "covers": "all", "evidence": "read", "source": "a paper",
}  # fmt: skip


def row(**values: object) -> Row:
    return {key: str({**ROW, **values}[key]) for key in ROW}


def test_at_least_twenty_models_cost_what_is_predicted_within_a_quarter() -> None:
    found = models()
    close = [each.row["model"] for each in found if is_close(each.predicted() / each.reported)]
    assert len(found) >= 25
    assert len(close) >= 20, close


def test_the_page_has_the_table_as_it_is_computed() -> None:
    written = DOCS.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip()
    assert written == table(models()), "write it anew: python -m benchmarks.published.models --write"


@pytest.mark.parametrize("model", models(), ids=lambda each: each.row["model"])
def test_a_row_has_a_source_and_a_shape_of_as_many_parameters_as_it_says(model: TrainedModel) -> None:
    its, of = model.row, model.case.of
    assert its["source"] and its["covers"] and its["evidence"].partition(";")[0] in ("read", "recalled")
    matrix = of.vocabulary * of.width / 1e9  # tied or not, the row does not say
    entries = of.entries() / 1e9 - (of.tied is False) * matrix
    said = float(its["params_b"])
    assert min(abs(entries / said - 1), abs((entries + matrix) / said - 1)) < 0.05


def test_models_are_named_once() -> None:
    names = [each.row["model"] for each in models()]
    assert len(names) == len(set(names))


def test_a_layout_that_is_not_stated_is_the_first_that_fits() -> None:
    roomy = completed(row())
    assert (roomy.layout.tensor, roomy.layout.recompute, roomy.layout.zero) == (1, "none", 1)
    larger = completed(row(micro_batch=2 * roomy.layout.micro_batch, recompute="none", tp=1))
    assert roomy.room is not None and roomy.need <= roomy.room < larger.need
    tight = completed(row(gpu_mem_gb=32))
    assert (tight.layout.tensor, tight.layout.recompute) == (1, "full")
    assert completed(row(gpu_mem_gb=24)).layout.tensor > 1
    assert completed(row(pp=2, micro_batch="")).layout.micro_batch == 1


def test_sharding_devices_and_batch_that_are_not_stated_follow_rules() -> None:
    assert completed(row(framework="FSDP")).layout.zero == 3
    assert completed(row(framework="FSDP", zero=2)).layout.zero == 2
    assert completed(row(gpus="", tp=1)).layout.devices == DEVICES
    few = completed(row(gpus="", global_batch="", seq=8192, tp=1)).layout
    assert few.batch * 8192 == 2**22 and few.devices == few.batch


def test_hours_are_those_of_the_steps_of_all_tokens() -> None:
    model = TrainedModel(row(), completed(row()))
    fits = Efficiency(level=level(alike(model.case)))
    seconds = step_time(model.case.of, model.case.layout, model.case.cluster, fits).total
    assert model.predicted(1) == pytest.approx(1e12 / (1024 * 2048) * seconds * 64 / 3600)
    assert model.predicted() == pytest.approx(model.predicted(1) / EFFECTIVE)
    newer = row(attention="flash 2")
    assert TrainedModel(newer, completed(newer)).predicted() < model.predicted()
    older = row(attention="none")
    assert TrainedModel(older, completed(older)).predicted() > model.predicted()


def test_the_rate_is_that_of_paceline_cost() -> None:
    plain = row(recompute="none")
    assert TrainedModel(plain, completed(plain)).by_rate() == pytest.approx(6 * 6.7e9 * 1e12 / 1.4e14 / 3600)
    again = row(recompute="full")
    assert TrainedModel(again, completed(again)).by_rate() == pytest.approx(8 * 6.7e9 * 1e12 / 1.4e14 / 3600)
    eight = row(precision="fp8", gpu="H100-SXM")
    assert TrainedModel(eight, completed(eight)).by_rate() is None


def test_what_is_not_close_is_marked_and_what_is_not_stated_has_a_star() -> None:
    far = row(model="far", gpu_hours=1, recompute="full")
    near = row(model="near", gpus="")
    near["gpu_hours"] = str(TrainedModel(near, completed(near)).predicted())
    lines = table([TrainedModel(each, completed(each)) for each in (far, near)]).splitlines()
    assert lines[0].startswith(f"| models | step time / {EFFECTIVE:g}") and lines[2].startswith("| all | 1 of 2 |")
    assert "| **" in lines[-2] and ", full |" in lines[-2] and "| 64 A100 |" in lines[-2]
    assert "| 1.00 |" in lines[-1] and ", none* |" in lines[-1] and "| 1,024* A100 |" in lines[-1]
