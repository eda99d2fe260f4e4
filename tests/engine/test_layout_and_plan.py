"""Who does what, and what it is predicted to cost, before anything runs."""

from pathlib import Path

import pytest
import torch

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.engine.fabrics.layout import Role, RunLayout
from paceline.strategies.core.mesh import Mesh
from paceline.strategies.sync.bsp import BSP
from paceline.tasks.errors import MissingDataError

MLP = 64 * 32 + 32 + 32 * 10 + 10  # parameters of model.hidden=[32] on digits


def layout(*overrides: str) -> RunLayout:
    return engine.prepare(overrides).plan().layout


class TestLayout:
    @pytest.mark.parametrize(
        ("overrides", "workers", "replicas", "servers"),
        [
            ((), 2, 2, 0),
            (("strategy=single",), 1, 1, 0),
            (("strategy=pipeline", "strategy.stages=3"), 3, 1, 0),
            (("sync=asp",), 2, 2, 1),
            (("strategy=pipeline", "hardware.workers=4", "sync=asp"), 4, 2, 1),
            (("hardware.workers=7",), 7, 7, 0),
        ],
    )
    def test_workers_are_replicas_of_parts_and_servers_come_on_top(
        self, overrides: tuple[str, ...], workers: int, replicas: int, servers: int
    ) -> None:
        found = layout(*overrides)
        assert (found.workers, found.replicas, found.servers) == (workers, replicas, servers)
        assert found.world_size == workers + servers * found.parts

    def test_every_rank_has_a_role_of_its_own(self) -> None:
        found = RunLayout(Mesh({"replica": 2, "stage": 3}), servers=1, loss_part=2)
        roles = [found.role(rank) for rank in range(found.world_size)]
        places = [(replica, part) for replica in range(2) for part in range(3)]
        assert [(role.kind, role.replica, role.part) for role in roles[:6]] == [("worker", *place) for place in places]
        assert [str(role) for role in roles[:6]] == [f"worker (replica {i}, stage {j})" for i, j in places]
        assert roles[6:] == [Role("server", 0, part) for part in range(3)]
        assert roles[found.chief] == roles[2]

    @pytest.mark.parametrize(
        ("overrides", "words"),
        [
            (("strategy=pipeline", "hardware.workers=3"), "must be a multiple of 2, for instance 2 or 4"),
            (("strategy=pipeline", "hardware.workers=1"), "must be a multiple of 2, for instance 2"),
            (("strategy=single", "hardware.workers=2"), "takes at most 1; strategy=data_parallel takes any number"),
        ],
    )
    def test_a_number_of_workers_that_does_not_fit_is_refused_with_one_that_does(
        self, overrides: tuple[str, ...], words: str
    ) -> None:
        with pytest.raises(ConfigError, match=words):
            layout(*overrides)

    def test_processes_that_were_started_for_us_are_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in {"RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "WORLD_SIZE": "4"}.items():
            monkeypatch.setenv(name, value)
        assert (layout().workers, layout("sync=asp").workers) == (4, 3)
        said = "4 processes were started, which with 1 servers leaves 3 workers. Start 5, or choose hardware.workers=3"
        with pytest.raises(ConfigError, match=said):
            layout("sync=asp", "hardware.workers=4")
        monkeypatch.setenv("WORLD_SIZE", "1")
        with pytest.raises(ConfigError, match=r"^sync=asp: 1 .* leaves 0 workers. Start 2 or more"):
            layout("sync=asp")

    def test_processes_of_a_scheduler_are_counted(self) -> None:
        slurm = ("launcher=slurm", "launcher.nodes=2", "launcher.workers_per_node=2")
        with pytest.raises(ConfigError, match=r"4 processes, of which 1 are servers. Choose hardware.workers=3.$"):
            layout("sync=asp", "hardware.workers=4", *slurm)
        with pytest.raises(ConfigError, match=r"Choose more launcher.nodes"):
            layout("sync=asp", *slurm[:1], "launcher.workers_per_node=1")

    def test_servers_need_code_for_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(BSP, "servers", 1)
        with pytest.raises(ConfigError, match=r"sync=bsp: has 1 servers, .* Derive it from SyncWithServers"):
            layout()

    def test_a_model_that_cannot_be_cut_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"strategy\.stages=40: the model has \d+ layers") as caught:
            layout("strategy=pipeline", "strategy.stages=40")
        assert caught.value.exit_code == 2


