"""Worker processes on this host: forked from a server, watched over pipes (crew.py), and ended with us."""

import sys
from collections.abc import Callable
from functools import partial

import torch

from ...comm.board import mark_lost
from ...comm.connecting import connect
from ...comm.handshake import Endpoint
from ...comm.network import Link, Network
from ...comm.rendezvous import serve_store
from ...comm.store import StoreServer
from ..assignment import Assignment
from ..crew import WORKER_FAILED, Crew, Ended
from ..experiment import Hardware
from ..failures import how_it_ended
from ..gauges import LiveRecord
from ..launch import what_is_saved
from ..layout import Layout
from ..parts import Parts
from ..work import work
from ..worker_process import stop_on_sigterm, told_of, worker_main
from .base import Handle, Launcher, network_of_one


class Local(Launcher):
    def hosts(self, hardware: Hardware, world_size: int) -> tuple[int, ...]:
        """This one; of a plan for machines with devices, one worker on each device."""
        machine = hardware.machine
        each = machine.devices if machine is not None and hardware.device != "cpu" else 0
        return tuple(rank // each if each else 0 for rank in range(world_size))

    def network(self, hardware: Hardware) -> Network | None:
        machine, workers = hardware.machine, hardware.workers or 1
        if machine is None or self.hosts(hardware, workers)[-1] == 0:
            return network_of_one(machine)
        if machine.network is None:
            return None
        between = Link(**machine.network.model_dump())
        inside = between if machine.link is None else Link(**machine.link.model_dump())
        return Network(between, inside, workers_per_host=machine.devices)

    def start(self, assignment: Assignment, layout: Layout, survives: bool, preload: tuple[str, ...]) -> Handle:
        def may_go_on(ended: Ended, store: StoreServer) -> bool:
            role = layout.role(ended.rank)
            if not survives or role.kind == "server" or role.replica == 0:
                return False
            if ended.exit_code != WORKER_FAILED:
                return False  # diverged, out of disk, ...: it would come to the others too
            mark_lost(store, ended.rank)
            how = how_it_ended(ended.error, ended.message)
            print(f"worker {ended.rank} {how}; training goes on without it", file=sys.stderr, flush=True)
            return True

        return start_processes(layout.world_size, assignment, layout, may_go_on, self.saves, preload)

    def work(
        self,
        rank: int,
        store: Endpoint,
        assignment: Assignment,
        parts: Parts,
        device: torch.device,
        started: Callable[[], None],
    ) -> None:
        timeout = assignment.experiment.hardware.timeout
        comm = connect(store, rank, parts.layout.world_size, timeout, device)
        stop_on_sigterm(comm.board.request_stop)
        work(assignment, parts, comm, device, started)
        comm.close()


def start_processes(
    number: int,
    assignment: Assignment,
    layout: Layout,
    may_go_on: Callable[[Ended, StoreServer], bool],
    saves: bool,
    preload: tuple[str, ...],
) -> Handle:
    """`number` processes of this host, and the store in which they meet.

    `may_go_on`: asked about each that failed, whether the others go on without it.
    """
    store = serve_store(assignment.experiment.hardware.port)
    saved = partial(what_is_saved, assignment) if saves else None
    live = LiveRecord(assignment.run, layout, store.read)

    def afterwards() -> None:
        live.close()
        store.close()

    crew = Crew(lambda ended: may_go_on(ended, store), saved, afterwards)
    try:
        crew.start(number, worker_main, told_of(assignment, layout.world_size, store.endpoint), preload)
    except BaseException:
        crew.kill()
        raise
    return crew
