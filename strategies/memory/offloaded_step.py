"""One step's way through the layers of a model that live on the host: what is on the device when.

The step is 2 n phases: layer i is phase i going forward and 2 n - 1 - i coming back. In the graph of a layer

    x, *weights = enter(x, weights on the host)    forward: fetched     backward: the phase ends, gradients leave
    y = layer(x; weights)                          saved tensors are kept as records, not by autograd
    y = leave(y)                                   forward: identity    backward: the phase begins, all is fetched

What activation checkpointing computes again in backward reads a layer's weights from the layer: for the length of its
phase the layer has those that were fetched. A reentrant checkpoint (`use_reentrant=True`) also leaves its gradients
there, which are added to those of the graph.

The last layer, with the loss, goes straight from forward to backward and is never let go of.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ...compat.modules import with_tensors
from ...compat.storages import storage_key, version_of
from ...conf.errors import ConfigError
from ..core.cost import payload
from .pool import Copier, Copy, Pool


@dataclass(eq=False)
class OffloadedActivation:
    """A storage of the device that is an activation. `device`, `host`: its bytes, [n] uint8, where they are there."""

    like: Tensor | None  # shares its storage and its version
    device: Tensor | None
    size: int
    stays: bool = False  # whoever called holds it: it cannot be let go of
    users: set[int] = field(default_factory=set)  # layers that saved it for backward
    host: Tensor | None = None
    leaving: Copy | None = None  # its copy to the host
    last_version: int = 0  # when it was let go of

    @property
    def version(self) -> int:
        return self.last_version if self.like is None else version_of(self.like)


@dataclass(frozen=True)
class SavedActivation:
    record: OffloadedActivation
    dtype: torch.dtype
    place: tuple[Any, torch.Size, tuple[int, ...]]  # offset, size, stride
    version: int


@dataclass(frozen=True)
class SavedWeight:
    layer: int
    name: str
    dtype: torch.dtype
    place: tuple[Any, torch.Size, tuple[int, ...]]


@dataclass
class Departure:
    """Tensors that leave the device together: their bytes are given back when `copies` have been waited for."""

    copies: list[Copy]
    records: list[OffloadedActivation]
    gradients: list[Tensor]

    def size(self) -> int:
        return sum(record.size for record in self.records) + payload(self.gradients)


class OffloadedStep:
    """Takes from and gives to `pool`, in the thread that computes; `copier` copies in the background."""

    def __init__(
        self,
        layers: Sequence[nn.Module],
        pool: Pool,
        host: Pool,
        copier: Copier,
        device: torch.device,
        activations: bool,
        ahead: int = 0,
        demand: Sequence[int] | None = None,
    ) -> None:
        """`activations`: they are swapped too. `ahead`: phases to fetch ahead; as many may leave behind.

        `demand`: bytes, by phase, of the pool with nothing ahead or behind, as a rehearsal found; None for a rehearsal.
        """
        self._layers, self.pool, self.host, self._copier, self._device = layers, pool, host, copier, device
        self._activations, self._window = activations, ahead
        self._estimated = demand or [0] * (2 * len(layers))
        self.demand = [0] * (2 * len(layers))
        self._phase = 0
        self._weights: dict[int, dict[str, Tensor]] = {}  # fetched, by layer
        self._arriving: dict[int, list[Copy]] = {}  # by phase
        self._ahead: dict[int, int] = {}  # bytes fetched in advance, by phase
        self._weight_of: dict[int, tuple[int, str]] = {}  # storage -> layer and name
        self._records: dict[int, OffloadedActivation] = {}  # storage -> activation on the device
        self._saved: list[dict[OffloadedActivation, None]] = [{} for _ in layers]  # in order
        self._flow: OffloadedActivation | None = None  # what goes from layer to layer
        self._gradient_flow = 0  # bytes of its gradient
        self._departures: deque[Departure] = deque()
        self._backward: list[int] = []  # layers that it reaches, in the order of forward
        self._tokens: list[Tensor] = []
        self.outgoing: dict[int, list[tuple[Copy, Tensor] | None]] = {}  # gradients on their way, by layer
        self._fetched_in_place = ExitStack()  # of the layer whose backward pass is under way
        self._recomputing: list[Tensor] = []  # its trained weights, as it has them for that time

    # -- forward

    def start(self, *given: Tensor) -> None:
        """A step with these tensors, which the caller keeps on the device."""
        for tensor in given:
            self._record(tensor, payload([tensor])).stays = True

    def run(self, i: int, x: Tensor) -> Tensor:
        """Returns the output of layer i for x."""
        self._begin(i)
        layer = self._layers[i]
        for j in range(len(self._tokens), min(i + self._window, len(self._layers) - 1) + 1):
            # before the layers ahead enter: autograd takes it up when the layers behind it are done
            self._tokens.append(_Deliver.apply(self, j, *trained(self._layers[j])))
        fetched = self._weights[i]
        names = [name for name, _ in layer.named_parameters()]
        frozen = [not parameter.requires_grad for parameter in layer.parameters()]
        x, *weights = _Enter.apply(self, i, frozen, x, self._tokens[i], *[fetched[name] for name in names])
        given = {**fetched, **dict(zip(names, weights, strict=True))}
        with self.saving(i):
            y = functional_call(layer, given, (x,))
        if not isinstance(y, Tensor):
            raise ConfigError(
                f"strategy=offload hands one tensor from layer to layer, and layer {i} ({type(layer).__name__}) puts "
                f"out a {type(y).__name__}; strategy=data_parallel takes any module"
            )
        _keep_buffers(layer, given)
        if y.requires_grad:
            self._backward.append(i)
        else:
            self._backward.clear()
        return _Leave.apply(self, i, y) if i < len(self._layers) - 1 else y

    def leave(self, i: int, y: Tensor) -> None:
        """Layer i is done, and y is all of it that the caller still has."""
        before, self._flow = self._flow, self._record(y)
        if i == len(self._layers) - 1:  # comes next in backward
            self._drop_unused(before)
            return
        self._let_go(i)
        going = {**dict.fromkeys([before] if before is not None else []), **self._saved[i]}
        self._depart([record for record in going if record is not self._flow], [])

    @contextmanager
    def saving(self, i: int) -> Iterator[None]:
        """Hooks the tensors that autograd saves in this context, as those of layer i."""

        def pack(tensor: Tensor) -> Any:
            if tensor.device.type != self._device.type:
                return tensor  # fused attention on CUDA keeps the state of its random numbers on the host
            if tensor.layout is not torch.strided:
                raise ConfigError(f"strategy=offload cannot swap a {tensor.layout} tensor that layer {i} saves")
            tensor = tensor.resolve_conj().resolve_neg()
            place = tensor.storage_offset(), tensor.size(), tensor.stride()
            weight = self._weight_of.get(storage_key(tensor))
            if weight is not None:
                return SavedWeight(*weight, tensor.dtype, place)
            record = self._record(tensor)
            record.users.add(i)
            self._saved[i][record] = None
            return SavedActivation(record, tensor.dtype, place, version_of(tensor))

        with torch.autograd.graph.saved_tensors_hooks(pack, self._unpack):
            yield

    def _unpack(self, saved: SavedActivation | SavedWeight | Tensor) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        if isinstance(saved, SavedWeight):
            whole = self._weights[saved.layer][saved.name]
        else:
            whole = saved.record.device
            assert whole is not None, "an activation is used outside its layer's phase"
            if saved.version != saved.record.version:  # as autograd has it
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"it is at version {saved.record.version}, expected version {saved.version}"
                )
        return torch.empty(0, dtype=saved.dtype, device=self._device).set_(whole.untyped_storage(), *saved.place)

    def _record(self, tensor: Tensor, size: int | None = None) -> OffloadedActivation:
        """Returns the record of the tensor's storage, which is taken from the pool if it is new.

        `size`: bytes that are counted, if not the whole storage.
        """
        key, storage = storage_key(tensor), tensor.untyped_storage()
        if key not in self._records:
            size = storage.nbytes() if size is None else size
            self._take("activations", size)
            flat = torch.empty(0, dtype=torch.uint8, device=self._device).set_(storage)
            self._records[key] = OffloadedActivation(tensor.detach(), flat, size)
        return self._records[key]

    # -- backward

    def turn(self) -> None:
        """Backward comes next."""
        flow, self._flow = self._flow, None
        self._drop_unused(flow)
        if self._backward:
            self.come_back(len(self._layers) - 1)

    def come_back(self, i: int) -> None:
        """The gradient of layer i's output is there."""
        self.restore()
        self._begin(self._phase_back(i))
        layer, fetched = self._layers[i], self._weights[i]
        trains = {name: parameter.requires_grad for name, parameter in layer.named_parameters()}
        given = {name: tensor.detach().requires_grad_(trains.get(name, False)) for name, tensor in fetched.items()}
        self._recomputing = [given[name] for name, is_trained in trains.items() if is_trained]
        self._fetched_in_place.callback(_keep_buffers, layer, given)
        self._fetched_in_place.enter_context(with_tensors(layer, given))

    def restore(self) -> None:
        """Give the layer whose backward pass was under way the host's weights again."""
        self._fetched_in_place.close()

    def gradients(self, i: int, x: Tensor | None, weights: Sequence[Tensor | None]) -> None:
        """All gradients of layer i are there: of its input, and of its trained weights. Its phase is over."""
        self.restore()
        weights = [_sum(gradient, again.grad) for gradient, again in zip(weights, self._recomputing, strict=True)]
        self._recomputing = []
        for gradient in weights:
            if gradient is not None and gradient.layout is not torch.strided:
                raise ConfigError(
                    f"strategy=offload sends dense gradients, and a {gradient.layout} one comes out of layer {i}; "
                    "strategy=data_parallel takes both"
                )
        incoming, self._gradient_flow = self._gradient_flow, 0 if x is None else payload([x])
        self._take("activations", self._gradient_flow)
        present = [gradient for gradient in weights if gradient is not None]
        self._take("gradients", payload(present))
        self.pool.give("activations", incoming)
        self.outgoing[i] = [None if gradient is None else self._send(gradient) for gradient in weights]
        self._let_go(i)
        for record in self._saved[i]:
            record.users.discard(i)
            self._drop_unused(record)
        copies = [sent[0] for sent in self.outgoing[i] if sent is not None]
        self._departures.append(Departure(copies, [], present))
        self._collect(self._window)

    def _send(self, gradient: Tensor) -> tuple[Copy, Tensor]:
        room = self._copier.host_bytes(payload([gradient])).view(gradient.dtype).view(gradient.shape)
        return self._copier.copy(gradient, room), room

    def finish(self) -> None:
        """The step is over: nothing is on the device."""
        self._collect(0)
        for i in list(self._weights):
            self._let_go(i)
        for record in {**dict.fromkeys(self._records.values()), **{r: None for s in self._saved for r in s}}:
            record.users.clear()
            record.stays = False
            self._drop_unused(record)
        self.pool.give("activations", self._gradient_flow)
        assert self.pool.total == self.host.total == 0, "something was not given back"

    # -- phases

    def _phase_back(self, i: int) -> int:
        return 2 * len(self._layers) - 1 - i

    def _layer(self, phase: int) -> int:
        return phase if phase < len(self._layers) else self._phase_back(phase)

    def _begin(self, phase: int) -> None:
        """Have what `phase` needs, and room for what it will take; then fetch for those after it."""
        self._phase = phase
        self._ahead.pop(phase, None)
        while self._departures and not self.pool.fits(self._estimated[phase] + self._idle()):
            self._collect(len(self._departures) - 1)
        self._fetch(phase)
        for copy in self._arriving.pop(phase):
            copy.wait()
        self.demand[phase] = max(self.demand[phase], self.pool.total)
        for following in self._next_phases(phase):
            if following not in self._ahead:
                if not self._has_room_ahead(phase, following):
                    break
                self._ahead[following] = self._fetch(following)

    def _next_phases(self, phase: int) -> list[int]:
        n = len(self._layers)
        if phase < n:  # the last layer is fetched for both
            return list(range(phase + 1, min(phase + self._window, n - 1) + 1))
        return [p for p in range(phase + 1, phase + self._window + 1) if p < 2 * n and self._layer(p) in self._backward]

    def _idle(self) -> int:
        """Bytes of the pool that this phase does not need."""
        return sum(departure.size() for departure in self._departures) + sum(self._ahead.values())

    def _has_room_ahead(self, phase: int, following: int) -> bool:
        """Tells whether fetching for `following` now leaves enough room for all phases from `phase` until then."""
        size = payload(list(tensors(self._layers[self._layer(following)]).values()))
        if following >= len(self._layers):
            size += sum(record.size for record in self._saved[self._layer(following)])
        return all(self.pool.fits(self._estimated[p] + self._idle() + size) for p in range(phase, following))

    def _fetch(self, phase: int) -> int:
        """Begin to copy to the device what `phase` needs and is not there; the bytes of all that it needs."""
        i, arriving = self._layer(phase), self._arriving.setdefault(phase, [])
        host = tensors(self._layers[i])
        if i not in self._weights:
            self._take("parameters", payload(list(host.values())))
            self._weights[i] = {}
            for name, tensor in host.items():
                weight = torch.empty_like(tensor, device=self._device, memory_format=torch.contiguous_format)
                self._copier.pin(tensor)
                arriving.append(self._copier.copy(tensor, weight))
                self._weights[i][name] = weight
                self._weight_of[storage_key(weight)] = i, name
        size = payload(list(host.values()))
        if phase >= len(self._layers):
            for record in self._saved[i]:
                size += record.size
                if record.device is None:
                    self._return(record, arriving)
            self._keep(self._saved[i])
        return size

    def _return(self, record: OffloadedActivation, arriving: list[Copy]) -> None:
        assert record.host is not None
        self._take("activations", record.size)
        record.device = torch.empty(record.size, dtype=torch.uint8, device=self._device)
        arriving.append(self._copier.copy(record.host, record.device))

    # -- letting go

    def _let_go(self, i: int) -> None:
        """Drops the weights of layer i from the device; the host has them."""
        weights = self._weights.pop(i)
        for weight in weights.values():
            del self._weight_of[storage_key(weight)]
        self.pool.give("parameters", payload(list(weights.values())))

    def _depart(self, records: Sequence[OffloadedActivation], gradients: list[Tensor]) -> None:
        """Drop these records, or send those that backward will ask for to the host."""
        going: list[OffloadedActivation] = []
        for record in records:
            self._drop_unused(record)
            if record.users and record.device is not None and record.host is None and self._leaves(record):
                self.host.take("activations", record.size)
                record.host = self._copier.host_bytes(record.size)
                record.leaving = self._copier.copy(record.device, record.host)
                going.append(record)
        self._departures.append(Departure([r.leaving for r in going if r.leaving is not None], going, gradients))
        self._collect(self._window)

    def _leaves(self, record: OffloadedActivation) -> bool:
        return self._activations and not record.stays

    def _collect(self, most: int) -> None:
        """Wait until no more than `most` departures are under way, the oldest first."""
        while len(self._departures) > most:
            departure = self._departures.popleft()
            for copy in departure.copies:
                copy.wait()
            self.pool.give("gradients", payload(departure.gradients))
            for record in departure.records:
                self._off_device(record)

    def _keep(self, records: dict[OffloadedActivation, None]) -> None:
        """Keeps on the device those records that are about to leave: they are needed again."""
        for departure in self._departures:
            departure.records = [record for record in departure.records if record not in records]

    def _off_device(self, record: OffloadedActivation) -> None:
        if record.device is not None:
            self._records.pop(storage_key(record.device), None)
            record.last_version = record.version
            record.device = record.like = None
            self.pool.give("activations", record.size)

    def _drop_unused(self, record: OffloadedActivation | None) -> None:
        """Drops a record that neither backward nor a layer will ask for."""
        if record is None or record.users or record.stays or record is self._flow:
            return
        if record.host is not None:
            if record.leaving is not None:
                record.leaving.wait()
            self.host.give("activations", record.size)
            record.host = None
        self._off_device(record)

    def _take(self, kind: str, size: int) -> None:
        self.pool.take(kind, size)
        self.demand[self._phase] = max(self.demand[self._phase], self.pool.total)


