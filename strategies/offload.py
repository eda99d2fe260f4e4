"""Training a model that does not fit on its device: parameters, gradients, optimizer and activations live on the host.

Cui, Zhang, Ganger, Gibbons, Xing 2016, "GeePS: Scalable deep learning on distributed GPUs with a GPU-specialized
parameter server" (EuroSys): the device's memory is a pool of a fixed size. A layer's parameters, and in backward its
activations, are fetched into it in the background before their use and let go of after it; what will be used when is
known from a virtual iteration.

    phase i         forward of layer i:   fetch W_i;       x_{i+1} = f_i(x_i; W_i);  A_i -> host, drop W_i
    phase 2n-1-i    backward of layer i:  fetch W_i, A_i;  g_i, dx_i;                g_i -> host, drop W_i, A_i

`prefetch` = k fetches for the k phases that follow where the pool has room, and gives what leaves k phases to do so.
The virtual iteration is the same code on tensors without data, with nothing fetched ahead: its highest phase is the
smallest pool that works, and its phases say where there is room ahead. Training with a pool equals training without it,
bit for bit.

Ren et al. 2021, "ZeRO-Offload: Democratizing Billion-Scale Model Training" (arXiv 2101.06840): gradients go to the host
as they come out of backward; the optimizer's state and its update are there. `delayed_update` is their one-step delayed
parameter update (section 5.2): the update runs on the host while the device takes the next step,

    w_{t+1} = w_t - U(g_t(w_{t-1})),     w_{-1} = w_0,     evaluated and saved: w_t.

Deviations. GeePS: nothing is chosen to stay on the device for good; the pool is an account of what torch allocates, not
an allocator of its own. ZeRO-Offload: the delay begins with the first step, not after some; 32 bits throughout. Not in
the account: what an operation or a layer computes and drops again, forward or backward.

Cost per step: nothing between workers. Of W bytes of parameters and A of activations, at most 2 W + A go to the device,
and W + A to the host. Memory: `pool_mb` on the device; on the host W and its gradients (each twice with a delayed
update), the optimizer's state, and A.

Use it where there is one device, the model does not fit, and time matters less than having it train at all.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.optim import Optimizer

from ..batches import Samples, lone, of_each, tensors_of
from ..comm import Comm
from ..compat.dispatch import FakeTensorMode
from ..compat.modules import is_plain
from ..conf.errors import ConfigError
from .core.batch import Batch, BeforeBackward, Pass
from .core.copies import without_data
from .core.cost import Memory, Transfers, World, payload
from .core.loss import Loss
from .core.state import Named, State, layers_of
from .core.strategy import NOT_OURS, Strategy, StrategyTraits
from .core.sync import Measures, Sync, SyncTraits
from .memory.offloaded_step import OffloadedStep
from .memory.pool import Copier, NoCopier, Pool, copier_for, megabytes
from .schedules import scaled
from .sync.bsp import BSP


class Offload(Strategy):
    """A replica is one worker. A model is an `nn.Sequential`; its layers are what is fetched and let go of."""

    traits = StrategyTraits(
        unpredicted=NOT_OURS,
        one_input="fetches a model layer by layer, of which each is given the one tensor that the layer before it made",
        moves_model=True,
        needs_shapes=True,
        drops_writes=True,
        uncompiled="fetches the weights of each layer by hooks, which compiled code would pass by",
        unaveraged="keeps weights on the host, and its pool has no room for an average of them",
    )

    def __init__(
        self,
        pool_mb: Annotated[float, Gt(0)] | None = None,
        activations: bool = True,
        prefetch: Annotated[int, Ge(0)] = 1,
        delayed_update: bool = False,
    ) -> None:
        """`pool_mb`: MiB of the device for what is fetched and computed; None for as many as it takes.

        `activations`: swap them too, not parameters alone. `prefetch`: k, in layers. `delayed_update`: with sync=bsp.
        """
        self.pool_mb, self.cap = pool_mb, None if pool_mb is None else int(pool_mb * 2**20)
        self.activations, self.prefetch, self.delayed_update = activations, prefetch, delayed_update
        if delayed_update:
            self.traits = replace(
                self.traits,
                owns_update="with strategy.delayed_update=true steps behind a synchronous mean of gradients",
            )
        self._demands: dict[object, list[int]] = {}  # by the shape of a batch
        self._pool, self._host = Pool(), Pool()  # the fullest of this worker's steps

    def own_sync(self) -> Sync | None:
        return DelayedUpdate() if self.delayed_update else None

    def split(self, model: nn.Module) -> list[nn.Module]:
        if not is_plain(model, nn.Sequential):
            raise ConfigError(
                f"strategy=offload fetches the layers of an nn.Sequential one by one, and {type(model).__name__} is "
                "none, or has a forward or hooks of its own; strategy=data_parallel takes any module"
            )
        for name, layer in layers_of(model).items():
            holding = [each for _, each in layer.named_modules(remove_duplicate=False) if _holds_tensors(each)]
            if len({*holding}) < len(holding):
                raise ConfigError(
                    f"strategy=offload: layer {name} has a module under two names, and each name would be given "
                    "weights of its own. Choose strategy=data_parallel, or call the module twice by one name."
                )
        return [_layers_of(model)]

    def prepare(self, model: nn.Module, loss: Loss, comm: Comm, before_backward: BeforeBackward) -> None:
        self.module = self._layers = _layers_of(model)
        self._twin = without_data(self._layers, "meta")  # now: others will hang hooks on the module
        self._loss, self._before_backward = loss, before_backward

    def forward_backward(self, batch: Batch) -> Tensor | None:
        if batch.size == 0:
            return None
        inputs, targets, device = lone(batch.inputs), batch.targets, batch.inputs.device
        shape = tuple(inputs.shape), inputs.dtype, *(tuple(each.shape) for each in tensors_of(targets))
        if not self._demands:
            self.setting.precision.attach(self._twin, device)
        if shape not in self._demands:
            self._demands[shape] = self._demand(self._twin, inputs, targets, self._loss, device)
        with copier_for(device) as copier:
            offloaded = self._offloaded(self._layers, copier, device, self._demands[shape])
            loss = step(self._layers, offloaded, inputs, targets, self._loss, self._before_backward)
        self._note(offloaded)
        return loss

    def _offloaded(
        self, layers: "OffloadedLayers", copier: Copier, device: torch.device, demand: list[int]
    ) -> OffloadedStep:
        return OffloadedStep(
            list(layers), Pool(self.cap), Pool(), copier, device, self.activations, self.prefetch, demand
        )

    def _note(self, offloaded: OffloadedStep) -> None:
        self._pool = max(self._pool, offloaded.pool, key=lambda pool: pool.peak)
        self._host = max(self._host, offloaded.host, key=lambda pool: pool.peak)

    # -- what it takes

    def profile(
        self, parts: Sequence[nn.Module], inputs: Samples, targets: Samples, loss: Loss, device: torch.device
    ) -> Iterator[list[Pass]]:
        """Raises `ConfigError` where the pool is too small, or a layer cannot be swapped."""
        yield from super().profile(parts, inputs, targets, loss, device)
        inputs = lone(inputs)
        (layers,) = parts
        assert isinstance(layers, OffloadedLayers)
        if device.type == "cuda" and not torch.cuda.is_available():
            device = torch.device("cpu")  # a machine that is planned for from here: torch aborts without its own CUDA
        demand = self._demand(layers, inputs, targets, loss, device)
        self._note(
            profile(
                layers, inputs, targets, loss, device, lambda twin: self._offloaded(twin, NoCopier(), device, demand)
            )
        )

    def _demand(
        self, layers: "OffloadedLayers", inputs: Tensor, targets: Samples, loss: Loss, device: torch.device
    ) -> list[int]:
        """Each phase's bytes on the device with nothing ahead; without a cap nobody asks, and [] is the answer."""
        if self.cap is None:
            return []

        def alone(twin: OffloadedLayers) -> OffloadedStep:
            return OffloadedStep(list(twin), Pool(), Pool(), NoCopier(), device, self.activations)

        demand = profile(layers, inputs, targets, loss, device, alone).demand
        most = max(demand)
        if self.cap < most:
            phase = demand.index(most)
            name = list(layers_of(layers))[min(phase, 2 * len(layers) - 1 - phase)]
            raise ConfigError(
                f"strategy.pool_mb={self.pool_mb}: a batch of {len(inputs)} takes more in layer {name}. "
                f"Choose strategy.pool_mb >= {megabytes(most)}, or a smaller batch_size."
            )
        return demand

    def memory(self, held: Memory, part: nn.Module) -> Memory:
        return self.measured(held)

    def measured(self, held: Memory) -> Memory:
        """Returns the pool's bytes at its peak, in training or in the virtual iteration; all else is on the host."""
        on_device = {kind: self._pool.peaks.get(kind, 0) for kind in ("parameters", "gradients", "activations")}
        on_host = {f"host_{kind}": size for kind, size in held.items()}
        return {**on_device, **on_host, "host_activations": self._host.peak}


