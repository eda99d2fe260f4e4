"""`paceline plan` and `train --dry-run`: what would run, without data, without training."""

import json
import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from needs import require

from paceline import engine
from paceline.cli.choices import group_of
from paceline.tracking.compare import human_bytes

PIPELINE = ("strategy=pipeline", "sync=asp", "hardware.workers=4", "model.hidden=[32,16]")


def entries(*sizes: int) -> int:
    """Weights and biases of the linear layers sizes[0] -> sizes[1] -> ..."""
    return sum(a * b + b for a, b in pairwise(sizes))


def test_every_worker_and_server_holds_its_part_and_all_parts_make_the_model(paceline) -> None:
    plan = json.loads(paceline("plan", *PIPELINE, "--format", "json").out)
    assert (plan["workers"], plan["replicas"], plan["stages"], plan["servers"]) == (4, 2, 2, 2)
    workers = [who for who in plan["who"] if who["role"] == "worker"]
    servers = [who for who in plan["who"] if who["role"] == "server"]
    assert [who["ranks"] for who in workers] == [[0, 2], [1, 3]]
    assert [who["ranks"] for who in servers] == [[4], [5]]
    for held in (workers, servers):
        assert sum(who["parameters"] for who in held) == entries(64, 32, 16, 10)
    names = [name for who in workers for name in who["layers"]]
    assert len(names) == len(set(names)) and names[-1] == "output"


