"""`paceline advise`."""

import csv
import io
import json
import re
import shlex
from typing import Any

import pytest
from measured_machines import machine

from paceline.engine.base.errors import InterruptedRunError
from paceline.engine.config.experiment import shipped
from paceline.sweep.definition import Definition

GPT = ("model=gpt", "data=text", "hardware=a100_8")


@pytest.mark.budget(5)
def test_each_line_is_a_command_that_a_dry_run_takes(paceline, tmp_path) -> None:
    file = tmp_path / "page.html"
    ended = paceline(
        "advise", *GPT, "strategy=zero", "--tokens", "1B", "--top", "2", "--format", "json", "--html", str(file)
    )
    assert ended.status == 0
    found = json.loads(ended.out)
    assert found["looked_at"] > 500 and found["fit"] > 50
    rows = found["rows"]
    assert [row["step_seconds"] for row in rows] == sorted(row["step_seconds"] for row in rows)
    assert all(row["exact"] and row["dollars"] > 0 for row in rows)
    command = shlex.split(rows[0]["command"])
    assert command[:2] == ["paceline", "train"]
    dry = paceline(*command[1:], "--dry-run", "--format", "json")
    assert dry.status == 0
    assert json.loads(dry.out)["step"]["seconds"] == rows[0]["step_seconds"]
    page = file.read_text()
    assert "<script" not in page and rows[1]["command"].split()[-1] in page
    assert [family["family"] for family in found["families"]] == ["zero"]
    assert any("slower" in line for line in found["families"][0]["others"])


def test_times_that_are_not_predicted_are_said_to_be_so(paceline, monkeypatch) -> None:
    from paceline.advise import modes

    names = {"strategy": ["single", "data_parallel"], "sync": ["bsp", "asp"]}
    monkeypatch.setattr(modes, "_choices", lambda group, _: [shipped(group, name) for name in names[group]])
    monkeypatch.setattr(modes, "BESIDE", ())
    asked = "hardware.workers=2", "precision=bf16"
    ended = paceline("advise", *asked, "--format", "csv")
    assert ended.status == 0
    rows = list(csv.DictReader(io.StringIO(ended.out)))
    assert [row["step_seconds"] for row in rows] == [""] * len(rows)
    assert any("sync=asp" in row["command"] for row in rows)
    assert "times are not predicted: precision=bf16: a calibration measures float32 alone" in ended.err
    assert "shipped profile" not in ended.err
    table = paceline("advise", *asked).out
    first = table.splitlines()
    assert first[0].startswith("first by bytes: paceline train ") and first[1].startswith("  time: not predicted")
    assert first[4] == "  to try: --race 2 trains the first two here, until one wins"
    assert "front" not in table, "nothing is timed, so that nothing is on a front"
    assert "must be raced: asynchronous" in table and "says how to describe this machine, with its price" in table


@pytest.mark.slow
def test_a_machine_that_nobody_measured_has_times_of_a_shipped_profile_that_say_so(paceline, here, monkeypatch) -> None:
    from paceline.advise import modes

    names = {"strategy": ["single", "data_parallel"], "sync": ["bsp"]}
    monkeypatch.setattr(modes, "_choices", lambda group, _: [shipped(group, name) for name in names[group]])
    monkeypatch.setattr(modes, "BESIDE", ())
    found = json.loads(paceline("advise", "hardware.workers=2", "--format", "json").out)
    assert found["sort"] == "time" and all(row["step_seconds"] > 0 for row in found["rows"][:2])
    assert "calibration" not in json.dumps(found["rows"])
    told = paceline("advise", "hardware.workers=2", "--explain", "2")
    note = "times are of a shipped profile, two cores of a server, and not of this machine: `paceline calibrate`"
    assert note in told.err and note in paceline("advise", "hardware.workers=2").out
    machine(here)
    assert "shipped profile" not in paceline("advise", "hardware=lab", "--config-dir", ".", "hardware.workers=2").out