class OffloadedLayers(nn.Sequential):
    """The layers of a model under their names; with `offloaded`, each is on its device for as long as it is needed."""

    def forward(self, input: Tensor, offloaded: OffloadedStep | None = None) -> Tensor:
        if offloaded is None:
            return super().forward(input)
        for i in range(len(self)):
            input = offloaded.run(i, input)
            offloaded.leave(i, input)
        return input


def _holds_tensors(module: nn.Module) -> bool:
    return any(True for _ in chain(module.parameters(recurse=False), module.buffers(recurse=False)))


def _layers_of(model: nn.Module) -> OffloadedLayers:
    layers = OffloadedLayers()
    for name, layer in layers_of(model).items():
        layers.add_module(name, layer)
    return layers


def step(
    layers: OffloadedLayers,
    offloaded: OffloadedStep,
    inputs: Tensor,
    targets: Samples,
    loss: Loss,
    before_backward: BeforeBackward,
) -> Tensor:
    """Leave the gradients of a batch's mean loss on the host; returns that loss."""
    offloaded.start(inputs, *tensors_of(targets))
    outputs = layers(inputs, offloaded)
    with offloaded.saving(len(layers) - 1):
        mean = loss(outputs, targets)
    del outputs
    before_backward([mean], True)
    try:
        offloaded.turn()
        mean.backward()
    finally:
        offloaded.restore()
    offloaded.finish()
    return mean.detach()


