"""What is said to fit fits by plan's prediction, and the next larger does not."""

import os
from math import ceil
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import torch
import yaml
from annotated_types import Ge, Le
from hypothesis import given
from hypothesis import strategies as st

import paceline.conf
from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.cost.devices import DEVICES, INSIDE
from paceline.engine.base.errors import MachineError
from paceline.engine.config.compose import compose
from paceline.engine.config.experiment import Experiment, Machine
from paceline.engine.config.targets import values_of
from paceline.engine.config.typed import instead
from paceline.engine.planning.make_plan import make_plan
from paceline.engine.planning.planned import Plan
from paceline.engine.predict.device_use import device_use, device_use_of
from paceline.engine.predict.fit import Fit, boundary, capacity_of, family, need_of

CONF = Path(next(iter(paceline.conf.__path__)))
STRATEGIES = sorted(path.stem for path in (CONF / "strategy").glob("*.yaml"))
HARDWARE = sorted(path.stem for path in (CONF / "hardware").glob("*.yaml"))
MACHINES = [name for name in HARDWARE if "\nmachine:\n" in (CONF / "hardware" / f"{name}.yaml").read_text()]
GIB = 2**30
MLP = 4 * (64 * 32 + 32 + 32 * 10 + 10)  # bytes of the parameters of model.hidden=[32] on digits
# two devices of 4 GiB in a host of 32
SMALL = (
    f"hardware.machine={{devices:2,device_memory:{4 * GIB},host_memory:{32 * GIB},flops:{{float32:1e12}},"
    "host_link:1e10,link:null,price_per_hour:null}"
)


def fit(*overrides: str, strategies: tuple[str, ...] = ("data_parallel",)) -> Fit:
    return engine.find_fit(overrides, strategies)


class TestSearch:
    @given(st.integers(0, 40), st.integers(-5, 60), st.integers(1, 40))
    def test_the_boundary_is_that_of_asking_for_every_number(self, largest: int, guess: int, most: int) -> None:
        largest = min(largest, most)
        assert boundary(lambda n: n <= largest, guess, most) == largest

    def test_a_good_guess_takes_two_questions_and_a_bad_one_few(self) -> None:
        for guess, questions in ((1000, 2), (990, 12), (1, 24)):
            asked: list[int] = []
            assert boundary(lambda n, asked=asked: asked.append(n) or n <= 1000, guess, 2**20) == 1000
            assert len(asked) == len(set(asked)) <= questions

    def test_the_family_goes_through_the_table_of_gpt_3_and_grows(self) -> None:
        rows = {12: (12, 768), 24: (24, 1536), 32: (24, 2048), 64: (32, 4096), 80: (40, 5120), 192: (96, 12288)}
        for heads, (layers, width) in rows.items():
            assert family(heads) == {"n_layer": layers, "n_head": heads, "width": width}
        sizes = [knobs["n_layer"] * knobs["width"] ** 2 for knobs in map(family, range(1, 300))]
        assert sizes == sorted(set(sizes))


