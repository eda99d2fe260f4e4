"""The mesh of `paceline plan`."""

import pytest

from paceline import engine
from paceline.cli.mesh import LINES, drawn_mesh, raw_mesh
from paceline.cli.plan import raw_plan
from paceline.engine.planning.planned import Plan


def planned(*overrides: str) -> Plan:
    return engine.prepare(["hardware=virtual", *overrides]).plan()


@pytest.mark.parametrize("strategy", ["pipeline", "tensor"])
def test_bytes_by_rank_are_those_of_the_plan(strategy: str) -> None:
    plan = planned(f"strategy={strategy}", "hardware.workers=4")
    rows = raw_mesh(plan)
    sent = sum(send["bytes"] for row in rows for send in row["sends"])
    assert sent / 4 == pytest.approx(plan.bytes_per_step())
    axis = "stage" if strategy == "pipeline" else "tensor"
    assert [row["at"] for row in rows] == [{"replica": i // 2, axis: i % 2} for i in range(4)]
    assert [(send["axis"], send["among"]) for send in rows[3]["sends"]] == [(axis, [2, 3]), ("replica", [1, 3])]
    assert raw_plan(plan, None)["mesh_ranks"] == rows


def test_a_hybrid_sends_along_each_axis_and_says_which_stage_is_whole() -> None:
    plan = planned("strategy=hybrid", "hardware.workers=8", "strategy.cut=[5]", "model.hidden=[32,16]")
    rows, text = raw_mesh(plan), drawn_mesh(plan)
    assert sum(send["bytes"] for row in rows for send in row["sends"]) / 8 == pytest.approx(plan.bytes_per_step())
    sends = [(send["axis"], send["among"]) for send in rows[5]["sends"]]
    assert sends == [("stage", [5, 7]), ("tensor", [4, 5]), ("replica", [1, 5])]
    assert [row["is_cut"] for row in rows] == [True, True, False, False] * 2
    assert "1/2 of what is cut in flatten .. relu2" in text[1] and "output, whole" in text[3]
    assert "stage: " in text[2] and "to 3; tensor: " in text[2] and "among 0, 1; replica: " in text[2]


def test_a_pipeline_names_layers_and_the_other_stage() -> None:
    text = drawn_mesh(planned("strategy=pipeline", "hardware.workers=4"))
    assert "flatten .. hidden1" in text[1] and "to 1; replica" in text[1] and "among 0, 2" in text[1]


DEEP = "model.hidden=[16,16,16,16,16,16,16]"


@pytest.mark.parametrize(
    ("overrides", "to"),
    [
        ((DEEP, "strategy.stages=4", "hardware.workers=8"), [[1], [0, 2], [1, 3], [2], [5], [4, 6], [5, 7], [6]]),
        ((DEEP, "strategy.stages=4", "strategy.schedule=zb_v", "hardware.workers=4"), [[1], [0, 2], [1, 3], [2]]),
        (  # from the last worker's first chunk to the first worker's second one
            (DEEP, "strategy.stages=4", "strategy.schedule=interleaved", "hardware.workers=4"),
            [[1, 3], [0, 2], [1, 3], [0, 2]],
        ),
        (  # the ends share a matrix
            ("model=gpt", "data=text", "model.tied=true", "strategy.stages=3", "hardware.workers=3"),
            [[1, 2], [0, 2], [0, 1]],
        ),
        (
            ("strategy=hybrid", DEEP, "strategy.stages=3", "strategy.tensor=2", "hardware.workers=6"),
            [[2], [3], [0, 4], [1, 5], [2], [3]],
        ),
    ],
)
def test_a_stage_sends_to_its_neighbours_and_to_who_shares_its_weights(
    overrides: tuple[str, ...], to: list[list[int]]
) -> None:
    plan = planned(*([] if "strategy=hybrid" in overrides else ["strategy=pipeline"]), *overrides)
    rows, text = raw_mesh(plan), drawn_mesh(plan)
    assert [send["to"] for row in rows for send in row["sends"] if send["axis"] == "stage"] == to
    assert f" to {' and '.join(map(str, to[1]))}" in text[2]
    assert all(send["to"] is None for row in rows for send in row["sends"] if send["axis"] != "stage")


def test_layers_that_do_not_follow_one_another_are_no_range() -> None:
    knobs = ("strategy.schedule=interleaved", "model.hidden=[16,16,16]")
    text = drawn_mesh(planned("strategy=pipeline", "hardware.workers=2", *knobs))
    assert "," in text[1].split("stage 0")[1].split("  ")[1]


def test_a_large_mesh_says_how_many_are_left_out() -> None:
    plan = planned("strategy=pipeline", "hardware.workers=12")
    text = drawn_mesh(plan)
    assert len(text) == LINES + 2 and text[-1].startswith("... 4 more ranks")
    assert len(raw_mesh(plan)) == 12


def test_data_parallel_has_none() -> None:
    assert raw_mesh(planned("hardware.workers=2")) == []


IMAGES = ("strategy=domain", "model=resnet", "model.depth=8", "hardware.workers=4")


def test_a_slab_is_shown_by_its_rows_and_the_model_is_whole() -> None:
    plan = planned(*IMAGES)
    rows, text = raw_mesh(plan), drawn_mesh(plan)
    assert [row["of_each_sample"] for row in rows] == ["rows 0 to 3 of 8", "rows 4 to 7 of 8"] * 2
    assert "rows 4 to 7 of 8 of each sample, the whole model" in text[2] and "%" not in text[2]
    assert raw_mesh(planned("strategy=tensor", "hardware.workers=2"))[0]["of_each_sample"] is None


def test_what_a_strategy_sends_to_other_replicas_is_by_itself() -> None:
    plan = planned(*IMAGES, "strategy.batch_norm=all")
    rows, text = raw_mesh(plan), drawn_mesh(plan)
    sends = [(send["axis"], send["by"], send["among"]) for send in rows[3]["sends"]]
    assert sends == [("replica", "strategy", [1, 3]), ("domain", "strategy", [2, 3]), ("replica", "sync", [1, 3])]
    assert sum(send["bytes"] for row in rows for send in row["sends"]) / 4 == pytest.approx(plan.bytes_per_step())
    channels = [16] * 3 + [32] * 2 + [64] * 2  # of its batch norms; float32, two replicas: 2 c + 1, and a sum of 2 c
    assert rows[3]["sends"][0]["bytes"] == 4 * sum(4 * c + 1 for c in channels)
    assert "among 1, 3 (strategy.batch_norm=all); domain: " in text[4]
    [without] = {send["bytes"] for send in raw_mesh(planned(*IMAGES))[3]["sends"] if send["axis"] == "replica"}
    assert without == pytest.approx(rows[3]["sends"][2]["bytes"])


def test_replicas_of_one_worker_that_talk_have_a_mesh() -> None:
    plan = planned("model=resnet", "model.depth=8", "strategy.batch_norm=all", "hardware.workers=2")
    assert [(send["axis"], send["by"]) for send in raw_mesh(plan)[1]["sends"]] == [
        ("replica", "strategy"),
        ("replica", "sync"),
    ]
    assert "the whole model" in drawn_mesh(plan)[1] and "among 0, 1 (strategy.batch_norm=all)" in drawn_mesh(plan)[1]