def profile(
    layers: OffloadedLayers,
    inputs: Tensor,
    targets: Samples,
    loss: Loss,
    device: torch.device,
    make: Callable[[OffloadedLayers], OffloadedStep],
) -> OffloadedStep:
    """The virtual iteration: a step with tensors that have no data, but behave as those on the device and the host.

    On the meta device itself, attention saves more than where it is fused. Backward stays on this thread: autograd
    would start one for the device, and a fake mode's state belongs to the thread that entered it.
    """
    with torch.autograd.set_multithreading_enabled(False), FakeTensorMode(allow_non_fake_inputs=True):
        twin = without_data(layers, "cpu")
        x, y = (
            of_each(each, lambda t: torch.empty(t.shape, dtype=t.dtype, device=device)) for each in (inputs, targets)
        )
        offloaded = make(twin)
        step(twin, offloaded, lone(x), y, loss, lambda roots, last: None)
    return offloaded


class DelayedUpdate(Sync):
    """BSP, whose optimizer steps in the background while the next gradients are computed from the weights before it.

    Only BSP: others send weights, or step elsewhere, and would have to know of two versions of them.
    """

    traits = SyncTraits(
        exact=False,  # gradients are of the weights before
        serial_alone=False,
        one_scale="with strategy.delayed_update=true has a step under way while the next one may be left out",
        unaveraged="steps while the next gradients are computed",
        shows_gradients=False,
    )

    def __init__(self) -> None:
        self._bsp = BSP()

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        self._delayed = DelayedOptimizer(optimizer, list(parameters.values()))
        self._bsp.prepare(parameters, self._delayed, comm)
        self._delayed.start()

    @contextmanager
    def at_rate(self, factor: float) -> Iterator[None]:
        """The update's, which goes on while the next step is made."""
        self._delayed.factor = factor
        yield

    def begin(self, batch: Batch) -> None:
        self._bsp.begin(batch)

    def before_backward(self, roots: Sequence[Tensor], last: bool) -> None:
        self._bsp.before_backward(roots, last)

    def update(self) -> None:
        self._bsp.update()

    def finish(self) -> None:
        self._delayed.catch_up()

    def consensus(self) -> dict[str, Tensor]:
        return dict(zip(self.parameters, self._delayed.newest(), strict=True))

    def state_dict(self) -> State:
        """The weights saved beside it are the newest; here are those that the next gradient is computed from."""
        self._delayed.wait()
        before = Named((name, v.detach().clone()) for name, v in self.parameters.items())
        return {**super().state_dict(), "before": before}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        before = state.get("before", {})  # another strategy saved none
        if isinstance(before, list):  # an earlier version wrote it
            before = dict(zip(self.parameters, before, strict=True))
        for name, saved in before.items():
            self.parameters[name].data.copy_(saved)

    def buffers(self) -> list[Tensor]:
        return self._bsp.buffers()

    def report(self) -> Measures:
        return self._bsp.report()

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        return self._bsp.transfers(parameters, world)

    def memory(self, held: Memory, parameters: Sequence[Tensor], replicas: int) -> Memory:
        """Two versions of the weights, and of the gradients those that the update reads and those that come."""
        more = payload(parameters)
        return {**held, "parameters": held["parameters"] + more, "gradients": held["gradients"] + more}

    def measured(self, held: Memory) -> Memory:
        return {**held, **self._delayed.held()}


