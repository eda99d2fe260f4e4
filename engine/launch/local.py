"""Worker processes on this host: forked from a server, watched over pipes (local_workers.py), and ended with us."""

import sys
from collections.abc import Callable
from functools import partial

import torch

from ...comm.connecting import connect
from ...comm.handshake import Endpoint
from ...comm.key_values import mark_lost
from ...comm.rendezvous import serve_store
from ...comm.store import StoreServer
from ...conf.groups import GROUPS
from ..base.failures import how_it_ended
from ..fabrics.assignment import Assignment
from ..fabrics.layout import RunLayout
from ..features.feature import Parts
from ..training.live_metrics import LiveRecord
from ..training.work import work
from .launcher import Handle, Launcher
from .local_workers import WORKER_FAILED, Ended, LocalWorkers
from .saved import what_is_saved
from .worker_process import stop_on_sigterm, told_of, worker_main


class Local(Launcher):
    def start(self, assignment: Assignment, layout: RunLayout, survives: bool, preload: tuple[str, ...]) -> Handle:
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

        return start_processes(self, layout.world_size, assignment, layout, may_go_on, preload)

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
        stop_on_sigterm(comm.key_values.request_stop)
        work(assignment, parts, comm, device, started)
        comm.close()


def start_processes(
    launcher: Launcher,
    number: int,
    assignment: Assignment,
    layout: RunLayout,
    may_go_on: Callable[[Ended, StoreServer], bool],
    preload: tuple[str, ...],
) -> Handle:
    """`number` processes of this host, and the store in which they meet.

    `may_go_on`: asked about each that failed, whether the others go on without it.
    """
    store = serve_store(assignment.experiment.hardware.port)
    saved = partial(what_is_saved, assignment) if launcher.fabric.saves else None
    live = LiveRecord(assignment.run, layout, store.read)

    def afterwards() -> None:
        live.close()
        store.close()

    local_workers = LocalWorkers(lambda ended: may_go_on(ended, store), saved, afterwards)
    try:
        local_workers.start(
            number,
            partial(worker_main, launcher),
            told_of(assignment, layout.world_size, store.endpoint),
            (*preload, *_own_modules(assignment)),
        )
    except BaseException:
        local_workers.kill()
        raise
    return local_workers


def _own_modules(assignment: Assignment) -> tuple[str, ...]:
    """Returns paceline's modules that have the classes of the choices."""
    targets = [assignment.experiment.choice(group.name).target for group in GROUPS]
    modules = dict.fromkeys(target.rpartition(".")[0] for target in targets)
    return tuple(module for module in modules if module.startswith("paceline."))
