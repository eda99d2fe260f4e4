"""The lab: what it plans, refuses and runs, and for whom."""

import http.client
import json
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe import violations
from browser import Browser
from needs import needs_axe, needs_chromium
from process_table import MARK, marked, until

from paceline import engine
from paceline.cli.choices import groups
from paceline.cli.lab import listed
from paceline.conf.errors import ConfigError
from paceline.lab.catalogue import FIXED, Catalogue
from paceline.lab.results import results
from paceline.lab.rules import ValueRule, rule_of
from paceline.lab.runs import LabRun, LabRuns
from paceline.lab.server import LabServer
from paceline.lab.sides import STEPS, WORKERS, Accepted, Side, Sides, lack_of_memory, merged
from paceline.tracking.columns import BY_KEY
from paceline.tracking.errors import StorageError
from paceline.tracking.run_directory import RunDirectory

TINY = ("steps=4", "hardware.workers=2", "model.hidden=[8]", "data.limit=64")


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue(listed())


def looked_at(catalogue: Catalogue, given: list[str], place: int = 0, **changed: dict[str, str]) -> dict[str, Any]:
    side = Side(changed.get("choices", {}), changed.get("values", {}))
    return Sides(catalogue, given).looked_at(place, side)[0]


def test_every_group_of_a_class_is_offered_with_each_choice_those_of_beginners_first(catalogue: Catalogue) -> None:
    told = catalogue.plain()
    assert [each["group"] for each in told][:5] == ["strategy", "sync", "model", "data", "hardware/network"]
    known = groups()
    assert {each["group"] for each in told} == {*known} - {*FIXED, "callbacks"}
    for each in told:
        assert [one["name"] for one in each["choices"]] == [choice.name for choice in known[each["group"]]]
        assert all(one["about"] for one in each["choices"])


def test_fields_have_the_types_bounds_and_words_of_the_product(catalogue: Catalogue) -> None:
    ssp = {field.key: field for field in catalogue.fields("sync", "ssp")}
    assert ssp["sync.staleness"].usual == "3" and ssp["sync.staleness"].about.startswith("steps; 0 is as bsp")
    assert ssp["sync.staleness"].rule == ValueRule("a whole number, at least 0 or null")
    assert ssp["sync.rate"].rule.values == ("share", "full")
    [lr] = [field for field in catalogue.fields("optimizer", "adam") if field.key == "optimizer.lr"]
    assert lr.rule.words == "a number, at least 0"
    network = {field.key: field.rule.words for field in catalogue.fields("hardware/network", "loopback")}
    assert network["hardware.network.bandwidth"] == "a number, above 0"
    run = {field.key: field for field in catalogue.fields_of_run()}
    assert run["hardware.workers"].rule.words == "a whole number, at least 1, at most 1,048,576 or null"
    assert run["batch_size"].about == "samples that one replica takes in one step"


def test_a_type_without_words_has_no_rule() -> None:
    assert rule_of(None) == rule_of(dict[str, int]) == ValueRule()
    assert rule_of(bool | None) == ValueRule("", ("true", "false", "null"))


def test_a_side_has_its_plan_and_the_command_of_its_differences(catalogue: Catalogue) -> None:
    told = looked_at(catalogue, [], place=1, values={"sync.push": "2", "batch_size": "32"})
    assert told["refusal"] is None
    assert told["command"].split()[2:] == [
        *("hardware=virtual", "tracking=none", "hardware.workers=4", "steps=200"),
        *("stragglers=one_slow", "sync=asp", "sync.push=2"),
    ]
    assert dict(told["figures"])["workers"] == "4, and 1 server"
    plan = engine.plan(told["command"].split()[2:])
    assert dict(told["figures"])["held by the largest worker"] == "653.1 KiB" and plan.largest() == 668_796
    usual = looked_at(catalogue, [], place=1, choices={"sync": "bsp", "stragglers": "none"}, values={"steps": "9"})
    assert usual["command"].split()[2:] == ["hardware=virtual", "tracking=none", "hardware.workers=4", "steps=9"]
    assert usual["choices"]["sync"] == "bsp"