def test_bytes_and_memory_follow_from_the_parameters(paceline) -> None:
    plan = json.loads(paceline("plan", "model.hidden=[32]", "hardware.workers=4", "--format", "json").out)
    size = 4 * entries(64, 32, 10)
    assert plan["bytes_per_step"] == 2 * (4 - 1) / 4 * size  # a ring all-reduce
    assert plan["memory"]["parameters"] == plan["memory"]["gradients"] == size
    assert plan["memory"]["optimizer"] == size  # one momentum each
    assert plan["steps_per_epoch"] == -(-1437 // (4 * 32)) and plan["steps"] == 5 * plan["steps_per_epoch"]


@pytest.mark.parametrize(
    ("overrides", "rule"),
    [
        (("sync=bsp", "hardware.workers=3"), "compress=topk"),
        (("sync=parameter_server", "hardware.workers=3"), "compress=qsgd"),
        (("sync=gossip", "hardware=virtual", "hardware.workers=4"), "compress=topk"),
        (("strategy=pipeline", "hardware.workers=4"), "compress=topk"),
        (("sync=bsp",), "compress=threshold"),  # whose own bytes the data must say
    ],
)
def test_the_plan_shows_the_bytes_before_compression(overrides: tuple[str, ...], rule: str, paceline) -> None:
    plain, compressed = (
        json.loads(paceline("plan", *overrides, compress, "--format", "json").out)
        for compress in ("compress=none", rule)
    )
    assert plain["uncompressed_bytes_per_step"] is None
    assert compressed["uncompressed_bytes_per_step"] == plain["bytes_per_step"] != compressed["bytes_per_step"]
    said = f" where compress=none sends {human_bytes(plain['bytes_per_step'])}, "
    assert (
        said in paceline("plan", *overrides, rule).out and "compress=none sends" not in paceline("plan", *overrides).out
    )


def test_a_plan_that_cannot_go_without_compression_shows_none(paceline) -> None:
    answers = ("sync=parameter_server", "sync.compress_answers=true", "compress=topk", "hardware.workers=2")
    ended = paceline("plan", *answers)
    assert ended.status == 0 and "compress=none sends" not in ended.out


def test_json_and_yaml_hold_the_same(paceline) -> None:
    arguments = ("plan", "strategy=pipeline")
    from_json = json.loads(paceline(*arguments, "--format", "json").out)
    assert yaml.safe_load(paceline(*arguments, "--format", "yaml").out) == from_json


def test_the_table_shows_the_configuration_as_it_would_be_typed(paceline) -> None:
    ended = paceline("plan", *PIPELINE)
    assert ended.status == 0 and all(line.startswith("note: ") for line in ended.err.splitlines())
    assert "4 workers (2 replicas of 2 stages), 2 servers" in ended.out
    assert ended.out.splitlines()[0].endswith(" each, 115 steps of 23 an epoch")
    assert "each server of stage 1  5 " in ended.out
    words = ended.out.split()
    assert {"sync.push=1", "optimizer.nesterov=false", "model.hidden=[32,16]", "seed=0", "data.limit=null"} <= {*words}
    typed = [word for word in words if "=" in word]
    assert paceline("plan", *typed).out == ended.out


@pytest.mark.parametrize("format", ["table", "json", "yaml"])
def test_secrets_stay_out_of_the_plan(format: str, paceline) -> None:
    url = "data.urls=['https://user:hunter2@host.example/folder']"
    ended = paceline("plan", "data=fashion_mnist", url, "--format", format)
    assert ended.status == 0 and "***" in ended.out and "hunter2" not in ended.out


def test_a_file_is_planned_and_overrides_win(paceline, here: Path) -> None:
    (here / "mine.yaml").write_text("sync: asp\nhardware.workers: 3\n")
    planned = json.loads(paceline("plan", "--config", "mine.yaml", "hardware.workers=2", "--format", "json").out)
    assert (planned["config"]["sync"]["name"], planned["workers"]) == ("asp", 2)
    (here / "mine.yaml").write_text("sync.staleness: 3\n")
    ended = paceline("plan", "--config", "mine.yaml")
    assert ended.status == 2 and ended.last.startswith("--config mine.yaml: sync.staleness")


@pytest.mark.parametrize("command", [["plan"], ["train", "--dry-run"]], ids=" ".join)
def test_no_data_are_needed_and_nothing_is_written(
    command: list[str], paceline, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.tasks.data.fashion_mnist.SYSTEM_FOLDER", here / "none")
    monkeypatch.setenv("XDG_CACHE_HOME", str(here))
    ended = paceline(*command, "data=fashion_mnist", "model=cnn", "hardware.workers=1")  # as there may be one core
    assert ended.status == 0 and "cnn on fashion_mnist" in ended.out
    # a dry run, which stands for a run, says what a run would miss
    assert ended.err.startswith("note: data=fashion_mnist: not on this machine" if "--dry-run" in command else "")
    assert ended.err.count("\n") == ("--dry-run" in command)
    assert not list(here.iterdir())


@pytest.mark.parametrize("command", [["plan"], ["train", "--dry-run"], ["train"]], ids=" ".join)
@pytest.mark.parametrize(
    ("status", "start", "overrides"),
    [
        (3, "nowhere.txt is not a file. Set data.path", ["data=text", "data.path=nowhere.txt", "model=gpt", "steps=2"]),
        (3, "nowhere lacks the four idx files. ", ["data=fashion_mnist", "data.root=nowhere"]),
        (2, "data.path=null: must name what is to be read. ", ["data=table"]),
        (
            2,
            "data.inputs: column b of here.csv is string; must be numbers, or left out: 'data.inputs=[a]'. Write "
            "categories as columns of 0 and 1; data.tokens=bytes reads text",
            ["data=table", "data.path=here.csv", "task=huber"],
        ),
    ],
    ids=["text", "fashion_mnist", "unnamed", "table"],
)
def test_what_a_run_refuses_of_the_files_that_a_user_names_a_plan_refuses_too(
    status: int, start: str, overrides: list[str], command: list[str], paceline, here: Path
) -> None:
    require("pyarrow")
    (here / "here.csv").write_text("a,b,target\n" + "1.5,red,2.5\n" * 20)
    ended = paceline(*command, *overrides)
    assert ended.status == status and ended.out == "" and ended.err.startswith(start)
    assert [path.name for path in here.iterdir()] == ["here.csv"]


def test_steps_of_an_epoch_that_is_not_known_are_told_without_it(paceline, here: Path) -> None:
    (here / "samples.svm").write_text("1 1:0.5\n")
    of = ["data=svmlight", "data.path=samples.svm", "model=sparse_logistic_regression", "optimizer.momentum=0"]
    ended = paceline("plan", *of, "steps=20")
    assert ended.status == 0 and ended.out.splitlines()[0].endswith(" each, 20 steps")
    assert paceline("plan", *of).out.splitlines()[0].endswith("as many steps as the data give")


def test_a_dry_run_says_so_in_one_line_and_what_the_data_hold_in_another(paceline) -> None:
    ended = paceline("train", "--dry-run", "sync=asp", "hardware.workers=3")
    assert ended.out == (
        "ok: data_parallel + asp, mlp on digits, workers: 3, 75 steps; nothing was trained\n"
        "data: inputs float32 [1, 8, 8]; 1,437 samples to train, 360 to test; 10 classes\n"
    )


@pytest.mark.parametrize("command", [["plan"], ["train", "--dry-run"]], ids=" ".join)
def test_both_refuse_what_a_run_would_refuse(command: list[str], paceline) -> None:
    ended = paceline(*command, "strategy=pipeline", "strategy.stages=9")
    assert ended.status == 2 and ended.out == "" and "Traceback" not in ended.err


# -- --fit

SMALL = (
    (
        "hardware.machine={devices:2,device_memory:4e9,host_memory:32e9,flops:{float32:1e12},host_link:null,link:null,"
        "price_per_hour:null}"
    )
    .replace("4e9", "4000000000")
    .replace("32e9", "32000000000")
)


@pytest.mark.slow
def test_fit_prints_a_gpt_that_can_be_planned_as_it_is_typed(paceline) -> None:
    found = json.loads(paceline("plan", "--fit", SMALL, "optimizer=adam", "model.hidden=[8]", "--format", "json").out)
    typed = found["largest_model"]["overrides"].split()
    assert "optimizer=adam" in typed and "model.hidden=[8]" not in typed
    plan = json.loads(paceline("plan", *typed, "--format", "json").out)
    assert plan["memory"] == found["largest_model"]["memory"]
    assert sum(who["parameters"] for who in plan["who"]) == found["largest_model"]["parameters"]


@pytest.mark.slow
def test_fit_tells_the_same_in_every_format(paceline, monkeypatch: pytest.MonkeyPatch) -> None:
    search, found = engine.find_fit, []

    def once(*arguments: Any) -> Any:
        found.extend([] if found else [search(*arguments)])
        return found[0]

    monkeypatch.setattr(engine, "find_fit", once)
    arguments = ("plan", "--fit", SMALL, "model=gpt", "data=text")
    raw = json.loads(paceline(*arguments, "--format", "json").out)
    assert yaml.safe_load(paceline(*arguments, "--format", "yaml").out) == raw
    table = paceline(*arguments).out
    assert raw["largest_model"]["overrides"] in table
    assert f"batch_size={raw['largest_batch_size']} for model=gpt" in table
    assert "what just fits may run out of memory: 8 in 10 of 14 published runs of PyTorch held" in table
    lines = table.splitlines()
    for row in raw["strategies"]:
        if row["memory"] is None:
            assert f"{row['strategy']}: refused, {row['why']}" in lines
            continue
        needs, kinds = (line for line in lines if line.startswith(f"{row['strategy']}  "))
        assert row["fits"] == needs.endswith(" yes")
        assert human_bytes(row["memory"]["activations"]) in kinds
        assert {kind.removeprefix("host_") for kind in row["memory"]} == {
            "parameters",
            "gradients",
            "optimizer",
            "activations",
            "buffers",
        }
    assert {row["strategy"].split()[0] for row in raw["strategies"]} == {choice.name for choice in group_of("strategy")}


@pytest.mark.slow
def test_fit_says_how_many_machines_it_takes_and_what_is_not_known_of_them(paceline) -> None:
    bf16 = ("strategy=zero", "precision=bf16", "hardware.workers=3", "model=mlp")
    machine = paceline("plan", "--fit", "hardware=t4", *bf16).out.split("\n\n")[0]
    assert "3 workers take 3 such machines, 1.58 US dollars an hour together" in machine
    assert "no rate in bfloat16 is known of it" in machine
    machine = paceline("plan", "--fit", "hardware=t4", "model=mlp").out.split("\n\n")[0]
    assert "such machines" not in machine and "no rate" not in machine


@pytest.mark.slow
def test_fit_says_by_how_much_a_model_does_not_fit(paceline) -> None:
    ended = paceline("plan", "--fit", SMALL, "model=gpt_4b", "data=text", "strategy=pipeline")
    assert ended.status == 0 and " GiB too much for a device" in ended.out
    assert "largest batch  none: one sample of model=gpt_4b does not fit" in ended.out


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["hardware=virtual"], "hardware.machine=null"),
        (["hardware=h200", "strategy=pipeline"], "hardware.workers=1"),
        (["hardware=h20"], "did you mean h200"),
    ],
    ids=" ".join,
)
def test_fit_refuses_what_cannot_be_laid_out_or_has_no_size(overrides: list[str], words: str, paceline) -> None:
    ended = paceline("plan", "--fit", *overrides)
    assert (ended.status, ended.out) == (2, "") and words in ended.last


