"""`paceline verify`: its table, its formats, its exit status."""

import csv
import io
import json
import re
from pathlib import Path

import pytest

BROKEN = Path(__file__).parents[1] / "verify"
SMALL = ("model=mlp", "model.hidden=[6,5]", "data.limit=40", "batch_size=8", "hardware=virtual")
QUICK = (*SMALL, "--steps", "2", "--workers", "2")


def test_a_wrong_sum_is_exit_status_4_and_the_last_line_names_what_differs(paceline, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(BROKEN))
    own = ("--config-dir", str(BROKEN / "conf"), "--allow-module", "broken_on_purpose")
    ended = paceline("verify", *QUICK, "--only", "wrong_sum", *own)
    assert ended.status == 4
    assert "1 of 2 ways failed" in ended.last or "2 of 2 ways failed" in ended.last
    assert "step 1: the gradient of hidden2.weight differs by 1.0e-02" in ended.last
    assert "failed:" in ended.out and "wrong_sum sync=bsp" in ended.out


def test_the_table_says_what_is_allowed_what_passed_and_what_could_not_be_tried(paceline) -> None:
    ended = paceline("verify", *QUICK, "--only", "tensor", "--parameters")
    assert re.match(r"\d+ configurations: under a minute", ended.err)
    assert ended.status == 0
    assert "[1/" in ended.err  # progress
    first = ended.out.splitlines()
    assert first[0].startswith(
        "model=mlp data=digits optimizer=sgd batch_size=8 seed=0: 2 steps on the virtual cluster"
    )
    assert first[1].startswith("allowed: 8 times what rounding did to serial training itself")
    assert any(line.split()[:4] == ["tensor", "sync=bsp", "2", "1"] and line.endswith("pass") for line in first)
    assert any(line.split()[0] == "hidden1.weight" for line in first if line)
    assert "cannot be laid out:" in ended.out and "strategy.sequence=true" in ended.out


@pytest.mark.slow
def test_json_csv_and_markdown_hold_the_same_ways(paceline) -> None:
    only = ("--only", "bsp_naive")
    found = json.loads(paceline("verify", *QUICK, *only, "--format", "json").out)
    assert found["passed"] is True and found["tolerance"]["stated"] is None
    two = [way for way in found["ways"] if way["replicas"] == 2]
    assert two[0]["verdict"] == "pass" and two[0]["gradients"]["output.bias"]["share"] < 1
    rows = list(csv.DictReader(io.StringIO(paceline("verify", *QUICK, *only, "--format", "csv").out)))
    assert [(row["way"], row["replicas"], row["verdict"]) for row in rows] == [
        ("data_parallel sync=bsp_naive", str(way["replicas"]), "pass") for way in found["ways"]
    ]
    lines = paceline("verify", *QUICK, *only, "--format", "markdown").out.splitlines()
    assert len(lines) == 2 + len(rows) and lines[1].startswith("| --- |")


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--tolerance", "0"), 2, "--tolerance=0: must be above 0"),
        (("--time-limit", "-1"), 2, "--time-limit=-1: must be above 0"),
        (("--only", "bsp_naive", "--time-limit", "1e-9"), 5, "were not tried: the time limit was reached"),
        (("--only", "torch_ddp"), 4, "nothing was compared"),
        (("sync=asp",), 2, "sync=asp: paceline verify tries every one. Choose --only sync=asp."),
        (("--config", "missing.yaml"), 2, "--config missing.yaml: cannot be read"),
        (("--steps", "0"), 2, "greater than or equal to 1"),
    ],
)
def test_what_ends_it_otherwise(paceline, arguments, status, said) -> None:
    ended = paceline("verify", *QUICK, *arguments)
    assert ended.status == status and said in ended.err


@pytest.mark.slow
def test_a_composed_mode_is_tried_explained_and_advised_by_its_name(paceline) -> None:
    ended = paceline("verify", *QUICK, "--only", "sync=gossip+local_sgd")
    assert ended.status == 0
    assert re.search(r"data_parallel sync=gossip\+local_sgd +1 +1 .* pass", ended.out)
    told = paceline("explain", "sync=gossip+local_sgd")
    assert told.status == 0 and "then the exchange of gossip, then of local_sgd" in told.out
    advised = paceline("advise", *SMALL, "hardware.workers=2", "sync=gossip+local_sgd")
    assert advised.status == 0 and "sync=gossip+local_sgd" in advised.out