def test_another_choice_drops_the_knobs_of_the_former_one(catalogue: Catalogue) -> None:
    assert merged(["sync=ssp", "sync.staleness=1", "seed=1"], ["sync=bsp", "seed=2"]) == ["sync=bsp", "seed=2"]
    told = merged(["hardware/network=regions", "hardware.network.latency=1", "seed=1"], ["hardware/network=loopback"])
    assert told == ["seed=1", "hardware/network=loopback"]
    told = looked_at(catalogue, ["sync=ssp", "sync.staleness=1"], choices={"sync": "asp"})
    assert told["refusal"] is None and "staleness" not in told["command"]


@pytest.mark.budget(0.5)
@pytest.mark.parametrize(
    ("choices", "values"),
    [
        ({}, {"batch_size": "0"}),
        ({}, {"steps": "ten"}),
        ({}, {"batch_size": "8,16"}),
        ({}, {"batch_size": ""}),
        ({}, {"model.hidden": "[64,0]"}),
        ({"sync": "ssp"}, {"sync.staleness": "-1"}),
        ({"strategy": "torch_ddp"}, {}),
        ({"strategy": "pipeline"}, {"hardware.workers": "3"}),
        ({"model": "cnn", "data": "text"}, {}),
    ],
    ids=str,
)
def test_a_refusal_has_the_words_of_train_and_the_field_that_they_name(
    choices: dict[str, str], values: dict[str, str], catalogue: Catalogue
) -> None:
    told = looked_at(catalogue, [], choices=choices, values=values)
    with pytest.raises(ConfigError) as refused:
        engine.plan(shlex.split(told["command"])[2:])
    refusal = told["refusal"]
    assert refusal["status"] == 2 and refusal["words"] == str(refused.value)
    assert {*refusal["keys"]} <= {*choices, *values} and refusal["keys"]


@pytest.mark.budget(0.2)
@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("hardware.workers", f"{WORKERS + 1}", f"hardware.workers={WORKERS + 1}: the lab runs at most {WORKERS}."),
        ("steps", f"{STEPS + 1}", "steps: the run makes 2,001, and the lab at most 2,000."),
    ],
)
def test_a_run_that_is_too_long_is_refused(key: str, value: str, words: str, catalogue: Catalogue) -> None:
    told = looked_at(catalogue, [], values={key: value})
    assert told["refusal"]["words"].startswith(words) and told["refusal"]["status"] == 2
    assert told["refusal"]["keys"] == [key]
    assert looked_at(catalogue, [], values={key: f"{int(value) - 1}"})["refusal"] is None


def test_a_value_that_is_too_long_is_refused_beside_its_field(catalogue: Catalogue) -> None:
    refusal = looked_at(catalogue, [], values={"model.hidden": f"[{'8,' * 600}8]"})["refusal"]
    assert refusal["words"].startswith("model.hidden: the lab takes at most 1,000") and refusal["keys"] == [
        "model.hidden"
    ]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A user's folder of choices: one of a class of ours, and one of a class that is theirs."""
    (tmp_path / "own" / "model").mkdir(parents=True)
    (tmp_path / "own" / "sync").mkdir()
    (tmp_path / "own" / "model" / "small.yaml").write_text(
        "# A small one\n_target_: paceline.tasks.models.mlp.MLP\nhidden: [8]  # widths\n"
    )
    (tmp_path / "own" / "sync" / "theirs.yaml").write_text("# Theirs\n_target_: needs.Nothing\n")
    return tmp_path / "own"


