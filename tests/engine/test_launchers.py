"""Who starts the workers is asked in one place, and what differs between launchers is in their own files."""

import ast
import gc
import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
import torch
import yaml

from paceline.comm.errors import HangError, PeerLostError, RendezvousError, TokenError
from paceline.comm.key_values import KeyValues
from paceline.comm.store import StoreGoneError
from paceline.conf.errors import ConfigError
from paceline.engine.api.preparing import prepare
from paceline.engine.base.started import is_first
from paceline.engine.config.compose import compose
from paceline.engine.fabrics import fabric_of
from paceline.engine.fabrics.kinds import Started, ThisHost, VirtualCluster
from paceline.engine.launch import launcher_on, local, torchrun
from paceline.engine.launch.local import Local
from paceline.engine.launch.torchrun import Torchrun, check_alike
from paceline.engine.launch.virtual import Virtual, kept_from_collector
from paceline.tracking.run_directory import RunDirectory
from paceline.wrap import workers
from paceline.wrap.workers import join

ENGINE = Path(__file__).parents[2] / "engine"
STARTED = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


def test_the_fabric_and_the_environment_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    local, virtual = compose(["tracking=none"]), compose(["tracking=none", "hardware=virtual"])
    assert type(fabric_of(local)) is ThisHost and type(fabric_of(virtual)) is VirtualCluster and is_first()
    assert type(launcher_on(fabric_of(local))) is Local and type(launcher_on(fabric_of(virtual))) is Virtual
    for name, value in STARTED.items():
        assert type(fabric_of(local)) is ThisHost
        monkeypatch.setenv(name, value)
    started = fabric_of(local)
    assert type(started) is Started and started.world_size == 3 and not is_first()
    assert type(launcher_on(started)) is Torchrun
    with pytest.raises(ConfigError, match="start it without torchrun"):
        fabric_of(virtual).check(virtual, resumes=False)


def test_each_says_whether_it_saves_and_whether_its_times_are_modelled() -> None:
    assert [(kind.saves, kind.modelled) for kind in (ThisHost, Started, VirtualCluster)] == [
        (True, False),
        (True, False),
        (False, True),
    ]
    assert VirtualCluster.instead and not ThisHost.instead


@pytest.mark.parametrize("overrides", [(), ("epochs=9",), ("hardware=virtual",), ("hardware=local",), ("seed=1",)])
def test_a_virtual_run_is_not_resumed_whatever_is_asked_of_it(overrides: tuple[str, ...], tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "modelled")
    run.write_config(yaml.safe_dump(compose(["tracking=none", "hardware=virtual"]).model_dump()))
    with pytest.raises(ConfigError, match="a virtual cluster keeps no checkpoints, as the same command repeats"):
        prepare(overrides, resume="modelled", root=tmp_path)


def test_the_fork_server_imports_our_classes_and_no_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoWorkers:
        def __init__(self, may_go_on: object, saved: object, afterwards: Callable[[], None]) -> None:
            self.afterwards = afterwards

        def start(self, size: int, main: object, told: object, preload: tuple[str, ...]) -> None:
            asked.extend(preload)
            self.afterwards()

    asked: list[str] = []
    monkeypatch.setattr(local, "LocalWorkers", NoWorkers)
    prepared = prepare(["tracking=none"], root=tmp_path)
    plan, directory = prepared.plan(), RunDirectory.create(tmp_path, "run")
    Local(fabric_of(prepared.experiment)).start(prepared.assignment(directory, plan), plan.layout, False, ("given",))
    assert asked[0] == "given" and prepared.experiment.optimizer.target.startswith("torch.")
    assert {"paceline.strategies.sync.bsp", "paceline.tasks.data.digits"} < set(asked)
    assert not [module for module in asked[1:] if not module.startswith("paceline.")]


