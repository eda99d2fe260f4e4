"""The events of every sync mode on the virtual cluster, with stragglers: who does what with whom, when, how many bytes.

The recorded digests hold events, clocks and bytes, which are the same on every machine: the factors of the stragglers
are a file's, and everything else is arithmetic without functions of a library. Weights differ by CPU, so no digest
holds them.
"""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from choices import CHOICES, overrides_for
from oracles import identical
from safetensors.torch import load_file
from torch import Tensor

from paceline.comm.virtual import SimulatedCluster
from paceline.engine.api.preparing import prepare
from paceline.engine.launch.virtual import cluster_of
from paceline.engine.launch.virtual import run as run_virtual
from paceline.engine.planning.build import assemble
from paceline.tracking.run_directory import RunDirectory

SMALL = ("tracking=none", "data.limit=96", "batch_size=8", "model.hidden=[16,12]", "steps=9", "evaluate.every=1")
SMALL += ("checkpoint.every=0", "epochs=10", "hardware=virtual", "hardware.workers=5", "stragglers=trace")
FACTORS = "1 2.5 1 1.25 3\n1 1 4 1.5 1\n2 1 1 1 1.125\n"
FEW = ("bsp", "ssp", "gossip", "fedbuff")  # in the fast part
PARTS = "strategy=pipeline hardware.workers=6 model.hidden=[16,16]"
CASES = [*CHOICES["sync"], "bsp accumulate=2", *(f"{each} {PARTS}" for each in ("bsp", "ssp"))]
DIGESTS = {
    "asp": "a339250fd61a7ea2",
    "backup_workers": "2a91637e635534f9",
    "bsp": "84c96ac87a4e83d1",
    "bsp_naive": "ef48254339530af6",
    "diloco": "d5840a2a6bb7d44e",
    "dion": "6203fd02b692efd3",
    "easgd": "3d01377874a7b019",
    "easgd_async": "55e68452615ef0f5",
    "easgd_momentum": "55e68452615ef0f5",
    "easgd_round_robin": "6203115a7eeb9623",
    "fedavg": "d889e92bad751151",
    "fedbuff": "3618af07addef4d5",
    "gossip": "f8efb00914bc3785",
    "gossip_async": "aff3dd8dcce62264",
    "gossip_exponential": "c18e6a9f6f4e2aea",
    "gossip_matching": "862450082f26ad07",
    "hogwild": "ab6258175f950f4f",
    "hogwild_locked": "68c9af9462095fb0",
    "independent": "ab6258175f950f4f",
    "local_sgd": "d5840a2a6bb7d44e",
    "noloco": "7f9b43a5127d3816",
    "onebit_adam": "84c96ac87a4e83d1",
    "parameter_server": "2034c8e162c0d084",
    "post_local_sgd": "84c96ac87a4e83d1",
    "push_sum": "24fff5ac85042dd7",
    "routed": "ab6258175f950f4f",
    "sparta": "545c6cbf54c9c9c2",
    "sparta_diloco": "0d60234d1ad4b584",
    "ssp": "852dfd8b553b1e91",
    "streaming_diloco": "1f45357fd1051ec4",
    "bsp accumulate=2": "28e9b31e34d32299",
    "bsp strategy=pipeline hardware.workers=6 model.hidden=[16,16]": "f117b7faa203e05b",
    "ssp strategy=pipeline hardware.workers=6 model.hidden=[16,16]": "70399f8cb318f629",
}


def ran(folder: Path, sync: str, *more: str, at_once: bool = False) -> tuple[SimulatedCluster, dict[str, Tensor]]:
    """Trains in this process; returns the cluster as it is then, and the weights.

    `at_once`: the earlier workers run whenever time passes, by the rule for shared memory, which is the simpler one.
    """
    folder.mkdir(exist_ok=True)
    factors = folder / "factors.txt"
    factors.write_text(FACTORS)
    prepared = prepare([*SMALL, f"sync={sync}", f"stragglers.path={factors}", *overrides_for(sync), *more])
    directory = RunDirectory.create(folder, "run")
    hardware: Any = prepared.experiment.hardware
    threads = torch.get_num_threads()
    cluster = cluster_of(assemble(prepared.experiment, (), None), hardware)
    if at_once:  # also within passes
        cluster = SimulatedCluster(cluster.size, cluster.fabric.network, cluster.memory)
        cluster.shares_memory = True
    try:
        run_virtual(prepared.assignment(directory, prepared.plan()), assemble(prepared.experiment, (), None), cluster)
    finally:
        torch.set_num_threads(threads)
    return cluster, load_file(directory.path / "model.safetensors")


def told(cluster: SimulatedCluster) -> str:
    """A hash of the events, and of each worker's clock, bytes and messages at the end."""
    ends = [
        (each.clock.hex(), sorted(each.ledger.snapshot().items()), sorted(each.ledger.messages.items()))
        for each in cluster.workers
    ]
    return hashlib.blake2b(repr((cluster.digest(), ends)).encode(), digest_size=8).hexdigest()


each_case = pytest.mark.parametrize(
    "chosen", [each if each in FEW else pytest.param(each, marks=pytest.mark.slow) for each in CASES]
)


@pytest.mark.budget(2)
@each_case
def test_events_clocks_and_bytes_are_as_recorded(tmp_path: Path, chosen: str) -> None:
    """When a change of a mode or of the network's model changes these on purpose, put in the new one."""
    assert told(ran(tmp_path, *chosen.split())[0]) == DIGESTS[chosen]


@pytest.mark.budget(2)
@each_case
def test_weights_do_not_depend_on_when_the_earlier_workers_run(tmp_path: Path, chosen: str) -> None:
    found, expected = (ran(tmp_path / str(rule), *chosen.split(), at_once=rule) for rule in (False, True))
    assert told(found[0]) == told(expected[0])
    assert identical(found[1], expected[1])
