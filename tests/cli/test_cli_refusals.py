"""How the command ends when something is wrong: one sentence last, the exit status, no traceback, no side effect."""

import json
from pathlib import Path

import pytest
import typer

import paceline.cli.main
from paceline.conf.errors import ConfigError


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(*_: object) -> None:
        raise AssertionError("a process was about to start")

    monkeypatch.setattr("paceline.engine.launch.launching.launch", launch)


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["strateg=single"], ["strateg:", "did you mean strategy"]),
        (["strategy=sngle"], ["strategy=sngle:", "did you mean single"]),
        (["optimizer.momentun=0.9"], ["optimizer.momentun:", "did you mean optimizer.momentum"]),
        (["bach_size=8"], ["bach_size:", "did you mean batch_size"]),
        (["+new_key=1"], ["new_key:", "no such key"]),
        (["epochs=ten"], ["epochs='ten'", "integer"]),
        (["epochs=0"], ["epochs=0", "greater than or equal to 1"]),
        (["target_accuracy=90"], ["target_accuracy=90", "less than or equal to 1"]),
        (["hardware.workers=-1"], ["hardware.workers=-1", "greater than or equal to 1"]),
        (["hardware.port=70000"], ["hardware.port=70000", "65535"]),
        (["hardware.device=tpu"], ["hardware.device='tpu'", "'cuda'"]),
        (["model.hidden=[64,0]"], ["model.hidden", "=0", "greater than or equal to 1"]),
        (["sync=asp", "sync.push=0"], ["sync.push=0", "greater than or equal to 1"]),
        (["strategy=pipeline", "hardware.workers=3"], ["hardware.workers=3", "multiple of 2", "2 or 4"]),
        (["strategy=torch_ddp", "sync=asp"], ["sync=asp", "strategy=torch_ddp", "data_parallel"]),
        (["strategy=single", "hardware.workers=2"], ["hardware.workers=2", "at most 1"]),
        (["batch_size=8,16"], ["batch_size=8,16", "sweep"]),
        (["sync"], ["sync", "is not an override", "key=value"]),
        (["model=cnn", "data=text"], ["cnn"]),
        (["tracking.mode=loud"], ["tracking.mode=loud", "offline"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and "=" in value[0] else "",
)
def test_a_bad_configuration_names_key_value_and_rule(
    overrides: list[str], parts: list[str], paceline, nothing_starts: None, here: Path
) -> None:
    ended = paceline("train", *overrides)
    assert ended.status == 2 and ended.out == ""
    assert "Traceback" not in ended.err
    assert all(part in ended.last for part in parts), ended.last
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        (["--workers", "4"], "it is hardware.workers=4"),
        (["--workers=4"], "it is hardware.workers=4"),
        (["--batch-size", "8"], "it is batch_size=8"),
        (["--sync", "asp"], "sync=asp chooses it"),
        (["--precision"], "precision=... chooses it"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_an_option_that_is_a_key_of_the_configuration_is_answered_with_how_to_write_it(
    option: list[str], hint: str, paceline
) -> None:
    ended = paceline("train", *option)
    assert ended.status == 2 and ended.err.startswith(f"{option[0].partition('=')[0]}: is no option")
    assert ended.err.count("\n") == 1
    assert hint in ended.last
    assert "KEY=VALUE" not in paceline("compare", "--nosuch").err


@pytest.mark.parametrize(
    "overrides",
    [
        ["model._target_=os.system", "+model.command='touch made'"],
        ["model._target_=torch.load", "+model.f=made", "+model.weights_only=false"],
        ["model._target_=pathlib.Path.touch", "+model.self=made"],
        ["data._target_=paceline.tasks.data.text.np.fromfile"],
        ["optimizer._target_=torch.optim.lr_scheduler.StepLR"],
        ["strategy._target_=paceline.strategies.core.strategy.Strategy"],
        ["sync._target_=subprocess.Popen", "+sync.args=[touch,made]"],
        ["model._target_=torch.nn.../evil"],
        ["model._target_=eval"],
    ],
    ids=lambda overrides: overrides[0],
)
def test_a_target_that_is_not_a_class_of_its_group_is_refused_untouched(
    overrides: list[str], paceline, nothing_starts: None, here: Path
) -> None:
    ended = paceline("train", *overrides)
    assert ended.status == 2 and "_target_=" in ended.last
    assert "Traceback" not in ended.err
    assert not list(here.iterdir())


@pytest.mark.parametrize("target", ["os.system", "pathlib.Path.touch", "subprocess.Popen"])
def test_an_allowed_module_still_has_to_name_a_class_of_its_group(target: str, paceline, here: Path) -> None:
    ended = paceline(
        "train", f"model._target_={target}", "+model.command=touch made", "--allow-module", target.partition(".")[0]
    )
    assert (
        ended.status == 2 and "must be a class derived from torch.nn.Module" in ended.last
    ) or "cannot import" in ended.last
    assert not list(here.iterdir())


def test_missing_data_are_the_environments_fault(paceline, nothing_starts: None, here: Path) -> None:
    ended = paceline("train", "data=fashion_mnist", f"data.root={here}/nowhere", "tracking=none")
    assert ended.status == 3
    assert "nowhere lacks the four idx files" in ended.last and "data.download=true" in ended.last
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("trian", "paceline: no such command 'trian'; did you mean 'train'? (paceline -h shows what there is)"),
        ("nosuch", "paceline: no such command 'nosuch' (paceline -h shows what there is)"),
        (
            "train --drry-run",
            "paceline train: no such option: --drry-run; did you mean --dry-run? "
            "(paceline train -h shows what there is)",
        ),
        (
            "show a --where b",
            "paceline show: no such option: --where; paceline compare has it (paceline show -h shows what there is)",
        ),
        (
            "plan --seeds 3",
            "paceline plan: no such option: --seeds; paceline advise and sweep have it "
            "(paceline plan -h shows what there is)",
        ),
        ("diff a", "paceline diff: missing argument 'RUN' (paceline diff -h shows what there is)"),
        (
            "train --name",
            "paceline train: option '--name' requires an argument (paceline train -h shows what there is)",
        ),
        (
            "plan --format xml",
            "paceline plan: invalid value for '--format': 'xml' is not one of 'table', 'json', 'yaml' "
            "(paceline plan -h shows what there is)",
        ),
        ("train -q", "paceline train: no such option: -q (paceline train -h shows what there is)"),
    ],
)
def test_a_wrong_command_line_is_a_bad_configuration_in_one_line(typed: str, line: str, paceline) -> None:
    ended = paceline(*typed.split())
    assert (ended.status, ended.out, ended.err) == (2, "", f"{line}\n")