# -- a pipeline's schedule

DRAWN = ["plan", "strategy=pipeline", "hardware.workers=2", "model.hidden=[64,64]", "strategy.micro_batches=3"]


def test_a_pipelines_schedule_is_drawn_with_its_bubble_and_what_each_stage_holds(
    paceline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    out = paceline(*DRAWN, "strategy.schedule=1f1b").out
    bars = re.findall(r"^worker (\d)  (.*)$", out, re.MULTILINE)
    assert [worker for worker, _ in bars] == ["0", "1"]
    assert all(len(bar) == 80 for _, bar in bars)
    assert [re.findall(r"[FB]\d", bar) for _, bar in bars] == [
        ["F0", "F1", "B0", "F2", "B1", "B2"],
        ["F0", "B0", "F1", "B1", "F2", "B2"],
    ]
    shown = re.search(r"schedule 1f1b: bubble ([\d.]+)%, .* floating-point operations", out)
    idle = sum(bar.count(".") for _, bar in bars) / 160
    assert shown is not None and idle == pytest.approx(float(shown[1]) / 100, abs=0.05)
    assert re.search(r"^ *0 +0 +2 ", out, re.MULTILINE) and re.search(r"^ *1 +1 +1 ", out, re.MULTILINE)
    assert "\x1b" not in out


def test_a_schedule_has_the_same_times_as_json_and_as_a_picture(paceline, here: Path) -> None:
    file = here / "zb.svg"
    how = [*DRAWN, "strategy.schedule=zb_h1", "hardware=virtual", "--svg", str(file), "--format", "json"]
    told = json.loads(paceline(*how).out)["schedule"]
    assert told["unit"] == "seconds" and 0 < told["bubble"] < 1
    actions = [each for row in told["workers"] for each in row["actions"]]
    assert {re.sub(r"\d", "", each["action"]) for each in actions} == {"F", "I", "W"}
    assert max(each["end"] for each in actions) == told["time"]
    titles = [element.text for element in ET.fromstring(file.read_text()).iter() if element.tag.endswith("title")]
    lasting = [each for each in actions if each["end"] > each["start"]]
    assert [title for title in titles if title and title[0].isdigit()] == [
        f"{each['action']}: {each['start']:.6g} to {each['end']:.6g} seconds" for each in lasting
    ]


def test_a_picture_of_what_has_no_schedule_is_refused(paceline, here: Path) -> None:
    refused = paceline("plan", "--svg", "a.svg")
    assert refused.status == 2 and "--svg: pictures a schedule, and strategy=data_parallel has none" in refused.last
    refused = paceline(*DRAWN, "--fit", "--svg", "a.svg")
    assert refused.status == 2 and "--svg: pictures one plan" in refused.last
    assert not list(here.iterdir())


def test_a_users_schedule_that_deadlocks_is_exit_code_2(paceline, here: Path) -> None:
    (here / "own.csv").write_text("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")
    own = [*DRAWN, "strategy.micro_batches=2", f"strategy.schedule={here / 'own.csv'}"]
    refused = paceline(*own)
    assert refused.status == 2 and "it deadlocks: these wait forever: worker 0 at 0B0 for 1B0" in refused.last


def shown_rows(paceline, *arguments: str) -> tuple[list[str], dict[str, Any]]:
    """Returns the lines of the rows, and what the JSON has."""
    ended = paceline("plan", *arguments, "--show-data")
    assert ended.status == 0, ended.err
    lines = ended.out.split("as the model gets them:\n")[1].split("\n\n")[0].splitlines()
    return lines, json.loads(paceline("plan", *arguments, "--show-data", "--format", "json").out)["first_rows"]


def test_the_first_rows_of_a_table_are_shown_as_the_model_gets_them(paceline, here: Path) -> None:
    kinds = ["flat", "house", "castle"]
    (here / "t.csv").write_text("wide,rooms,kind\n" + "".join(f"{i},{i % 4},{kinds[i % 3]}\n" for i in range(50)))
    table = "data=table", "data.path=t.csv", "data.targets=kind", "data.standardize=false"
    lines, raw = shown_rows(paceline, *table)
    [inputs] = raw["inputs"]
    assert (raw["of"], inputs["type"], inputs["shape"], inputs["columns"]) == (40, "float32", [2], ["wide", "rooms"])
    flat = [value for row in inputs["values"] for value in row]
    assert (inputs["least"], inputs["most"]) == (min(flat), max(flat)) and len(inputs["values"]) == 5
    labels = [raw["class_names"][label] for [label] in raw["targets"]["values"]]
    assert labels == [kinds[int(wide) % 3] for wide, _ in inputs["values"]]
    assert lines[0] == f"inputs: float32 [2], {min(flat):g} to {max(flat):g} in these rows"
    assert lines[1].startswith("kind: int64 [], ") and lines[1].endswith(", 3 classes (castle, flat, house)")
    assert lines[2].split() == ["row", "wide", "rooms", "kind"] and len(lines) == 8
    (wide, rooms), label = inputs["values"][0], raw["targets"]["values"][0][0]
    assert lines[3].split() == ["1", f"{wide:g}", f"{rooms:g}", str(label), f"({labels[0]})"]


def test_the_first_rows_of_images_of_text_and_of_own_data_are_shown(paceline, here: Path) -> None:
    from PIL import Image

    for number in range(12):
        (here / "photos" / f"kind{number % 2}").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6), (255, 0, 0)).save(here / "photos" / f"kind{number % 2}" / f"{number}.png")
    lines, raw = shown_rows(paceline, "data=images", "data.path=photos")
    assert (raw["inputs"][0]["shape"], raw["inputs"][0]["most"]) == ([3, 6, 8], 1.0)
    assert raw["class_names"] == ["kind0", "kind1"]
    assert re.search(r"1 1 1 1 1 1 \.\.\. 144 in all +[01] \(kind[01]\)", lines[3])
    lines, raw = shown_rows(paceline, "data=text", "model=gpt")
    assert raw["inputs"][0]["values"][0][1:] == raw["targets"]["values"][0][:5], "each byte's target is the next one"
    (here / "mine.py").write_text(
        "import torch\n"
        "from torch.utils.data import Dataset\n"
        "class Pairs(Dataset):\n"
        "    def __len__(self): return 10\n"
        "    def __getitem__(self, i):\n"
        "        return {'a': torch.full((3,), 0.5), 'b': torch.tensor(float('nan')), 'label': i % 2}\n"
        "class Model(torch.nn.Linear):\n"
        "    def __init__(self): super().__init__(3, 2)\n"
        "    def forward(self, a, b): return super().forward(a)\n"
    )
    own = "data={_target_:mine.Pairs,classes:2}", "model={_target_:mine.Model}", "--allow-module", "mine"
    lines, raw = shown_rows(paceline, *own)
    assert lines[0] == "a: float32 [3], 0.5 to 0.5 in these rows"
    assert lines[1] == "b: float32 [], no finite value in these rows"
    assert lines[3].split() == ["row", "a", "b", "targets"] and lines[4].split() == [
        "1",
        "0.5",
        "0.5",
        "0.5",
        "nan",
        "0",
    ]
    assert [each["name"] for each in raw["inputs"]] == ["a", "b"] and raw["inputs"][1]["least"] is None


def test_first_rows_are_refused_with_fit_and_where_the_data_are_missing(paceline) -> None:
    assert paceline("plan", "--fit", "--show-data").last.startswith("--show-data: is of one plan")
    gone = paceline("plan", "data=fashion_mnist", "data.root=nowhere", "--show-data")
    assert gone.status == 3 and "nowhere" in gone.last
