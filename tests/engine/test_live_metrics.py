"""How far workers are: what they tell equals what is counted, and the launcher writes it down."""

import json
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline import engine
from paceline.comm.rendezvous import serve_store
from paceline.comm.store import StoreClient
from paceline.comm.virtual import SimulatedCluster, VirtualComm
from paceline.engine.fabrics.layout import Role, RunLayout
from paceline.engine.training.live_metrics import EVERY, WORKERS_A_SECOND, LiveRecord, Teller, live_metrics_of
from paceline.engine.training.meters import Meter
from paceline.strategies.core.mesh import Mesh
from paceline.testing.fabrics import NETWORK
from paceline.tracking.live import NAME, read_live

TWO = RunLayout(Mesh({"replica": 2}), servers=0, loss_part=0)


def trained(cluster: SimulatedCluster) -> list[tuple[Meter, int]]:
    """Two steps of two workers, of which the second computes for longer; each with its bytes."""

    def work(comm: VirtualComm) -> tuple[Meter, int]:
        meter = Meter(comm, 0, False)
        comm.key_values.live_metrics = live_metrics_of(Role("worker", comm.rank, 0), comm, meter)
        for _ in range(2):
            with meter.step(4):
                comm.elapse(1.0 + comm.rank)
                comm.all_reduce(torch.ones(256)).wait()
        return meter, sum(comm.ledger.snapshot().values())

    return cluster.run(work)


def test_a_step_without_samples_takes_time_only_where_something_is_exchanged_in_it() -> None:
    """On processes it takes what Python does, and on a modelled clock nothing: step times are alike on both."""

    def work(comm: VirtualComm) -> list[float]:
        meter = Meter(comm, 0, False)
        for samples, exchanges in ((4, True), (0, False), (0, True), (4, False)):
            with meter.step(samples):
                comm.elapse(1.0)
                if exchanges:
                    comm.all_reduce(torch.ones(256)).wait()
        return [end - start for start, end, _ in meter.steps]

    for first, idle, exchanging, last in SimulatedCluster(2, NETWORK).run(work):
        assert first > 1.0 and exchanging > 1.0 and last == pytest.approx(1.0)
        assert idle == 0.0


def test_gauges_are_steps_bytes_and_the_time_in_steps_that_was_blocked() -> None:
    cluster = SimulatedCluster(2, NETWORK)
    made = trained(cluster)
    told = {rank: json.loads(text) for rank, text in cluster.live_metrics().items()}
    for rank, (meter, sent) in enumerate(made):
        kind, part, steps, bytes_, seconds, _, clock = told[rank]
        assert (kind, part, steps, bytes_) == ("worker", 0, 2, sent) and sent > 0
        assert seconds == pytest.approx(sum(end - start for start, end, _ in meter.steps)) and clock >= seconds
    assert told[0][5] == pytest.approx(2.0, abs=0.01) and told[1][5] < 0.01  # the faster one waits a second a step


def test_what_a_cluster_tells_reaches_live_json_through_the_store(tmp_path: Path) -> None:
    cluster = SimulatedCluster(2, NETWORK)
    made = trained(cluster)
    with closing(serve_store(0)) as store:
        teller, live = Teller(store.endpoint, cluster.live_metrics), LiveRecord(tmp_path, TWO, store.read)
        with closing(StoreClient(store.endpoint, 0, 20.0)) as client:
            client.wait(["gauges/0", "gauges/1"])
            client.set("beat/1", json.dumps([3, "saving", None]))
        live.look()
        found = read_live(tmp_path)
        teller.close()
        live.close()
    assert [(each.rank, each.steps, each.sent, each.doing) for each in found] == [
        (0, 2, made[0][1], ""),
        (1, 2, made[1][1], "saving"),
    ]
    assert not (tmp_path / NAME).exists()


def test_many_workers_of_a_process_are_told_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that they do waits while they are told."""
    waited: list[float] = []
    really, here = threading.Event.wait, threading.current_thread()

    def wait(self: threading.Event, seconds: float | None = None) -> bool:
        if threading.current_thread() is not here or seconds is None:
            return really(self, seconds)
        waited.append(seconds)
        return len(waited) == 3

    with closing(serve_store(0)) as store:
        told = {rank: "[]" for rank in range(4 * WORKERS_A_SECOND)}
        teller = Teller(store.endpoint, lambda: told)
        teller.close()
        monkeypatch.setattr(threading.Event, "wait", wait)
        teller.run()
    assert waited == [EVERY, 4 * EVERY, 4 * EVERY]


def test_a_worker_whose_heartbeat_stands_still_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("paceline.engine.training.live_metrics.time.monotonic", lambda: now[0])
    store = {"gauges/0": b'["worker", 0, 1, 2, 3.0, 1.0, 4.0]', "beat/0": b'[1, "computing", 1]'}
    live = LiveRecord(tmp_path, TWO, lambda keys: [store.get(key) for key in keys])
    silent: list[float] = []
    for later, beat in ((0.0, 1), (2.0, 1), (1.5, 1), (1.0, 2)):
        now[0] += later
        store["beat/0"] = json.dumps([beat, "computing", 1]).encode()
        live.look()
        silent += [each.silent for each in read_live(tmp_path)]
    live.close()
    assert silent == [0.0, 2.0, 3.5, 0.0]


@pytest.mark.dist
@pytest.mark.slow
def test_a_real_runs_workers_are_in_live_json_while_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fork_server: None
) -> None:
    looks: list[Any] = []
    look = LiveRecord.look

    def spy(self: LiveRecord) -> None:
        look(self)
        looks.append(read_live(self._directory))

    monkeypatch.setattr(LiveRecord, "look", spy)
    overrides = ["tracking=none", "sync=asp", "hardware.workers=2", "stragglers=one_slow"]
    result = engine.run([*overrides, "steps=1500", "evaluate.every=999"], root=tmp_path, quiet=True)
    assert result is not None and not (result.path / NAME).exists()
    last = max(looks, key=len)
    assert [each.kind for each in last] == ["worker", "worker", "server"]
    assert all(0 < each.steps <= 1500 and 0 < each.blocked < each.seconds for each in last[:2])
    assert 0 < sum(each.sent for each in last) <= result.summary["wire"]["total"]