@pytest.mark.parametrize(
    "typed",
    [
        "model={_target_:m.Net,api_key:hush77",
        "model={_target_:m.Net,'token': 'hush,77'",
        "tracking.api_key=hush77,hush88",
        "tracking.api_key=[hush77",
        "+tracking.api_key=choice(hush77,hush88)",
        "tracking={name:wandb,api_key:hush77}",
        "callbacks=[{_target_:m.Net,hf_token:hush77}]",
        "hardware.hosts={a:{password:{b:hush77}}}",
        "model.api_key=glob(hush77)",
        "tracking.api_key@x=hush77",
    ],
)
def test_a_refused_override_is_shown_without_its_secret(typed: str, paceline, nothing_starts: None, here: Path) -> None:
    ended = paceline("train", typed, "--format", "json")
    assert ended.status == 2 and "hush" not in ended.err + ended.out and "***" in ended.last


def test_trust_without_a_checkpoint_to_trust_is_refused(paceline, nothing_starts: None, here: Path) -> None:
    ended = paceline("train", "--trust-checkpoint")
    assert ended.status == 2 and "--trust-checkpoint: is for the DeepSpeed checkpoint that weights=DIR" in ended.last


@pytest.mark.parametrize("name", ["../escape", "a/b", "", "x" * 65, ".."])
def test_a_run_stays_under_its_root(name: str, paceline, nothing_starts: None, here: Path) -> None:
    ended = paceline("train", "tracking=none", "--name", name)
    assert ended.status == 2 and "run name" in ended.last
    assert not list(here.iterdir())