class TestPlan:
    def test_it_needs_no_data(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("paceline.tasks.data.fashion_mnist.SYSTEM_FOLDER", tmp_path / "none")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        prepared = engine.prepare(["data=fashion_mnist"])
        assert prepared.plan().parts[0].parameters > 0
        assert "data=fashion_mnist: not on this machine, where a run needs them. Either" in (prepared.absent() or "")
        assert engine.prepare([]).absent() is None

    @pytest.mark.parametrize(
        "chosen",
        [
            ["data=fashion_mnist", "data.root=nowhere"],
            ["data=text", "model=gpt", "data.path=nowhere"],
            ["data=svmlight", "model=sparse_logistic_regression", "optimizer.momentum=0", "data.path=nowhere"],
        ],
        ids=lambda chosen: chosen[0],
    )
    def test_files_that_the_user_names_have_to_be_there(self, chosen: list[str]) -> None:
        with pytest.raises(MissingDataError, match="nowhere"):
            engine.prepare(chosen).plan()

    def test_sizes_that_are_not_known_before_leave_the_steps_open(self, tmp_path: Path) -> None:
        (tmp_path / "samples.svm").write_text("1 1:0.5\n")
        chosen = ["data=svmlight", "model=sparse_logistic_regression", "optimizer.momentum=0"]
        plan = engine.prepare([*chosen, f"data.path={tmp_path / 'samples.svm'}"]).plan()
        assert plan.steps is None and plan.steps_per_epoch is None

    def test_steps_are_the_epochs_or_fewer(self) -> None:
        assert engine.prepare(["data.limit=100", "batch_size=8", "epochs=3"]).plan().steps == 3 * 7
        assert engine.prepare(["data.limit=100", "batch_size=8", "epochs=3", "steps=5"]).plan().steps == 5

    @pytest.mark.parametrize(
        ("optimizer", "state"),
        [("optimizer=sgd", 4 * MLP), ("optimizer.momentum=0", 0), ("optimizer=adam", 2 * 4 * MLP + 4 * 4)],
    )
    def test_memory_by_kind_is_counted_in_bytes(self, optimizer: str, state: int) -> None:
        memory = engine.prepare(["model.hidden=[32]", optimizer]).plan().peak_memory()
        assert memory["parameters"] == memory["gradients"] == memory["buffers"] == 4 * MLP
        assert memory["optimizer"] == state

    def test_bytes_on_the_wire_follow_the_stated_costs(self) -> None:
        small = "model.hidden=[32]"
        assert engine.prepare([small, "strategy=single"]).plan().bytes_per_step() == 0
        ring = 2 * 3 / 4 * 4 * MLP
        assert engine.prepare([small, "hardware.workers=4"]).plan().bytes_per_step() == ring
        # a gradient and two requests up, the weights down
        assert engine.prepare([small, "sync=asp"]).plan().bytes_per_step() == 2 * 4 * MLP + 2 * 8

    def test_a_pipelines_parts_hold_every_layer_once(self) -> None:
        plan = engine.prepare(["strategy=pipeline", "strategy.stages=3"]).plan()
        whole = engine.prepare(["strategy=single"]).plan()
        assert [layer for part in plan.parts for layer in part.layers] == whole.parts[0].layers
        assert sum(part.parameters for part in plan.parts) == whole.parts[0].parameters

    def test_cuda_is_refused_where_there_are_too_few_devices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        with pytest.raises(ConfigError, match="This host has 2 workers, which need a GPU each, and it has 1"):
            engine.prepare(["hardware.device=cuda"]).plan()
        assert engine.prepare([]).plan().device.type == "cpu"

    def test_threads_share_the_cores_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
        assert engine.prepare(["hardware.workers=3"]).plan().threads == 2
        assert engine.prepare(["hardware.workers=9"]).plan().threads == 1
        assert engine.prepare(["hardware.threads=5"]).plan().threads == 5

    @pytest.mark.parametrize("optimizer", ["sgd", "adam"])
    def test_fused_kernels_are_planned_like_the_others(self, optimizer: str) -> None:
        fused = engine.prepare([f"optimizer={optimizer}", "++optimizer.fused=true"]).plan()
        assert (
            fused.peak_memory()
            == engine.prepare([f"optimizer={optimizer}", "++optimizer.fused=null"]).plan().peak_memory()
        )

    @pytest.mark.parametrize("optimizer", ["LBFGS", "SparseAdam"])
    def test_an_optimizer_that_cannot_step_on_dense_gradients_is_refused(self, optimizer: str) -> None:
        with pytest.raises(ConfigError, match=f"optimizer: {optimizer} cannot be used here"):
            deleted = [f"~optimizer.{knob}" for knob in ("momentum", "weight_decay", "nesterov")]
            engine.prepare([f"optimizer._target_=torch.optim.{optimizer}", *deleted]).plan()

    def test_a_number_that_torch_cannot_hold_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="optimizer: SGD cannot be used here: int too big to convert"):
            engine.prepare(["optimizer.weight_decay=1047932215008709657669"]).plan()