class DelayedOptimizer(Optimizer):
    """An optimizer whose step copies the gradients and returns; `optimizer` steps meanwhile, on weight copies w.

    The parameters v have the weights of the step before: v_{t+1} = w_t.
    """

    def __init__(self, optimizer: Optimizer, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {})
        self._optimizer, self._v = optimizer, parameters
        copies = {v: nn.Parameter(v.detach().clone()) for v in parameters}
        self._w = [copies[v] for v in parameters]
        for group in optimizer.param_groups:
            group["params"] = [copies.get(v, v) for v in group["params"]]
        self._job: Future[Any] | None = None
        self.factor = 1.0  # of the next step's rate

    @torch.no_grad()
    def start(self) -> None:
        """w <- v: both are w_0."""
        for v, w in zip(self._v, self._w, strict=True):
            w.copy_(v)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self.catch_up()  # v <- w_t
        for v, w in zip(self._v, self._w, strict=True):
            w.grad = None if v.grad is None else v.grad.detach().clone()  # v's are the next backward's to write
        executor = ThreadPoolExecutor(1, thread_name_prefix="delayed-update")
        self._job = executor.submit(self._step, self.factor)  # w_{t+1} = w_t - U(g_t(w_{t-1}))
        executor.shutdown(wait=False)  # the thread ends with the step

    def _step(self, factor: float) -> None:
        with scaled([self._optimizer], factor):
            self._optimizer.step()

    def wait(self) -> None:
        """Wait for the step under way. Raises what it raised."""
        job, self._job = self._job, None
        if job is not None:
            job.result()

    @torch.no_grad()
    def catch_up(self) -> None:
        self.wait()
        for v, w in zip(self._v, self._w, strict=True):
            v.copy_(w)

    def newest(self) -> list[Tensor]:
        self.wait()
        return [w.detach() for w in self._w]

    def held(self) -> Memory:
        """Returns the bytes of weights and gradients: two versions each, as in `DelayedUpdate.memory`."""
        size = payload(self._w)
        return {"parameters": payload(self._v) + size, "gradients": payload(self._v) + size}