def test_details_come_before_the_sentence(paceline, monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.engine.base.errors import WorkerFailedError

    def run(*_: object, **__: object) -> None:
        raise WorkerFailedError("worker 1 failed: KeyError: 'x'; nothing was saved yet", 4, ["log: a", "log: b"])

    monkeypatch.setattr("paceline.engine.run", run)
    ended = paceline("train")
    assert (ended.status, ended.out) == (4, "")
    assert ended.err == "log: a\nlog: b\nworker 1 failed: KeyError: 'x'; nothing was saved yet\n"


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def run(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("paceline.engine.run", run)


def test_a_mistake_of_ours_shows_where_and_ends_in_a_sentence(paceline, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, KeyError("lost\nkey"))
    ended = paceline("train")
    assert ended.status == 1 and "Traceback" in ended.err
    assert ended.last.startswith("this is a mistake in paceline") and "KeyError" in ended.last


def test_a_package_that_is_not_installed_is_the_environments_fault(paceline, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, ModuleNotFoundError("No module named 'safetensors.torch'", name="safetensors.torch"))
    ended = paceline("train")
    assert ended.status == 3 and ended.err == (
        "the package safetensors is not installed; what works here: paceline doctor\n"
    )


@pytest.mark.parametrize("strategy", ["zero", "deepspeed_pipeline"])
def test_without_deepspeed_its_strategies_are_refused_before_a_worker_starts(
    strategy: str, paceline, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.strategies.external.deepspeed_start.find_spec", lambda name: None)
    ended = paceline("train", f"strategy={strategy}", "tracking=none")
    assert (ended.status, ended.out) == (3, "") and not (here / "runs").exists()
    assert ended.last == f"strategy={strategy}: DeepSpeed is not installed; pip install deepspeed"
    for planned in (("train", "--dry-run"), ("plan",)):
        ended = paceline(*planned, f"strategy={strategy}", "tracking=none")
        assert ended.status == 0 and f"strategy={strategy}: DeepSpeed is not installed here" in ended.out + ended.err


def test_without_their_extras_pictures_and_a_shared_database_are_refused_at_once(
    paceline, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.tracking.drawn.converted.find_spec", lambda name: None)
    ended = paceline("compare", "--png", "pictures", "--font", "Vera.ttf")
    assert (ended.status, ended.out) == (3, "") and ended.last.endswith("pip install 'paceline[figures]'")
    monkeypatch.setattr("paceline.sweep.storage.find_spec", lambda name: None)
    url = "postgresql://me:secret-horse@host/name"
    ended = paceline("sweep", "sync=bsp,asp", "tracking=none", "hardware=virtual", "--storage", url)
    assert (ended.status, ended.out) == (3, "") and ended.last.endswith("pip install 'paceline[postgres]'")
    assert "psycopg, which PostgreSQL needs, is not installed" in ended.last and "secret-horse" not in ended.err


def test_an_interruption_before_the_workers_is_told_in_one_line(paceline, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, KeyboardInterrupt())
    ended = paceline("train")
    assert ended.status == 130 and ended.err.count("\n") == 1 and "interrupted" in ended.last


@pytest.mark.parametrize(
    ("message", "last"),
    [
        ('while scanning\n  in "x.yaml", line 1:\n    a: [1\n       ^\n', 'while scanning in "x.yaml", line 1: a: [1'),
        ("first thing\n\nsecond thing\n\n", "second thing"),
        ("", "it failed, and does not say why"),
    ],
    ids=["excerpt", "blank lines", "nothing"],
)
def test_the_last_line_of_a_long_message_is_a_sentence(
    message: str, last: str, paceline, monkeypatch: pytest.MonkeyPatch
) -> None:
    raising(monkeypatch, ConfigError(message))
    ended = paceline("train")
    assert (ended.status, ended.last) == (2, last)
    assert all(line.strip() for line in ended.err.splitlines())


@pytest.mark.parametrize("arguments", [["train"], ["plan"], ["compare"]], ids=" ".join)
def test_a_directory_that_is_gone_is_the_environments_fault(
    arguments: list[str], paceline, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "gone").mkdir()
    monkeypatch.chdir(here / "gone")
    (here / "gone").rmdir()
    ended = paceline(*arguments)
    assert (ended.status, ended.out) == (3, "")
    assert ended.err.count("\n") == 1 and "current directory" in ended.last


def test_under_torchrun_a_failed_worker_leaves_at_once(paceline, monkeypatch: pytest.MonkeyPatch) -> None:
    class Left(BaseException):
        pass

    def leave(status: int) -> None:
        raise Left(status)

    raising(monkeypatch, ValueError("x"))
    monkeypatch.setattr("os._exit", leave)
    for variable in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(variable, "1")
    with pytest.raises(Left, match="1"):
        paceline("train")


def test_every_command_is_documented() -> None:
    commands = typer.main.get_command(paceline.cli.main.app).commands  # pyright: ignore[reportAttributeAccessIssue]
    assert set(commands) == {
        "train",
        "plan",
        "advise",
        "cost",
        "verify",
        "lab",
        "launch",
        "learn",
        "init",
        "import",
        "sweep",
        "watch",
        "compare",
        "explain",
        "report",
        "show",
        "diff",
        "export",
        "upload",
        "sync",
        "list",
        "doctor",
        "jobs",
        "logs",
        "cancel",
        "calibrate",
        "ls",
        "rm",
        "prune",
    }
    assert all(command.help for command in commands.values())


ODD = """
from types import SimpleNamespace

from torch import nn


class Odd(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x):
        return SimpleNamespace(scores=self.layer(x.flatten(1)))
"""


@pytest.mark.parametrize("command", [("plan",), ("train", "--dry-run")], ids=" ".join)
def test_a_model_that_returns_no_tensor_is_refused_at_once(command, paceline, nothing_starts: None, here: Path) -> None:
    (here / "odd_outputs.py").write_text(ODD)
    (here / "conf" / "model").mkdir(parents=True)
    (here / "conf" / "model" / "odd.yaml").write_text("_target_: odd_outputs.Odd\n")
    ended = paceline(*command, "model=odd", "--config-dir", "conf", "--allow-module", "odd_outputs")
    assert ended.status == 2 and "returns a SimpleNamespace" in ended.last and "with `logits`" in ended.last


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("attack.scale=2",), "attack=sign_flip has attack.scale"),
        (("attack.workers=2",), "attack=fall_of_empires (and 10 more) have attack.workers"),
        (("compress=topk", "compress.rate=0.1"), "did you mean compress.ratio"),
        (("attack=sign_flip", "attack.workers=1.5"), "attack.workers=1.5: must be a valid integer or a list"),
        (("hardware=virtual", "hardware.timeout=20"), "hardware=local has hardware.timeout"),
    ],
    ids=" ".join,
)
def test_what_is_wrong_with_a_groups_key_is_said_in_its_own_terms(
    overrides, says, paceline, nothing_starts: None, here: Path
) -> None:
    ended = paceline("train", *overrides)
    assert ended.status == 2 and says in ended.last


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("train", "steps=1", "--trace", "--dry-run"), "--trace"),
        (("train", "steps=1", "--allow-module", "--dry-run"), "--allow-module"),
        (("train", "--name", "-h"), "--name"),
        (("upload", "--project", "--dry-run"), "--project"),
        (("explain", "sync=ssp", "--svg", "--format", "json"), "--svg"),
        (("compare", "--html", "--png", "pictures"), "--html"),
        (("compare", "--png", "--html"), "--png"),
    ],
)
def test_an_option_without_its_value_does_not_take_the_next_option_for_it(
    words: tuple[str, ...], option: str, paceline, here: Path
) -> None:
    ended = paceline(*words)
    assert ended.status == 2 and f"paceline {words[0]}: option '{option}' requires an argument" in ended.err
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "--title=--png"),
        ("compare", "--", "--title", "--png"),
        ("compare", "--title", "-"),
        ("compare", "--html", "runs"),  # the name of an argument
        ("launch", "none.py", "--workers", "--dry-run"),  # the script's
    ],
)
def test_a_value_that_looks_like_an_option_is_taken_where_it_is_one(words: tuple[str, ...], paceline) -> None:
    assert "requires an argument" not in paceline(*words).err


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        ("sync=SSP", "ssp"),
        ("model=MLP", "mlp"),
        ("optimizer=SGD", "sgd"),
        ("data=MNIST", "fashion_mnist"),
        ("sync=SPARTA+DiLoCo", "sparta"),
        ("Epochs=3", "epochs"),
    ],
)
def test_another_case_of_letters_is_recognised(word: str, instead: str, paceline) -> None:
    ended = paceline("plan", word)
    assert ended.status == 2 and f"did you mean {instead}" in ended.last


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("data=./mine.csv", "data=./mine.csv: there is no such choice; data=arrays, "),
        ("data=mine.csv", "data=mine.csv: there is no such choice; data=arrays, "),
        ("data=/nowhere/mine.csv", "data=/nowhere/mine.csv: there is no such choice; data=arrays, "),
        ("model=mine/m.py", "model=mine/m.py: there is no such choice; "),
        ("experiment=mine/all.yaml", "experiment=mine/all.yaml: there is no such choice; "),
        ("hardware/network=far", "hardware/network=far: there is no such choice; "),
    ],
)
def test_a_path_in_place_of_a_choice_is_named_as_typed(word: str, says: str, paceline, here: Path) -> None:
    (here / "mine.csv").write_text("a,b\n1,2\n")
    ended = paceline("plan", "hardware=virtual", word, "--format", "json")
    told = json.loads(ended.out)
    assert ended.status == 2 and told["message"].startswith(says), told
    assert f"{told['key']}={told['value']}" == word
    assert (" have data.path; " in told["message"]) == word.startswith("data=")


@pytest.mark.parametrize(
    "words",
    [("watch", "r", "--interval", "1"), ("compare", "--model", "mlp"), ("show", "r", "--seed", "1"), ("ls", "--sync")],
)
def test_a_command_that_takes_no_overrides_does_not_send_anybody_there(words: tuple[str, ...], paceline) -> None:
    ended = paceline(*words)
    assert ended.status == 2 and f"paceline {words[0]}: no such option: --" in ended.last
    assert "KEY=VALUE" not in ended.err


@pytest.mark.parametrize("word", ["compile=1", "stop_at_target=yes", "drop_last=on"])
def test_yes_and_no_are_said_to_be_true_and_false(word: str, paceline) -> None:
    ended = paceline("plan", word)
    assert ended.status == 2 and ended.last.endswith(": must be true or false")
