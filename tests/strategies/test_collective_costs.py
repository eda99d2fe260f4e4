"""What collectives state of themselves: bytes, messages and time, held against the virtual cluster's ledger and clock;
and what is chosen by it.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.comm.network import Network, NetworkLink
from paceline.comm.virtual import SimulatedCluster
from paceline.conf.errors import ConfigError
from paceline.engine import prepare, run
from paceline.exchange.collectives import (
    Auto,
    Collective,
    Fabric,
    HalvingDoubling,
    Hierarchical,
    RecursiveDoubling,
    Ring,
    Star,
    Tree,
)
from paceline.exchange.collectives.base import Load, phase, seconds
from paceline.strategies.core.cost import World

pytestmark = pytest.mark.dist
FLAT = [Fabric, Ring, RecursiveDoubling, HalvingDoubling, Tree, Star]
SLOW, FAST = NetworkLink(latency=1e-3, bandwidth=1e6), NetworkLink(latency=1e-5, bandwidth=1e8)
WITHOUT_LATENCY, WITHOUT_BYTES = NetworkLink(0.0, 1e6), NetworkLink(1e-3, 1e15)
FEW = [2, 3, 4, 6, 7, 8]
SIZES = [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in range(2, 65)]


def summed(collective: Collective, hosts: tuple[int, ...], network: Network) -> dict[str, Any]:
    """One sum of chunks that are even: what it took, what left a worker on average, and what is stated of both."""
    n = len(hosts)
    entries = 2 * n

    def one(comm: Any) -> tuple[float, float, int, bool]:
        tensor = torch.full((entries,), float(comm.rank))
        collective.all_reduce(tensor, comm).wait()
        right = torch.equal(tensor, torch.full((entries,), n * (n - 1) / 2))
        ledger = comm.ledger
        return comm.now(), float(sum(ledger.bytes.values())), sum(ledger.messages.values()), right

    ends, sent, messages, right = zip(*SimulatedCluster(n, network).run(one), strict=True)
    assert all(right)
    world, nbytes = World(n, hosts=hosts), 4 * entries
    return {
        "took": (max(ends), seconds(collective.phases(nbytes, world), network)),
        "sent": (sum(sent) / n, sum(collective.traffic(nbytes, world).values())),
        "messages": (sum(messages) / n, collective.messages(nbytes, world)),
    }


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("algorithm", FLAT)
def test_on_a_quiet_network_a_sum_takes_and_sends_what_is_stated(algorithm, n):
    for measured, stated in summed(algorithm(), tuple(range(n)), Network(SLOW, SLOW)).values():
        assert measured == pytest.approx(stated, rel=1e-9)


@pytest.mark.parametrize(
    "link", [WITHOUT_LATENCY, WITHOUT_BYTES, NetworkLink(1.0, 1e3)], ids=["bytes", "latency", "much"]
)
@pytest.mark.parametrize("n", [3, 8])
@pytest.mark.parametrize("algorithm", FLAT)
def test_so_it_is_where_either_is_all_that_counts(algorithm, n, link):
    for measured, stated in summed(algorithm(), tuple(range(n)), Network(link, link)).values():
        assert measured == pytest.approx(stated, rel=1e-9)


@pytest.mark.parametrize("algorithm", FLAT)
def test_so_it_is_inside_of_one_host(algorithm):
    for measured, stated in summed(algorithm(), (0,) * 6, Network(SLOW, FAST, workers_per_host=6)).values():
        assert measured == pytest.approx(stated, rel=1e-9)


@pytest.mark.parametrize("each", [2, 3, 4])
@pytest.mark.parametrize("hosts", [2, 3, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("algorithm", [Hierarchical, Fabric, Star])
def test_over_hosts_with_as_many_workers_a_sum_takes_and_sends_what_is_stated(algorithm, hosts, each):
    network = Network(between=SLOW, inside=FAST, workers_per_host=each)
    places = tuple(rank // each for rank in range(hosts * each))
    for measured, stated in summed(algorithm(), places, network).values():
        assert measured == pytest.approx(stated, rel=1e-9)


@pytest.mark.parametrize("algorithm", FLAT)
def test_so_it_is_where_links_are_slower_up_than_down(algorithm):
    home = NetworkLink(latency=1e-3, bandwidth=1e6, upload=2e5)
    for measured, stated in summed(algorithm(), tuple(range(6)), Network(home, home)).values():
        assert measured == pytest.approx(stated, rel=1e-9)


def test_a_phase_backwards_loads_links_the_other_way():
    gather = phase("gather", 8.0, [(1, 0), (2, 0)], World(3, hosts=(0, 0, 1)))
    assert (gather.of_workers, gather.of_hosts) == (Load(out=1, into=2), Load(out=1, into=1))
    assert gather.backwards("broadcast").of_workers == Load(out=2, into=1)


WAN = NetworkLink(latency=0.1, bandwidth=1e5, upload=5e4)


@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize("algorithm", [Fabric, Star])
def test_so_it_is_between_two_regions_of_two_hosts(algorithm, each):
    network = Network(SLOW, FAST, workers_per_host=each, hosts_per_rack=2, uplink=WAN)
    places = tuple(rank // each for rank in range(4 * each))
    for measured, stated in summed(algorithm(), places, network).values():
        assert measured == pytest.approx(stated, rel=1e-9)


def test_a_ring_of_messages_between_regions_takes_no_longer_than_is_stated():
    """A chunk waits for the link between the regions in every other step, and the statement has it in all."""
    network = Network(SLOW, FAST, hosts_per_rack=2, uplink=WAN)
    took, stated = summed(Ring(), (0, 1, 2, 3), network)["took"]
    assert stated / 2 < took < stated
    assert stated == pytest.approx(6 * (WAN.latency + 8 / 5e4))


@pytest.mark.parametrize("n", [5, 7])
def test_hosts_may_have_different_numbers_of_workers(n):
    network = Network(between=SLOW, inside=FAST, workers_per_host=4)
    found = summed(Hierarchical(), tuple(rank // 4 for rank in range(n)), network)
    assert found["took"][0] == pytest.approx(found["took"][1], rel=0.05)  # hosts that are early share links
    assert found["sent"][0] == pytest.approx(found["sent"][1]) and found["messages"][0] == found["messages"][1]


@pytest.mark.parametrize(
    ("algorithm", "alphas", "betas"),
    [
        (Ring, 62, 2 * 31 / 32),
        (Fabric, 62, 2 * 31 / 32),
        (RecursiveDoubling, 5, 5),
        (HalvingDoubling, 10, 2 * 31 / 32),
        (Tree, 10, 10),
        (Star, 2, 62),
    ],
)
def test_the_textbook_formula_of_32_workers_is_stated(algorithm, alphas, betas):
    phases = algorithm().phases(1.0, World(32))
    assert seconds(phases, Network(NetworkLink(1.0, 1e30), NetworkLink(1.0, 1e30))) == pytest.approx(alphas)
    assert seconds(phases, Network(NetworkLink(0.0, 1.0), NetworkLink(0.0, 1.0))) == pytest.approx(betas)


@pytest.mark.parametrize("algorithm", [*FLAT, Hierarchical, Auto])
def test_one_worker_alone_sends_nothing(algorithm):
    for world in (World(1), World(1, hosts=(0,))):
        assert sum(algorithm().traffic(100.0, world).values()) == 0
        assert sum(phase.steps * phase.sharing for phase in algorithm().phases(100.0, world)) == 0


@pytest.mark.parametrize("hosts", [None, (0, 0, 0), (0, 1, 2)], ids=["unknown", "one", "one each"])
def test_without_two_levels_there_is_no_hierarchy(hosts):
    for ask in (Hierarchical().traffic, Hierarchical().messages, Hierarchical().phases):
        with pytest.raises(ConfigError, match=r"collective: .*must be several workers on several hosts"):
            ask(100.0, World(3, hosts=hosts))


# -- auto

ALPHA_COSTS, BETA_COSTS = Network(WITHOUT_BYTES, WITHOUT_BYTES), Network(WITHOUT_LATENCY, WITHOUT_LATENCY)


@pytest.mark.parametrize(
    ("network", "workers", "chosen"),
    [
        (ALPHA_COSTS, 4, "recursive_doubling"),  # 2 steps
        (ALPHA_COSTS, 8, "star"),  # 2 steps where recursive doubling takes 3
        (BETA_COSTS, 8, "fabric"),  # as few bytes as halving and doubling, and it overlaps
        (Network(SLOW, SLOW), 8, "halving_doubling"),
    ],
)
def test_auto_takes_what_takes_the_least_time(network, workers, chosen):
    auto, world = Auto(network), World(workers, hosts=tuple(range(workers)))
    assert auto.choose(4000.0, world).name == chosen
    others = auto.choose(4000.0, world).seconds
    assert others[chosen] == min(others.values()) and len(others) == 5


def test_auto_gives_up_no_overlap_for_less_than_a_hundredth_of_the_time():
    """Of two workers recursive doubling takes one step where a ring takes two: 10 us, of 50 us or of 100 ms."""
    auto, world = Auto(Network(FAST, FAST)), World(2, hosts=(0, 1))
    assert auto.choose(4000.0, world).name == "recursive_doubling"
    choice = auto.choose(1e7, world)
    assert choice.name == "fabric" and choice.seconds["fabric"] > choice.seconds["recursive_doubling"]
    assert "fabric for a sum of 10,000,000 bytes among 2 workers" in auto.explain()[1]
    assert "ms (goes on during backward) by the cost model; recursive_doubling 1" in auto.explain()[1]


def test_auto_goes_inside_of_hosts_first_where_messages_between_them_cost():
    network = Network(between=SLOW, inside=FAST, workers_per_host=3)
    auto, hosts = Auto(network), tuple(rank // 3 for rank in range(6))
    choice = auto.choose(30_000.0, World(6, hosts=hosts))
    assert choice.name == "hierarchical"
    assert "hierarchical for a sum of 30,000 bytes among 6 workers on 2 hosts: " in auto.explain()[0]


@pytest.mark.parametrize(("workers", "chosen"), [(2, "recursive_doubling"), (4, "shared_memory")])
def test_auto_compares_the_memory_of_one_host_where_workers_can_sum_in_it(workers, chosen):
    network, world = Network(between=SLOW, inside=FAST, workers_per_host=4), World(workers, hosts=(0,) * workers)
    auto = Auto(network, in_memory=True)
    choice = auto.choose(4000.0, world)
    assert choice.name == chosen
    assert choice.seconds["shared_memory"] == pytest.approx(2 * (1e-5 + (workers - 1) / workers * 4000.0 / 1e8))
    assert "shared_memory" not in Auto(network).choose(4000.0, world).seconds  # on GPUs
    assert "shared_memory" not in auto.choose(4000.0, World(4, hosts=(0, 0, 1, 1))).seconds

    def one(comm: Any) -> set[str]:
        auto.all_reduce(torch.ones(1000), comm).wait()
        return {*comm.ledger.bytes}

    assert SimulatedCluster(workers, network).run(one) == [{*auto.traffic(4000.0, world)}] * workers


def test_what_auto_chose_for_a_plan_is_what_workers_choose():
    network, hosts, found = Network(SLOW, SLOW), tuple(range(5)), []
    for entries in (10, 10_000):
        auto = Auto(network)
        stated = auto.traffic(4 * entries, World(5, 7, hosts))  # the number of steps makes no difference

        def one(comm: Any, auto: Auto = auto, entries: int = entries) -> dict[str, float]:
            auto.all_reduce(torch.ones(entries), comm).wait()
            return {primitive: float(sent) for primitive, sent in comm.ledger.bytes.items()}

        sent = SimulatedCluster(5, network).run(one)
        assert {key for each in sent for key in each} == stated.keys()
        assert sum(sum(each.values()) for each in sent) / 5 == pytest.approx(sum(stated.values()))
        found += [choice.name for choice in auto._chosen.values()]
    assert found == ["recursive_doubling", "halving_doubling"]


@pytest.mark.parametrize("network", [None, Network(SLOW, SLOW)])
def test_where_nothing_is_known_of_links_or_hosts_auto_is_the_fabrics(network):
    world = World(4) if network else World(4, hosts=(0, 1, 2, 3))
    auto = Auto(network)
    assert auto.traffic(100.0, world).keys() == {"all_reduce"}
    assert "the links between them are not described" in auto.explain()[0]


TINY = ("tracking=none", "model.hidden=[16]", "data.limit=96", "collective=auto")


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("hardware=virtual", "hardware.workers=4"), "recursive_doubling for a sum of 4,840 bytes among 4 workers: "),
        (
            ("hardware.workers=4",),
            "fabric for a sum of 4,840 bytes among 4 workers on one host: the links between them are not",
        ),
        (("hardware.workers=1",), None),
        (
            ("hardware=virtual", "hardware.workers=4", "sync=bsp_naive"),
            "recursive_doubling for sums of 40 to 4,096 bytes among 4 workers: the largest takes ",
        ),
        (
            ("hardware=virtual", "hardware.workers=8", "hardware.workers_per_host=8", "model.hidden=[256]"),
            "shared_memory for a sum of 76,840 bytes among 8 workers on one host: ",
        ),
    ],
)
def test_a_plan_says_what_was_chosen_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides, says):
    monkeypatch.chdir(tmp_path)
    decided = prepare([*TINY, *overrides]).plan().decided
    assert [line.startswith(f"collective=auto: {says}") for line in decided] == ([True] if says else [])
    for line in decided:
        others = [each for each in ("fabric", "shared_memory") if each in line and not says.startswith(each)]
        assert line.count("(goes on during backward)") == (0 if says.startswith("fabric") else len(others))


def test_parts_of_a_replica_choose_by_their_own_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    tensor = ("strategy=tensor", "model.hidden=[16,16]", "hardware=virtual", "hardware.workers=4", "steps=2")
    result = run([*TINY, *tensor, "checkpoint.every=0", "batch_size=8", "hardware.workers_per_host=2"], quiet=True)
    assert result is not None
    summary = result.summary
    assert summary["wire"]["bytes_per_step"] == pytest.approx(summary["predicted"]["bytes_per_step"])