def test_a_users_choices_are_offered_and_their_classes_where_they_are_allowed(own: Path) -> None:
    [model] = [each for each in Catalogue(listed(own)).plain() if each["group"] == "model"]
    assert {"name": "small", "about": "A small one"} in model["choices"]
    told = looked_at(Catalogue(listed(own)), [], choices={"model": "small"})
    assert told["refusal"] is None and told["fields"]["model"][0]["about"] == "widths"
    assert shlex.split(told["command"])[2:4] == ["--config-dir", str(own)]
    refused = [looked_at(Catalogue(listed(own, allowed)), ["sync=theirs"]) for allowed in ((), ("needs",))]
    assert "--allow-module needs" in refused[0]["refusal"]["words"] and "--allow-module" not in refused[0]["command"]
    assert "has no class Nothing" in refused[1]["refusal"]["words"], refused[1]["refusal"]


def test_data_that_are_not_there_are_refused(catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.engine.api.preparing.Prepared.absent", lambda _: "data=digits: not on this machine.")
    refusal = looked_at(catalogue, [])["refusal"]
    assert "The lab downloads nothing" in refusal["words"] and refusal["keys"] == ["data"]


def test_runs_that_do_not_fit_at_once_are_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.comm.shared_memory.available", lambda: 5 * 2**30)
    small, large = (Accepted((), 2, 4, size * 2**30) for size in (2, 3))
    assert lack_of_memory([small, large]) == ""
    assert lack_of_memory([large, large]).startswith("Both runs are estimated to take 6.0 GiB, and this host has 5.0")


@pytest.mark.parametrize("text", ["hardware=local", "tracking=wandb", "tracking.mode=offline", "name=x", "sink=asp"])
def test_overrides_that_the_lab_sets_or_that_are_wrong_are_refused_before_there_is_a_page(
    text: str, catalogue: Catalogue
) -> None:
    with pytest.raises(ConfigError, match=text.partition("=")[0]):
        Sides(catalogue, [text])


def test_two_runs_are_drawn_on_one_scale_and_the_better_one_of_each_figure_is_named(tmp_path: Path) -> None:
    runs: list[LabRun] = []
    for name, loss, accuracy in (("A", 0.5, 0.9), ("B", 0.4, 0.8)):
        directory = RunDirectory.create(tmp_path, name)
        directory.append({"kind": "start", "name": name, "workers": 2, "steps": 2, "modelled": True})
        for step in (1, 2):
            directory.append({"kind": "step", "step": step, "loss": loss / step, "time": 0.1 * step})
        directory.append({"kind": "evaluation", "step": 2, "accuracy": accuracy, "loss": loss, "time": 0.2})
        directory.append({"kind": "end", "status": "completed"})
        directory.write_summary({"name": name, "status": "completed", "loss": loss, "accuracy": accuracy, "workers": 2})
        process = subprocess.Popen(["true"])
        process.wait()
        runs.append(LabRun(name, tmp_path, 2, process))
    assert runs[0].plain() == {"name": "A", "status": "completed", "step": 2, "steps": 2, "words": ""}
    drawn = results(runs)
    better = {line["title"]: (line["values"], line["better"]) for line in drawn["table"]}
    assert better == {"accuracy": (["90.00%", "80.00%"], "A"), "loss": (["0.5000", "0.4000"], "B")}
    assert [each["title"] for each in drawn["pictures"]][:2] == ["accuracy over time", "accuracy over steps"]
    assert drawn["timelines"] == [] and drawn["no_timeline"].startswith("No timeline of A and B")


# -- the server


@pytest.fixture
def lab(tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LabServer]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv(MARK, str(tmp_path))
    with LabServer(0, listed(own), TINY) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
    assert not list(tmp_path.glob("paceline-lab-*"))
    until(lambda: not marked(str(tmp_path)), 20, "no process is left")


def ask(server: LabServer, name: str, body: Any = None, origin: bool = True) -> tuple[int, Any]:
    """GET without a body, POST with one."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=100)
    sent = {"Content-Type": "application/json"}
    sent |= {"Origin": f"http://127.0.0.1:{server.server_port}"} if origin else {}
    if body is None:
        connection.request("GET", f"{server.path}{name}")
    else:
        connection.request("POST", f"{server.path}{name}", json.dumps(body), sent)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, json.loads(text) if answer.status == 200 and name else text


def pair(**second: str) -> dict[str, Any]:
    return {"sides": [{"choices": {}, "values": {}}, {"choices": second, "values": {}}]}


def test_the_page_is_whole_and_its_policy_names_its_script(lab: LabServer) -> None:
    status, page = ask(lab, "")
    assert status == 200 and "script-src 'sha256-" in page and "connect-src 'self'" in page
    assert not [text for text in ("http://", "https://", " onclick", " onload", "innerHTML") if text in page]


def test_a_body_that_no_page_sends_plans_and_runs_nothing(lab: LabServer) -> None:
    sides = [
        *({"choices": {"hardware": "local"}, "values": {}}, {"choices": {"sync": "__class__"}, "values": {}}),
        *({"choices": {}, "values": {"model._target_": "os.system"}}, {"choices": {}, "values": {"tracking": "wandb"}}),
        *({"choices": {}, "values": {"steps": 1}}, {}, 1, None),
    ]
    for body in ([], {}, {"sides": []}, *({"sides": [side, side]} for side in sides)):
        assert [ask(lab, name, body)[0] for name in ("plan", "run")] == [400, 400], body
    assert ask(lab, "state")[1]["going_on"] is False


def test_a_foreign_page_starts_nothing_and_a_refused_side_runs_nothing(lab: LabServer) -> None:
    assert ask(lab, "run", pair(), origin=False)[0] == 403
    status, told = ask(lab, "run", pair(strategy="torch_ddp"))
    assert status == 200 and told["why"] == "A side is refused." and told["sides"][1]["refusal"]["status"] == 2
    assert ask(lab, "state")[1] == {"going_on": False, "runs": [], "version": "0 []"}
    assert ask(lab, "results")[1]["pictures"] == []


def ended(server: LabServer) -> list[dict[str, Any]]:
    """Returns the runs once none goes on."""

    def look() -> list[dict[str, Any]]:
        state = ask(server, "state")[1]
        return [] if state["going_on"] else state["runs"]

    return until(look, 100, "the runs end")


@pytest.mark.slow  # two runs in processes of their own, and one here
@pytest.mark.timeout(240)
def test_both_runs_have_the_figures_of_the_commands_that_are_copied(lab: LabServer, tmp_path: Path) -> None:
    told = ask(lab, "run", pair(sync="asp", model="small"))[1]
    assert told["why"] == "" and ask(lab, "run", pair())[1]["why"] == "Another page of this lab is running."
    runs = ended(lab)
    assert [(run["status"], run["step"], run["steps"]) for run in runs] == [("completed", 4, 4)] * 2
    drawn = ask(lab, "results")[1]
    for place, side in enumerate(told["sides"]):
        words = [*shlex.split(side["command"])[1:], "--format", "json"]
        command = [sys.executable, "-m", "paceline.cli.main", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        [row] = json.loads(done.stdout)
        figures = {line["title"]: line["values"][place] for line in drawn["table"]}
        for key in ("loss", "messages", "megabytes"):
            assert figures[BY_KEY[key].title] == BY_KEY[key].text(row[key])
    assert next(line for line in drawn["table"] if line["title"] == "messages")["better"] == "A"
    titles = [picture["title"] for picture in drawn["pictures"]]
    assert {"accuracy over time", "training loss over steps", "staleness"} <= set(titles)
    assert len(drawn["timelines"]) == 2 and drawn["no_timeline"] == ""
    assert all(each["image"].startswith("data:image/svg+xml;base64,") for each in drawn["pictures"])


@pytest.mark.slow  # starts processes
@pytest.mark.timeout(240)
def test_a_cancelled_pair_and_one_that_no_page_watches_end(lab: LabServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(lab, "run", pair())[1]["why"] == ""
    until(lambda: ask(lab, "state")[1]["runs"], 20, "they start")
    ask(lab, "cancel", {})
    assert [(run["status"], run["words"]) for run in ended(lab)] == [("ended", "cancelled")] * 2
    assert ask(lab, "run", pair())[1]["why"] == ""
    until(lambda: lab.runs.going_on and ask(lab, "state")[1]["version"].startswith("2"), 20, "they start again")
    monkeypatch.setattr("paceline.lab.runs.UNSEEN", 0.05)
    until(lambda: not lab.runs.going_on, 20, "nobody asks, and they end")
    assert [run["words"] for run in ended(lab)] == ["ended, as no page asked for it"] * 2


def test_runs_that_take_too_long_are_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("paceline.lab.runs.SECONDS", 0.0)
    runs = LabRuns()
    assert runs.start([Accepted(("hardware=virtual",), 2, 4, 1)] * 2)
    runs.tend()
    assert [each["status"] for each in runs.look()["runs"]] == ["running"] * 2
    runs.tend()
    assert ["limit" in each["words"] for each in runs.look()["runs"]] == [True] * 2
    runs.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_or_is_gone_is_an_error_of_storage(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with pytest.raises(StorageError, match=r"No such file or directory.*none/.*TMPDIR"):
        LabServer(0, listed(), TINY)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    runs = LabRuns()
    [folder] = tmp_path.iterdir()
    folder.rmdir()  # as a program that tidies up may do
    assert runs.start([Accepted(("hardware=virtual",), 2, 4, 1)] * 2)
    with pytest.raises(StorageError, match=f"cannot write {folder}"):
        runs.tend()
    runs.close()


@needs_chromium
@pytest.mark.browser
@pytest.mark.timeout(240)
def test_a_person_changes_a_side_by_keyboard_runs_both_and_sees_them(lab: LabServer, window: Browser) -> None:
    window.visit(lab.address, width=390)
    window.wait_for("document.querySelectorAll('.plan dd').length")
    unnamed = "return [...document.querySelectorAll('select, input')].filter((one) => !one.labels.length).length"
    assert window.run(unnamed) == 0
    window.run("document.getElementById('B-steps').focus(); document.activeElement.select()")
    window.press("0")
    window.wait_for("document.getElementById('B-steps').getAttribute('aria-invalid') === 'true'")
    assert "steps=0" in window.run("return document.getElementById('B-steps-wrong').textContent")
    assert window.run("return document.getElementById('run').disabled")
    window.run("document.activeElement.select()")
    window.press("5")
    window.wait_for("!document.getElementById('run').disabled")
    assert "steps=5" in window.run("return document.getElementById('command-B').textContent")
    window.run("document.getElementById('run').focus()")
    window.press("enter")
    until(lambda: window.run("return document.querySelectorAll('#timelines img').length") == 2, 150, "both are drawn")
    drawn = "return [...document.images].every((image) => image.complete && image.naturalWidth > 0)"
    assert window.run(drawn) and window.run("return document.documentElement.scrollWidth <= innerWidth")
    assert {url.removeprefix(lab.address) for url in window.requests()} == {"plan", "run", "state", "results"}
    assert window.complaints() == []


CHANGED = """
const one = document.getElementById(arguments[0]);
one.value = arguments[1];
for (const kind of ['input', 'change']) one.dispatchEvent(new Event(kind));
"""


def change(window: Browser, name: str, value: str) -> None:
    """Chooses or types a value."""
    window.run(CHANGED.replace("arguments[0]", json.dumps(name)).replace("arguments[1]", json.dumps(value)))


def words_of(window: Browser, name: str) -> str:
    return window.run(f"return document.getElementById({json.dumps(name)}).textContent")


@needs_chromium
@needs_axe
@pytest.mark.browser
@pytest.mark.timeout(400)
def test_two_chosen_configurations_are_planned_run_side_by_side_and_copied(lab: LabServer, window: Browser) -> None:
    window.visit(lab.address)
    window.devtools("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    window.wait_for("document.querySelectorAll('.plan dd').length")
    change(window, "A-sync", "gossip")
    change(window, "B-sync", "easgd")
    window.wait_for("document.getElementById('B-sync.period') && !document.getElementById('run').disabled")
    change(window, "B-sync.period", "2")
    window.wait_for("document.getElementById('command-B').textContent.includes('sync.period=2')")
    asked = {"sides": [{"choices": {"sync": "gossip"}, "values": {}},
                       {"choices": {"sync": "easgd"}, "values": {"sync.period": "2"}}]}  # fmt: skip
    expected = [side["command"] for side in ask(lab, "plan", asked)[1]["sides"]]
    assert [words_of(window, f"command-{name}") for name in "AB"] == expected
    figures = window.run("return [...document.querySelectorAll('.plan dl')].map((one) => one.children.length)")
    assert min(figures) >= 8

    change(window, "B-strategy", "torch_ddp")  # which the virtual cluster has not
    refused = "document.querySelectorAll('.plan')[1].textContent.includes('exit status 2')"
    window.wait_for(f"{refused} && document.getElementById('run').disabled")
    assert "strategy=torch_ddp" in words_of(window, "B-strategy-wrong")
    assert words_of(window, "A-strategy-wrong") == ""
    change(window, "B-strategy", "data_parallel")
    window.wait_for(f"!({refused}) && !document.getElementById('run').disabled")

    window.run("document.getElementById('run').click()")
    window.wait_for("!document.getElementById('cancel').disabled")
    window.wait_for("/^A: .*\\nB: /.test(document.getElementById('said').textContent)")
    until(lambda: window.run("return document.querySelectorAll('#timelines img').length") == 2, 250, "both are drawn")
    heads = window.run("return [...document.querySelectorAll('thead th')].map((one) => one.textContent)")
    assert heads == ["", "A", "B", "better", "meaning"]
    assert words_of(window, "said").count("completed") == 2
    for width in (1280, 390):
        for theme in ("light", "dark"):
            window.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            window.devtools("Emulation.setDeviceMetricsOverride", **size)
            assert violations(window) == [], (width, theme)
            assert window.run("return document.documentElement.scrollWidth") <= width

    window.run("document.querySelectorAll('.command button')[1].focus()")
    window.press("enter")
    window.wait_for("document.getElementById('said').textContent === 'The command of B is in the clipboard.'")
    assert window.run("return navigator.clipboard.readText()") == words_of(window, "command-B") == expected[1]
    assert window.complaints() == []


@needs_chromium
@pytest.mark.browser
@pytest.mark.timeout(400)
def test_a_page_says_why_it_runs_nothing_and_follows_the_runs_of_another_page(
    lab: LabServer, window: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    window.visit(lab.address)
    window.wait_for("document.querySelectorAll('.plan dd').length && !document.getElementById('run').disabled")
    change(window, "B-model.hidden", f"[{'8,' * 600}8]")
    window.wait_for("document.getElementById('B-model.hidden-wrong').textContent")
    assert words_of(window, "B-model.hidden-wrong").startswith("model.hidden: the lab takes at most 1,000")
    assert window.run("return document.getElementById('run').disabled")
    change(window, "B-model.hidden", "[8]")
    window.wait_for("!document.getElementById('run').disabled")
    assert words_of(window, "B-model.hidden-wrong") == ""

    with monkeypatch.context() as without_memory:
        without_memory.setattr("paceline.lab.server.lack_of_memory", lambda _: "Both runs take 9 GiB.")
        window.run("document.getElementById('run').click()")
        window.wait_for("document.getElementById('said').textContent === 'Both runs take 9 GiB.'")
        window.wait_for("!document.getElementById('run').disabled")  # for another try

    assert ask(lab, "run", pair())[1]["why"] == ""
    window.run("document.getElementById('run').click()")
    window.wait_for("document.getElementById('said').textContent === 'Another page of this lab is running.'")
    until(lambda: window.run("return document.querySelectorAll('#timelines img').length") == 2, 250, "both are drawn")
    window.wait_for("!document.getElementById('run').disabled && document.getElementById('cancel').disabled")
    assert window.complaints() == []