@pytest.mark.slow
def test_on_a_machine_that_was_measured_what_was_not_is_why_nothing_is_timed(paceline, here, monkeypatch) -> None:
    from paceline.advise import modes

    names = {"strategy": ["data_parallel"], "sync": ["bsp"]}
    monkeypatch.setattr(modes, "_choices", lambda group, _: [shipped(group, name) for name in names.get(group, [])])
    machine(here)
    lab = ("hardware=lab", "hardware.threads=1", "hardware.workers=2", "--config-dir", str(here), "--format", "csv")
    ended = paceline("advise", *lab, "precision=bf16")
    rows = list(csv.DictReader(io.StringIO(ended.out)))
    assert ended.status == 0 and rows and all(row["step_seconds"] == "" for row in rows)
    assert ended.err.endswith("note: times are not predicted: precision=bf16: a calibration measures float32 alone\n")
    timed = paceline("advise", *lab)
    assert timed.err == "" and any(row["step_seconds"] for row in csv.DictReader(io.StringIO(timed.out)))


@pytest.mark.budget(5)
def test_a_file_is_asked_about_as_what_would_be_typed(paceline, here) -> None:
    (here / "mine.yaml").write_text("model: gpt\ndata: text\nhardware: {name: a100_8}\nstrategy: tensor\nsync: bsp\n")
    words = ("model=gpt", "data=text", "hardware=a100_8", "strategy=tensor", "sync=bsp")
    typed, read = (paceline("advise", *begins, "--format", "csv") for begins in (words, ("--config", "mine.yaml")))
    assert read.status == 0 and read.out == typed.out and "strategy=tensor" in read.out
    (here / "bad.yaml").write_text("model: gbt\n")
    refused = paceline("advise", "--config", "bad.yaml")
    assert refused.status == 2 and refused.last.startswith("--config bad.yaml: model=gbt: there is no such choice")
    assert paceline("advise", "--config", "mine.yaml", "--gpus", "8xH100").last.endswith("Choose one of them.")