def tensors(layer: nn.Module) -> dict[str, Tensor]:
    """Returns the parameters and buffers of a layer by name."""
    return {name: t.detach() for name, t in (*layer.named_parameters(), *layer.named_buffers())}


def _keep_buffers(layer: nn.Module, given: dict[str, Tensor]) -> None:
    """Copy what a pass made of them to the host: running statistics; not every write is seen in their version."""
    for name, buffer in layer.named_buffers():
        buffer.data.copy_(given[name].detach())


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


def trained(layer: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in layer.parameters() if parameter.requires_grad]


class _Deliver(torch.autograd.Function):
    """Backward: the gradients of a layer's weights, once they have arrived on the host."""

    @staticmethod
    def forward(ctx: Any, step: OffloadedStep, i: int, *parameters: Tensor) -> Tensor:
        ctx.step, ctx.layer, ctx.count = step, i, len(parameters)
        return torch.empty(0, device=parameters[0].device if parameters else "cpu")

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        arrived: list[Tensor | None] = []
        for sent in ctx.step.outgoing.pop(ctx.layer):
            if sent is not None:
                sent[0].finish()
            arrived.append(None if sent is None else sent[1])
        return None, None, *arrived


class _Enter(torch.autograd.Function):
    """(x, weights on the device), which lead to the token's node."""

    @staticmethod
    def forward(
        ctx: Any, step: OffloadedStep, i: int, frozen: list[bool], x: Tensor, token: Tensor, *weights: Tensor
    ) -> Any:
        ctx.step, ctx.layer, ctx.frozen, ctx.token = step, i, frozen, (token.device, token.requires_grad)
        ctx.set_materialize_grads(False)
        outputs = x.detach(), *[weight.detach() for weight in weights]
        ctx.mark_non_differentiable(
            *([] if x.requires_grad else [outputs[0]]),
            *[weight for weight, its in zip(outputs[1:], frozen, strict=True) if its],
        )
        return outputs

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        x, *weights = given
        ctx.step.gradients(ctx.layer, x, [g for g, frozen in zip(weights, ctx.frozen, strict=True) if not frozen])
        device, is_wanted = ctx.token
        return None, None, None, x, torch.zeros(0, device=device) if is_wanted else None, *[None for _ in weights]


class _Leave(torch.autograd.Function):
    """Identity. Backward: the layer's phase begins."""

    @staticmethod
    def forward(ctx: Any, step: OffloadedStep, i: int, y: Tensor) -> Tensor:
        ctx.step, ctx.layer = step, i
        return y.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.step.come_back(ctx.layer)
        return None, None, *gradients
