"""Training through a parameter server (Downpour SGD: Dean et al. 2012, "Large Scale Distributed Deep Networks").

Asynchronous (ASP): workers go at their own pace. In step t a worker

    fetches the weights if n_fetch divides t,
    computes the gradient g of its mini-batch and accrues it: a <- a + g,
    steps its own copy if it will not fetch next: w <- step(w, g),
    pushes a, and sets a <- 0, if n_push divides t + 1;

the server applies each push at once, with its own optimizer: w <- step(w, a). Its version is the number of pushes; the
staleness of a push is the number of versions that came between its worker's last fetch and the push.

One worker with n_push = n_fetch = 1 is serial SGD, bit for bit. P equal workers in turn have staleness P - 1.

Deviations from the paper: a is pushed when it holds n_push gradients, where the paper's first push holds one; one
server holds all of the weights that its workers hold (a pipeline's stages have one each).

Cost per step, S bytes of gradient: a worker sends S / n_push and a request of 8 bytes for each fetch and each push; the
server sends, to each worker, S / n_fetch.
"""

from collections import Counter
from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm
from ..base import Batch, Cost, State, Sync, payload
from ..errors import LayoutError
from ..exchange.buckets import views_of
from ..state import from_tensor, to_tensor

REQUEST = 8  # bytes


class Request(IntEnum):
    """What a worker asks of the server: a message of one int64."""

    FETCH = 0  # send me the weights to compute with
    PUSH = 1  # my accrued gradient follows
    PEEK = 2  # send me the weights to evaluate
    SAVE = 3  # send me your optimizer's state
    DONE = 4  # I will ask no more; send me the last weights once all are done


class ParameterServer(Sync):
    """Asynchronous workers, one server for each part of the model."""

    servers = 1
    synchronous = False
    agrees = False

    def __init__(self, push: Annotated[int, Ge(1)] = 1, fetch: Annotated[int, Ge(1)] = 1) -> None:
        """`push`, `fetch`: n_push and n_fetch, in steps."""
        self.n_push, self.n_fetch = push, fetch
        self.steps_on_workers = fetch > 1

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        self._params = list(parameters.values())
        _check_one_dtype(self._params)
        with torch.no_grad():
            self._weights = torch.cat([parameter.flatten() for parameter in self._params])
        for parameter, view in zip(self._params, views_of(self._weights, self._params), strict=True):
            parameter.data = view  # weights are sent and received without copying them
        self._accrued = torch.zeros_like(self._weights)  # a
        self._gradients = views_of(self._accrued, self._params)
        self._request = torch.zeros(1, dtype=torch.int64)
        self._server = comm.size - 1
        self._t = 0
        self._finished = False
        self._staleness: Counter[int] = Counter()

    # -- a worker

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        if self._t % self.n_fetch == 0:
            self._ask(Request.FETCH)
            self.comm.recv(self._weights, self._server)

    def update(self) -> None:
        for accrued, parameter in zip(self._gradients, self._params, strict=True):
            if parameter.grad is not None:
                accrued.add_(parameter.grad)
        self._t += 1
        if self._t % self.n_fetch != 0:
            self.optimizer.step()
        if self._t % self.n_push == 0:
            self._push()

    def _push(self) -> None:
        self._ask(Request.PUSH)
        self.comm.send(self._accrued, self._server)
        self._accrued.zero_()

    def finish(self) -> None:
        if self._t % self.n_push != 0:
            self._push()
        self._ask(Request.DONE)
        self.comm.barrier()  # until all have pushed their last
        self.comm.recv(self._weights, self._server)
        self._finished = True

    def consensus(self) -> dict[str, Tensor]:
        """The server's copy, as it is now."""
        if self._finished:
            return super().consensus()
        weights = torch.empty_like(self._weights)
        self._ask(Request.PEEK)
        self.comm.recv(weights, self._server)
        return dict(zip(self.parameters, views_of(weights, self._params), strict=True))

    def _ask(self, request: Request) -> None:
        self._request.fill_(request)
        self.comm.send(self._request, self._server)

    # -- the server

    def serve(self) -> None:
        workers = range(self.comm.size - 1)
        version, fetched = 0, [0] * len(workers)
        going = set(workers)
        for parameter, gradient in zip(self._params, self._gradients, strict=True):
            parameter.grad = gradient  # a push is received into the gradients
        while going:
            worker = self.comm.recv_any(self._request)
            match int(self._request):
                case Request.FETCH:
                    fetched[worker] = version
                    self.comm.send(self._weights, worker)
                case Request.PUSH:
                    self.comm.recv(self._accrued, worker)
                    self._staleness[version - fetched[worker]] += 1
                    self.optimizer.step()
                    version += 1
                case Request.PEEK:
                    with self.comm.ledger.aside():
                        self.comm.send(self._weights, worker)
                case Request.SAVE:
                    with self.comm.ledger.aside():
                        self._send_state(worker)
                case Request.DONE:
                    going.discard(worker)
        self.comm.barrier()
        with self.comm.ledger.aside():
            for worker in workers:
                self.comm.send(self._weights, worker)

    def _send_state(self, worker: int) -> None:
        message = to_tensor({"optimizer": self.optimizer.state_dict()})
        self.comm.send(torch.tensor([len(message)]), worker)
        self.comm.send(message, worker)

    # -- state and measures

    def state_dict(self) -> State:
        """The server's optimizer."""
        self._ask(Request.SAVE)
        length = torch.zeros(1, dtype=torch.int64)
        self.comm.recv(length, self._server)
        message = torch.empty(int(length), dtype=torch.uint8)
        self.comm.recv(message, self._server)
        return from_tensor(message)

    def load_state_dict(self, state: State) -> None:
        if self.comm.rank == self._server:
            super().load_state_dict(state)

    def buffers(self) -> list[Tensor]:
        return [self._accrued]

    def report(self) -> dict[str, Any]:
        return {"staleness": dict(self._staleness)} if self.comm.rank == self._server else {}

    def cost(self, parameters: Sequence[Tensor], replicas: int, steps_per_epoch: int | None) -> Cost:
        _check_one_dtype(parameters)
        size = payload(parameters)
        return Cost(
            worker={"send": (size + REQUEST) / self.n_push + REQUEST / self.n_fetch},
            server={"send": replicas * size / self.n_fetch},
            buffers=size,
        )


def _check_one_dtype(parameters: Sequence[Tensor]) -> None:
    dtypes = {parameter.dtype for parameter in parameters}
    if len(dtypes) > 1:
        raise LayoutError(
            f"sync=asp sends all weights in one message of one dtype, and the model has {len(dtypes)} "
            f"({', '.join(sorted(map(str, dtypes)))}); sync=bsp takes several"
        )