@pytest.mark.budget(5)
def test_the_answer_begins_with_a_recommendation(paceline) -> None:
    words = ("advise", *GPT, "--tokens", "1B", "--top", "1")
    lines = paceline(*words).out.splitlines()
    first = next(line.removeprefix("  1  ") for line in lines if line.startswith("  1  "))
    assert lines[0] == f"recommended: {first}" and lines[6] == ""
    assert re.fullmatch(
        r"  time: [\d.]+ ms a step \([\d.]+ ms to .+ as published runs of \w+\), .+ for all tokens, \$[\d.,]+", lines[1]
    )
    assert re.fullmatch(
        r"  memory of a device: [\d.]+ [MG]iB of 74\.2 GiB that it can use "
        r"\([\d.]+ GiB to [\d.]+ GiB with the runtime's as published runs, of 79\.2 GiB\)",
        lines[2],
    )
    assert re.fullmatch(r"  limited by: ((compute|memory|network|bubble|host) \d+%(, )?)+ of a step", lines[3])
    assert re.fullmatch(r"  next best: \w+, .+: .+", lines[4])
    assert re.fullmatch(r"  to try: .+: \d+% less time for a sample", lines[5])
    assert lines[7].endswith("; by time, within 1% the simplest first")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--budget", "5000EUR"), "--budget 5000EUR: prices are in US dollars"),
        (("--deadline", "7"), "--deadline 7: must be a number with a unit"),
        (("--tokens", "many"), "--tokens many: must be a number"),
        (("--top", "0"), "--top 0: must be at least 1"),
        (("--sort", "speed"), "'--sort': 'speed' is not one of"),
        (("--batch", "7", "strategy=zero"), "7 samples a step are not divided by 8 replicas"),
        (("--tokens", "1e15", "--budget", "1USD", "--deadline", "1h"), "no configuration meets both limits"),
        pytest.param(
            ("hardware.machine.device_memory=2000000000", "model=gpt_1b"), "nothing fits", marks=pytest.mark.slow
        ),
        (("strategy=nothing",), "strategy=nothing: there is no such choice"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(paceline, words: tuple[str, ...], says: str) -> None:
    ended = paceline("advise", *GPT, *words)
    assert (ended.status, ended.out) == (2, "") and says in ended.err and "Traceback" not in ended.err


@pytest.mark.slow
def test_a_race_names_who_is_left_and_goes_on_where_it_was_stopped(paceline, here) -> None:
    words = ("advise", "hardware=virtual", "hardware.workers=2", "tracking=none", "epochs=2", "data.limit=400")
    race = ("--race", "sync=bsp", "--race", "sync=asp", "--race", "sync=local_sgd", "--target", "0.5", "--seeds", "2")
    ended = paceline(*words, *race, "--name", "r", "--format", "json")
    assert ended.status == 0, ended.err
    found = json.loads(ended.out)
    assert [len(names) for names in found["rounds"]] == [3, 2]
    assert found["leading"] and set(found["leading"]) <= set(found["rounds"][-1])
    assert (here / "runs" / "r-round1" / "report.html").exists()
    again = paceline(*words, *race, "--name", "r", "--format", "json")
    assert json.loads(again.out) == found
    table = paceline(*words, *race, "--name", "r").out
    assert "time to 0.5 in 2 rounds" in table and "winner" in table


RACE = ("advise", "hardware=virtual", "hardware.workers=2", "--race", "sync=bsp", "--race", "sync=asp sync.rate=full")


@pytest.mark.parametrize("named", [(), ("--name", "r")])
def test_a_race_that_is_stopped_says_how_to_go_on(
    named: tuple[str, ...], paceline, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stop, status in ((KeyboardInterrupt(), 130), (InterruptedRunError("go on with a round", 143), 143)):
        rounds: list[str] = []

        def run(name: str, definition: Definition, stop=stop, rounds=rounds) -> dict[str, dict[str, float | None]]:
            rounds.append(name)
            if len(rounds) == 2:
                raise stop
            return {way: {"time_to_accuracy": 1.0, "step_ms": 1.0} for way, _ in definition.ways}

        monkeypatch.setattr("paceline.cli.advise_race.run_round", run)
        ended = paceline(*RACE, *named)
        name = rounds[0].removesuffix("-round1")
        command = shlex.join(["paceline", *RACE, "--name", name])
        assert (ended.status, ended.out) == (status, "")
        assert ended.last == f"the race was stopped; go on with: {command}"


def test_a_race_whose_runs_all_fail_has_failed(paceline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.cli.advise_race.run_round", lambda name, definition: {})
    ended = paceline(*RACE, "--target", "0.3")
    assert ended.status == 4 and ended.last == "every run of the race failed; the reasons are above"
    assert "no winner: every run failed, for the reasons above" in ended.out and ended.out.count(" failed ") == 2
    assert "never reached" not in ended.out and "--target" not in ended.out


def test_the_only_way_that_reaches_the_target_is_named_though_it_won_against_nobody(
    paceline, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = {
        "sync=bsp": {"time_to_accuracy": None, "step_ms": 1.0},
        "sync=asp_sync.rate=full": {"time_to_accuracy": 2.0, "step_ms": 1.0},
    }
    monkeypatch.setattr("paceline.cli.advise_race.run_round", lambda name, definition: measured)
    ended = paceline(*RACE, "--target", "0.3")
    alone = "no winner: sync=asp_sync.rate=full alone reached 0.3, and with one seed: nobody was left to race against"
    assert ended.status == 0 and alone in ended.out and "never reached" in ended.out


@pytest.mark.slow
def test_a_virtual_cluster_holds_what_it_needs_and_its_first_lines_can_race(paceline) -> None:
    words = ("hardware=virtual", "hardware.workers=2", "tracking=none", "epochs=1", "data.limit=200")
    ended = paceline("advise", *words, "--format", "json")
    assert ended.status == 0
    assert not any("GiB too much" in line for each in json.loads(ended.out)["families"] for line in each["others"])
    raced = paceline("advise", *words, "--race", "2", "--seeds", "2", "--target", "0.1", "--format", "json")
    assert raced.status == 0, raced.err
    assert len(json.loads(raced.out)["ways"]) == 2


@pytest.mark.slow
def test_tokens_without_a_predicted_time_are_refused(paceline, monkeypatch) -> None:
    from paceline.advise import modes

    names = {"strategy": ["data_parallel"], "sync": ["bsp"]}
    monkeypatch.setattr(modes, "_choices", lambda group, _: [shipped(group, name) for name in names[group]])
    ended = paceline("advise", "model=gpt", "data=text", "precision=bf16", "--tokens", "1B", "--deadline", "1d")
    assert ended.status == 2 and "--tokens: a step's time is not predicted" in ended.err


@pytest.mark.slow
def test_what_fits_by_closed_forms_and_not_by_its_plan_is_said_to_lack_memory(paceline) -> None:
    ended = paceline("advise", "model=gpt_1b", "data=text", "hardware=t4", "--batch", "4096")
    assert ended.status == 2
    assert "nothing fits" in ended.err and "GiB too much for a device: paceline train" in ended.err  # as a plan has it


@pytest.mark.parametrize("budget", ["5000EUR", "€5000", "5000 GBP"])
def test_a_budget_in_another_currency_is_told_that_prices_are_in_us_dollars(paceline, budget: str) -> None:
    ended = paceline("advise", "--budget", budget)
    assert (ended.status, ended.last) == (
        2,
        f"--budget {budget}: prices are in US dollars. Give it in them, such as 5000USD",
    )


@pytest.mark.slow
@pytest.mark.budget(5)
@pytest.mark.parametrize("width", ["80", "140"])
def test_a_terminal_shows_25_lines_with_the_recommendation_first(width: str, paceline, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", width)
    words = ("advise", *GPT, "strategy=zero", "--tokens", "1B")
    lines = paceline(*words).out.splitlines()
    taken = sum(max(1, -(-len(line) // int(width))) for line in lines)
    assert taken <= 25 and lines[0].startswith("recommended: paceline train ") and "--all" in lines[-1]
    assert any(line.startswith("line  family") for line in lines)
    whole = paceline(*words, "--all").out
    numbered, front = re.findall(r"^\d+ ", whole, re.MULTILINE), re.findall(r" \*$", whole, re.MULTILINE)
    shown = [line for line in lines if re.match(r"\d+ |  +zero ", line)]
    rest = r"--all shows the rest: (?:(\d+) more lines of the table, )?(?:(\d+) of them on the front, )?a command .*"
    left = re.fullmatch(rest, lines[-1])
    below = re.findall(r"^ {4,}zero .* \*$", whole, re.MULTILINE)
    assert left is not None and int(left[1] or 0) == len(numbered) + len(below) - len(shown)
    assert int(left[2] or 0) == len(front) - sum(line.endswith("*") for line in shown)
    assert len(whole.splitlines()) > 25 and "--all" not in whole and "for each family its best" in whole


def few(monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.advise import modes

    names = {"strategy": ["single", "data_parallel"], "sync": ["bsp", "asp"]}
    monkeypatch.setattr(modes, "_choices", lambda group, _: [shipped(group, name) for name in names[group]])
    monkeypatch.setattr(modes, "BESIDE", ())


@pytest.mark.parametrize(("after", "status"), [(2, 130), (0, 130)])
def test_ctrl_c_leaves_what_is_known_so_far(after: int, status: int, paceline, monkeypatch) -> None:
    from paceline.advise import answer

    few(monkeypatch)
    planned, calls = answer.planned, []

    def interrupted(*arguments: Any):
        calls.append(arguments)
        if len(calls) > after:
            raise KeyboardInterrupt
        return planned(*arguments)

    monkeypatch.setattr(answer, "planned", interrupted)
    ended = paceline("advise", "hardware.workers=2")
    assert ended.status == status and "interrupted" in ended.err
    assert ("recommended: paceline train" in ended.out) == (after > 0)
    if after:
        assert f"note: interrupted: this answer is partial, from {after} of " in ended.out


def test_ctrl_c_in_an_exact_plan_keeps_the_closed_forms(paceline, monkeypatch) -> None:
    from paceline.advise import answer

    def interrupted(*_: Any):
        raise KeyboardInterrupt

    monkeypatch.setattr(answer, "planned", interrupted)
    ended = paceline("advise", *GPT, "strategy=zero")
    assert ended.status == 130 and "note: interrupted: this answer is partial" in ended.out
    assert "recommended: paceline train" in ended.out and "by closed forms alone" in ended.out


def test_ctrl_c_before_a_race_trains_nothing(paceline, here, monkeypatch) -> None:
    from paceline.advise import answer

    few(monkeypatch)
    planned, calls = answer.planned, []

    def interrupted(*arguments: Any):
        calls.append(arguments)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return planned(*arguments)

    monkeypatch.setattr(answer, "planned", interrupted)
    monkeypatch.setattr("paceline.cli.advise_race.run_round", lambda name, definition: pytest.fail("it trains"))
    ended = paceline("advise", "hardware.workers=2", "--race", "2")
    assert ended.status == 130 and ended.last.startswith("interrupted; ") and not (here / "runs").exists()


@pytest.mark.parametrize(("option", "value"), [("--target", "90"), ("--seeds", "1"), ("--seeds", "21")])
def test_what_a_race_cannot_take_is_refused_before_anything_is_planned(option, value, paceline, monkeypatch) -> None:
    monkeypatch.setattr("paceline.advise.answer.planned", lambda *_: pytest.fail("it plans"))
    ended = paceline("advise", "hardware.workers=2", "--race", "2", option, value)
    assert ended.status == 2 and ended.last.startswith(f"{option} {value}: ")


def test_a_terminal_sees_how_far_it_is(monkeypatch, capfd) -> None:
    from paceline.cli import advise_progress

    with advise_progress.progress_line() as progress:
        progress("unseen")
    assert capfd.readouterr().err == ""
    few(monkeypatch)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with advise_progress.progress_line() as progress:
        progress("2 of 9\x1b[2J")
    told = capfd.readouterr().err
    assert "2 of 9" in told and "\x1b[2J" not in told and told.endswith(advise_progress.ERASED)
    from paceline.advise.answer import answer
    from paceline.advise.question import ask

    said: list[str] = []
    answer(ask(["hardware.workers=2"]), progress=said.append)
    assert any(re.fullmatch(r"1 of \d+ configurations planned; now .+", text) for text in said)


# -- failures


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--mtbf", "0h"), "--mtbf 0h: must be at least 0.0001"),
        (("--mtbf=-3h",), "--mtbf -3h: must be at least 0.0001"),
        (("--mtbf", "1s"), "--mtbf of 0.000277778 h: one of 1 workers fails every 1 s, too often to train. Choose"),
        (("--restart", "5min"), "--restart: is of a worker that fails. Give --mtbf, too."),
        (("--storage", "1G"), "--storage: is of a worker that fails. Give --mtbf, too."),
        (("--mtbf", "5h", "--storage", "0"), "--storage 0: must be at least 1 "),
        (("--mtbf", "5h", "--race", "2"), "--mtbf: lowers predictions, and a race measures."),
    ],
)
def test_failures_that_cannot_be_are_refused(paceline, words: tuple[str, ...], says: str) -> None:
    ended = paceline("advise", *GPT, *words)
    assert ended.status == 2 and ended.err.startswith(says)


def test_the_goodput_is_a_column_where_failures_are_asked_for(paceline) -> None:
    asked = "advise", *GPT, "strategy=single", "--top", "1"
    quiet, failing = paceline(*asked), paceline(*asked, "--mtbf", "24h", "--restart", "10min")
    assert quiet.status == failing.status == 0
    assert "goodput" not in quiet.out
    assert re.search(r"time: .* at a goodput of \d\d\.\d% \(modelled\)", failing.out)
    (head,) = [line for line in failing.out.splitlines() if line.startswith("line ")]
    assert "goodput" in head.split()
    assert "note: goodput is modelled (Daly 2006, equation 20, Young's interval): each worker fails every 24 h" in (
        failing.out
    )
    found = json.loads(paceline(*asked, "--mtbf", "24h", "--format", "json").out)
    assert found["failures"] == {"mtbf": 24.0, "restart": pytest.approx(1 / 60), "storage": 1e9}
    assert 0.9 < found["rows"][0]["goodput"] < 1
    rows = csv.DictReader(io.StringIO(paceline(*asked, "--mtbf", "24h", "--format", "csv").out))
    assert [float(row["goodput"]) for row in rows] == [found["rows"][0]["goodput"]]