class TestNeed:
    def need(self, *overrides: str) -> tuple[int, int, int]:
        """(device, host, activations) in bytes."""
        plan = engine.prepare(["model.hidden=[32]", *overrides]).plan()
        need = need_of(plan, capacity_of(plan))
        return need.device, need.host, plan.peak_memory()["activations"]

    def test_a_device_holds_the_states_and_activations_or_a_copy_of_the_parameters(self) -> None:
        device, host, activations = self.need("strategy=single", SMALL)
        assert activations > MLP
        assert device == 3 * MLP + activations  # parameters, gradients, momentum
        assert host == 2 * MLP  # the model while it is set up, and its copy
        device, _, activations = self.need("strategy=single", SMALL, "batch_size=1")
        assert activations < MLP
        assert device == 4 * MLP

    def test_without_devices_all_of_it_is_in_the_hosts_memory(self) -> None:
        device, host, activations = self.need("hardware=laptop")
        assert device == 0
        assert host == 2 * (4 * MLP + activations) + MLP  # buckets too; and the chief's copy

    def test_servers_count_with_their_optimizers(self) -> None:
        _, host, activations = self.need("hardware=laptop", "sync=asp", "optimizer=adam", "batch_size=128")
        adam = 2 * MLP + 4 * 4
        # each worker has parameters, gradients and what it sends from; the server the optimizer, too
        assert host == 2 * (3 * MLP + activations) + MLP + 3 * MLP + adam

    def test_workers_fill_one_host_after_the_other(self) -> None:
        one = self.need("hardware.workers=2", SMALL)
        assert self.need("hardware.workers=4", SMALL)[1] == one[1]
        virtual = ("hardware=virtual", SMALL, "hardware.workers=4")
        assert self.need(*virtual, "hardware.workers_per_host=2")[1] == 3 * MLP
        assert self.need(*virtual)[1] == 2 * MLP

    def test_a_host_builds_a_large_model_once_and_has_each_worker_s_part_beside_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        apart = self.need("hardware.workers=2", SMALL)[1]
        assert apart == 2 * MLP + MLP  # each builds its own, and the chief has its copy to evaluate
        monkeypatch.setattr("paceline.engine.predict.fit.BUILT_ONCE", MLP)
        assert self.need("hardware.workers=2", SMALL)[1] == MLP + 2 * MLP + MLP
        sharded = ("strategy=torch_fsdp", "hardware.workers=2", SMALL)
        plan = engine.prepare(["model.hidden=[32]", *sharded]).plan()
        assert self.need(*sharded)[1] == MLP + 2 * plan.parts[0].memory["parameters"] + MLP < 3.2 * MLP

    def test_a_worker_with_a_share_of_the_parameters_steps_its_share_and_the_chief_fetches_the_largest_tensor(
        self,
    ) -> None:
        wide = ["strategy=torch_fsdp", SMALL, "hardware.workers=2", "batch_size=1", "model.hidden=[512,512]"]
        plan = engine.prepare(wide).plan()
        need, kinds = need_of(plan, capacity_of(plan)), plan.peak_memory()
        states, largest = sum(kinds.values()) - kinds["activations"], 4 * 512 * 512
        assert kinds["activations"] < kinds["parameters"] < largest < 4 * sum(part.own for part in plan.parts)
        assert largest <= need.device - states < 1.1 * largest

    def test_a_reserve_is_kept_back_of_each_device_and_for_each_process_of_the_host(self) -> None:
        plan = engine.prepare([SMALL]).plan()
        capacity = capacity_of(plan)
        assert capacity.device == int(4 * GIB * 0.95) - GIB
        assert capacity.host == int(32 * GIB * 0.95) - 2 * GIB

    def test_a_device_s_use_has_what_is_kept_back_and_a_margin_of_published_runs(self) -> None:
        use = device_use_of(engine.prepare([SMALL]).plan())
        need = need_of(plan := engine.prepare([SMALL]).plan(), capacity_of(plan)).device
        assert use is not None and use.published is not None
        assert use.held == ceil((need + GIB) / 0.95) and use.device_memory == 4 * GIB
        assert use.range == (int(use.published.low * use.held), int(use.published.high * use.held))
        assert use.fits and use.beyond_margin < 0
        most = int(4 * GIB * 0.95) - GIB  # of a device: what it can just hold
        tight = device_use(most, 4 * GIB, "PyTorch")
        assert tight.fits and tight.beyond_margin == pytest.approx(0.12 * 4 * GIB, rel=1e-6)
        assert device_use(most, 4 * GIB, "unknown").beyond_margin == 0
        assert not device_use(most + 10, 4 * GIB, "PyTorch").fits
        assert device_use_of(engine.prepare(["hardware.device=cpu"]).plan()) is None

    def test_this_machines_memory_is_read_off(self) -> None:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        assert capacity_of(engine.prepare(["hardware.device=cpu"]).plan()).machine.host_memory == pages