def asks_for_the_fabric(source: str) -> list[int]:
    """Lines with a condition on the kind of hardware."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and ".fabric" in ast.unparse(node):
            found.append(node.lineno)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance" and "Hardware" in ast.unparse(node):
            found.append(node.lineno)
    return found


def test_nobody_else_asks_whether_a_run_is_virtual() -> None:
    rooms = (room for name in ("engine", "strategies", "exchange") for room in (ENGINE.parent / name).rglob("*.py"))
    files = [file for file in rooms if file.parent.name not in ("fabrics", "launch")]
    assert len(files) > 300
    assert {str(file): lines for file in files if (lines := asks_for_the_fabric(file.read_text()))} == {}
    assert asks_for_the_fabric((ENGINE / "fabrics" / "__init__.py").read_text())
    assert asks_for_the_fabric("if isinstance(hardware, VirtualHardware): pass") == [1]


def left_over(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in (STARTED | variables).items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"RANK": "x"}, {"RANK": "3"}, {"RANK": "-1"}, {"WORLD_SIZE": ""}, {"MASTER_PORT": "http"}),
        *({"MASTER_PORT": "99999"}, {"LOCAL_WORLD_SIZE": "two"}, {"LOCAL_WORLD_SIZE": "0"}, {"LOCAL_RANK": "x"}),
    ],
)
def test_variables_that_no_launcher_sets_are_named(wrong: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    left_over(monkeypatch, **wrong)
    [(name, value)] = wrong.items()
    with pytest.raises(ConfigError, match=f"{name}={value}.*: no launcher sets these.*unset RANK, WORLD_SIZE"):
        prepare(["tracking=none"])


@pytest.mark.parametrize("asked", ["hardware.workers=2", "hardware=virtual"])
def test_variables_of_another_job_are_named_where_they_matter(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    left_over(monkeypatch)
    with pytest.raises(ConfigError, match="unset RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"):
        prepare(["tracking=none", asked]).plan()


def test_a_rank_alone_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RANK", "1")
    assert is_first() and type(fabric_of(compose(["tracking=none"]))) is ThisHost


@pytest.mark.parametrize(
    ("error", "said", "variables"),
    [
        (HangError, "for all workers to start: worker 1 ", {"LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "0"}),
        (TokenError, "PACELINE_TOKEN: is not set, and 2 nodes ", {"LOCAL_RANK": "0"}),
        (RendezvousError, "worker 0 cannot listen on ", {"LOCAL_WORLD_SIZE": "2"}),
    ],
)
def test_workers_that_cannot_meet_are_told_which_variables_may_be_left_over(
    error: type[Exception], said: str, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        own = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": str(taken.getsockname()[1])}
        left_over(monkeypatch, **(own | variables))
        experiment = compose(["tracking=none", "hardware.timeout=0.3", "model.hidden=[4]"])
        launcher = launcher_on(fabric_of(experiment))
        layout = prepare(["tracking=none", "model.hidden=[4]"]).plan().layout
        for meet in (
            lambda: launcher.open(experiment, (), layout, lambda: pytest.fail("nobody has met")),
            lambda: join(experiment),
        ):
            monkeypatch.setattr(workers, "_wrapping", [])
            with pytest.raises(error, match=f"{said}.*[^.]" + r"\. If no launcher .*unset RANK, WORLD_SIZE") as caught:
                meet()
            assert not isinstance(caught.value, HangError) or caught.value.missing == [1]


class Words:
    """A run's board as one of two processes sees it."""

    def __init__(self, rank: int, words: dict[str, "Future[str]"]) -> None:
        self.rank, self._words = rank, words

    def post(self, key: str, value: str) -> None:
        self._words[key].set_result(value)

    def read(self, key: str, writer: int) -> str:
        return self._words[key].result(10)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (("seed=1",), "seed=1: worker 1 has this, and worker 0 0. Start all processes with the same configuration"),
        (("optimizer.lr=0.5",), "optimizer.lr=0.5: worker 1 has this, and worker 0 0.02. Start all"),
        (("optimizer=adam",), "optimizer=adam: worker 1 has this, and worker 0 sgd. Start all"),
        (("hardware.threads=1", "hardware.timeout=3"), ""),
    ],
)
def test_processes_with_different_configurations_are_refused_by_all(other: tuple[str, ...], says: str) -> None:
    words = {key: Future[str]() for key in ("configuration", "configured/0", "configured/1")}
    experiments = [compose(["tracking=none"]), compose(["tracking=none", *other])]

    def said_by(rank: int) -> str:
        try:
            check_alike(experiments[rank], cast(KeyValues, Words(rank, words)), 2)
        except ConfigError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(said_by, (0, 1))
    assert first == second and first[: len(says)] == says and bool(first) == bool(says)


def test_what_all_virtual_workers_set_up_is_kept_from_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    for name in ("disable", "collect", "freeze", "enable"):
        monkeypatch.setattr(gc, name, lambda name=name: called.append(name))
    started = kept_from_collector(2, lambda: called.append("started"))
    started()
    assert called == ["disable", "started"]
    started()
    assert called == ["disable", "started", "started", "collect", "freeze", "enable"]


@pytest.mark.parametrize("where", ["connect_env", "check_alike", "_told_of_run"])
def test_a_worker_whose_worker_0_goes_while_all_meet_says_so_in_a_line(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*_: object) -> NoReturn:
        raise StoreGoneError("the rendezvous store is gone: hung up")

    joined = SimpleNamespace(devices=["cpu"], key_values=None)
    for name in ("job_of_torchrun", "assemble", "prepare_process", "check_alike", "_told_of_run"):
        monkeypatch.setattr(torchrun, name, lambda *_: None)
    monkeypatch.setattr(torchrun, "connect_env", lambda *_: joined)
    monkeypatch.setattr(torchrun, where, lose)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    launcher = Torchrun(cast(Any, SimpleNamespace(rank=2, tells=lambda _: False)))
    given: Any = SimpleNamespace(hardware=SimpleNamespace(timeout=1.0), world_size=3, workers=3, chief=0)
    with pytest.raises(PeerLostError, match=r"^worker 2 lost worker 0: the rendezvous store is gone: hung up$") as lost:
        launcher.open(given, (), given, lambda: given)
    assert lost.value.exit_code == 4


def test_a_worker_whose_worker_0_has_gone_says_so_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(*_: object) -> NoReturn:
        raise StoreGoneError("the rendezvous store is gone: hung up")

    monkeypatch.setattr(torchrun, "work", lose)
    monkeypatch.setattr(torchrun, "what_is_saved", lambda _: "saved: step-00000046")
    comm: Any = SimpleNamespace(rank=1)
    assignment: Any = None
    with pytest.raises(PeerLostError, match=r"^worker 1 lost worker 0: the rendezvous .* up; saved: step-00000046$"):
        torchrun._ThisWorker(assignment, comm, assignment, torch.device("cpu"), None).watch()
