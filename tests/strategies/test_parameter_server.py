"""The synchronous parameter server: what only it does. What it shares with others is tested in test_servers.py."""

import pytest
from oracles import Case, adam, identical, mlp
from served import UNEVEN, run

from paceline.strategies.core.state import to_bytes
from paceline.strategies.sync.parameter_server import ParameterServer

pytestmark = pytest.mark.dist


@pytest.mark.parametrize("servers", [1, 2])
def test_workers_of_a_synchronous_server_agree_after_every_update(fabric, servers):
    trained, _ = run(fabric, ParameterServer(servers=servers), Case(UNEVEN, model=mlp))
    for worker in trained[1:]:
        assert all(identical(a, b) for a, b in zip(worker["trajectory"], trained[0]["trajectory"], strict=True))


@pytest.mark.parametrize("servers", [1, 2])
def test_a_synchronous_run_goes_on_where_replica_0_saved_it(fabric, servers):
    case = Case([[2, 2]] * 5, model=mlp, optimizer=adam)
    sync = ParameterServer(servers=servers)
    half, _ = run(fabric, sync, Case(case.sizes[:2], model=mlp, optimizer=adam))
    assert half[1]["state"] == {}
    state = [to_bytes({"weights": half[0]["weights"], "sync": half[0]["state"]})]
    resumed, _ = run(fabric, sync, case, state, start=2)
    straight, _ = run(fabric, sync, case)
    assert all(identical(a["weights"], b["weights"]) for a, b in zip(resumed, straight, strict=True))