class TestFit:
    def test_the_largest_batch_fits_and_one_more_sample_does_not(self) -> None:
        base = ["strategy=single", SMALL, "model.hidden=[2048]"]
        found = fit(*base, strategies=())
        plans = [engine.prepare([*base, f"batch_size={found.batch_size + more}"]).plan() for more in (0, 1)]
        held = [sum(plan.peak_memory().values()) for plan in plans]
        limit = int(4 * GIB * 0.95) - GIB
        assert found.batch_size > 100_000 and held[0] <= limit < held[1]

    def test_the_largest_batch_takes_few_plans_also_where_small_ones_hide_behind_the_copy_of_the_parameters(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: set[int] = set()

        def counted(experiment: Experiment, *more: Any) -> Plan:
            asked.add(experiment.batch_size)
            return make_plan(experiment, *more)

        monkeypatch.setattr("paceline.engine.predict.fit.make_plan", counted)
        found = fit("strategy=single", SMALL, "model.hidden=[8192,8192]", strategies=())
        small = engine.prepare(["strategy=single", SMALL, "model.hidden=[8192,8192]", "batch_size=128"]).plan()
        assert small.peak_memory()["activations"] < small.peak_memory()["parameters"]
        assert found.batch_size > 1000 and len(asked) < 12

    @pytest.mark.parametrize(
        "how",
        [
            ("strategy=pipeline",),
            ("strategy=single",),
            ("optimizer=adam",),
        ],
        ids=lambda how: how[0],
    )
    @pytest.mark.slow
    def test_the_largest_gpt_fits_and_the_next_of_the_family_does_not(self, how: tuple[str, ...]) -> None:
        found = fit(*how, SMALL, "batch_size=4", strategies=())
        typed = found.overrides.split()
        plan = engine.prepare(typed).plan()
        assert sum(part.parameters for part in plan.parts) == found.parameters > 50e6
        heads = next(int(text.partition("=")[2]) for text in typed if text.startswith("model.n_head="))
        larger = engine.prepare([*typed, *(f"model.{k}={v}" for k, v in family(heads + 1).items())]).plan()
        limits = capacity_of(plan)
        assert limits.device is not None
        assert need_of(plan, limits).device <= limits.device < need_of(larger, limits).device
        assert found.next_model is not None and found.next_model.need == need_of(larger, limits)
        assert "too much for a device" in found.next_model.why

    def test_the_chosen_gpts_other_knobs_are_kept(self) -> None:
        asked = ("model.vocabulary=1000", "data.context=16", "model.n_kv_head=4")
        found = fit("model=gpt", "data=text", *asked, SMALL, strategies=())
        assert found.model is not None and found.model.plan is not None
        knobs = found.model.plan.experiment.model.knobs
        assert knobs["vocabulary"] == 1000 and found.model.plan.experiment.data.knobs["context"] == 16
        assert knobs["n_kv_head"] == 4 and knobs["n_head"] % 4 == 0
        assert found.next_model is not None and "too much for a device" in found.next_model.why

    def test_the_ratio_of_the_feed_forward_layer_to_the_width_is_kept(self) -> None:
        small = ("model.vocabulary=1000", "data.context=16", "model.width=128", "model.ffn_width=448")
        found = fit("model=gpt", "data=text", *small, SMALL, strategies=())
        assert found.model is not None and found.model.plan is not None
        knobs = found.model.plan.experiment.model.knobs
        assert knobs["width"] > 128 and knobs["ffn_width"] == 3.5 * knobs["width"]
        assert f"model.ffn_width={knobs['ffn_width']}" in found.overrides

    @pytest.mark.slow
    def test_what_does_not_fit_is_said_with_by_how_much(self) -> None:
        found = fit("model=gpt_1b", "data=text", SMALL)
        assert not found.chosen.fits and found.batch_size == 0
        assert found.chosen.plan is not None and found.chosen.need is not None
        over = (found.chosen.need.device - (int(4 * GIB * 0.95) - GIB)) / GIB
        assert f"{over:.2f} GiB too much for a device" in found.chosen.why

    @pytest.mark.slow
    def test_batch_and_strategies_are_of_the_gpt_where_no_model_is_named(self) -> None:
        found = fit(SMALL, "batch_size=4", strategies=("single",))
        assert found.model is not None and found.chosen.plan is not None
        assert found.chosen.plan.experiment.model.name == "gpt" and found.chosen.fits and found.batch_size >= 4
        for row in (found.chosen, *found.strategies):
            assert row.plan is not None
            assert sum(part.parameters for part in row.plan.parts) == found.parameters
        named = fit(SMALL, "model.hidden=[32]", strategies=("single",))
        assert named.chosen.plan is not None and named.chosen.plan.experiment.model.name == "mlp"

    def test_nothing_fits_a_machine_without_room(self) -> None:
        tiny = SMALL.replace(f"{4 * GIB}", "1000")
        found = fit(tiny, strategies=())
        assert (found.model, found.batch_size, found.parameters) == (None, 0, 0)

    @pytest.mark.slow
    def test_every_strategy_is_tried_with_each_value_of_the_knobs_that_place_things(self) -> None:
        found = fit("model.hidden=[32]", SMALL, strategies=tuple(STRATEGIES))
        rows = {row.strategy for row in found.strategies}
        assert len(rows) == len(found.strategies)
        assert {row.split()[0] for row in rows} == set(STRATEGIES)
        assert {"pipeline strategy.recompute=false", "pipeline strategy.recompute=true"} <= rows

    @pytest.mark.slow
    def test_a_strategy_that_is_refused_says_why_once(self) -> None:
        found = fit("sync=asp", SMALL, strategies=("torch_ddp", "pipeline"))
        (refused,) = (row for row in found.strategies if row.plan is None)
        assert refused.strategy == "torch_ddp" and "owns its update" in refused.why and not refused.fits

    @pytest.mark.slow
    def test_hosts_of_unknown_size_are_refused_with_what_to_write(self) -> None:
        with pytest.raises(ConfigError, match=r"hardware\.machine=null: .* hardware=h200") as caught:
            fit("hardware=virtual")
        assert caught.value.exit_code == 2
        assert fit("hardware=virtual", SMALL, "hardware.workers=2", strategies=()).chosen.fits


class Knobs:
    def __init__(
        self,
        stage: Literal[1, 2, 3] = 1,
        recompute: bool = False,
        degree: Annotated[int, Ge(1), Le(4)] = 1,
        micro_batches: Annotated[int, Ge(1)] = 4,
        huge: Annotated[int, Ge(1), Le(4096)] = 1,
    ) -> None: ...


@pytest.mark.parametrize(
    ("knob", "values"),
    [
        ("stage", [1, 2, 3]),
        ("recompute", [False, True]),
        ("degree", [1, 2, 3, 4]),
        ("micro_batches", []),
        ("huge", []),
        ("none", []),
    ],
)
def test_the_values_of_a_knob_are_those_of_its_type(knob: str, values: list[object]) -> None:
    assert values_of(Knobs, knob) == values


def test_another_choice_takes_the_former_ones_knobs_along() -> None:
    given = ["strategy=pipeline", "strategy.stages=3", "+strategy.x=1", "~strategy.y", "sync=asp", "seed=1"]
    assert instead(given, {"strategy": "single"}) == ["sync=asp", "seed=1", "strategy=single"]


class TestMachines:
    @pytest.mark.parametrize("name", MACHINES)
    def test_every_number_of_a_machine_has_its_source_beside_it(self, name: str) -> None:
        text = (CONF / "hardware" / f"{name}.yaml").read_text()
        machine = text.partition("\nmachine:\n")[2].splitlines()
        for line in machine:
            value, _, comment = line.partition("  #")
            number = yaml.safe_load(value.strip().partition(": ")[2])
            assert not number or "devices:" in value or len(comment) > 15, line
        price = next(line for line in machine if "price_per_hour" in line)
        assert "list price" in price or "null" in price

    @pytest.mark.parametrize("name", MACHINES)
    def test_a_machine_of_several_is_as_the_one_of_its_kind(self, name: str) -> None:
        kind, _, number = name.rpartition("_")
        machine = compose([f"hardware={name}"]).hardware.machine
        assert machine is not None
        if kind in MACHINES and number.isdigit():
            assert machine.devices == int(number)
            one = compose([f"hardware={kind}"]).hardware.machine
            assert one is not None and (one.devices, one.accelerator) == (1, machine.accelerator)
            assert (one.device_memory, one.flops, one.host_link) == (
                machine.device_memory,
                machine.flops,
                machine.host_link,
            )
        if machine.accelerator is not None:
            device = DEVICES[machine.accelerator]
            shares = [rate / device.peak[dtype] for dtype, rate in machine.flops.items()]
            assert all(0.2 < share < 0.8 for share in shares), shares
            if machine.link is not None:
                assert machine.link.bandwidth == pytest.approx(INSIDE[device.name].bandwidth, rel=0.15)

    @pytest.mark.parametrize("name", ["tpu_v5e", "tpu_v5p_4", "tpu_v6e_8"])
    def test_a_tpu_is_for_predictions_and_not_for_training(self, name: str, tmp_path: Path) -> None:
        prepared = engine.prepare([f"hardware={name}", "model=gpt", "data=text", "precision=bf16"])
        assert prepared.step_time(prepared.plan()).seconds > 0
        with pytest.raises(ConfigError, match=r"accelerator=TPU v..: paceline does not train on it\. Choose hardware="):
            engine.run(["tracking=none", f"hardware={name}"], root=tmp_path / "runs", quiet=True)
        assert not (tmp_path / "runs").exists()

    @pytest.mark.parametrize("name", MACHINES)
    def test_a_machine_runs_one_worker_a_device(self, name: str) -> None:
        hardware = compose([f"hardware={name}"]).hardware
        assert hardware.machine is not None
        plan = engine.prepare([f"hardware={name}"]).plan()
        assert plan.layout.workers == (hardware.machine.devices or 2)
        assert plan.device.type == ("cuda" if hardware.machine.devices else "cpu")

    def test_devices_and_their_memory_come_together(self) -> None:
        with pytest.raises(ConfigError, match="devices=2 with device_memory=0"):
            engine.prepare([SMALL.replace(str(4 * GIB), "0")])
        with pytest.raises(ConfigError, match=r"hardware\.machine\.host_memory=0: must be greater"):
            engine.prepare(["hardware=h200", "hardware.machine.host_memory=0"])

    def test_the_links_of_a_machine_are_those_of_the_network_group(self) -> None:
        nvlink = yaml.safe_load((CONF / "hardware" / "network" / "nvlink.yaml").read_text())
        machine = compose(["hardware=a100_8"]).hardware.machine
        assert isinstance(machine, Machine) and machine.link is not None
        assert machine.link.model_dump() | {"upload": None} == nvlink

    def test_a_run_needs_the_machine_that_it_describes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refused(kind: type[Exception], *overrides: str) -> str:
            with pytest.raises(kind) as caught:
                engine.run(["tracking=none", *overrides], root=tmp_path / "runs", quiet=True)
            assert not (tmp_path / "runs").exists()
            return str(caught.value)

        monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
        assert "this host has none; hardware=local takes this machine" in refused(MachineError, "hardware=h200")
        assert "2 workers on one host" in refused(ConfigError, "hardware=h200", "hardware.workers=2")

        class Card:
            total_memory = 80 * GIB

        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Card())
        assert "of 139.7 GiB, and this host has 1 of 80.0 GiB" in refused(MachineError, "hardware=h200")
