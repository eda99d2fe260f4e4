"""One worker of each host builds the model, and the others use its tensors, so that a host holds one whole model.

Every worker needs the whole model before it takes its own part of it. If each built its own, eight workers of a host
would hold eight. The protocol, among the workers and servers of one host, of which the first is the leader:

    leader     builds the model and copies its tensors to a file in memory (comm/shared_memory.py), one after the
               other. It keeps those of the file and frees the first ones. It posts where the file is, a digest of the
               names and layout of the tensors, and the state of torch's random generator.
    follower   builds the model on the meta device and maps the file in place of its tensors. A page that it writes to
               becomes a copy of its own. It sets its random generator, and posts that it is done.
    leader     closes the file once all have posted. The memory is freed when no process has a tensor in it. On a CPU
               a worker copies what it keeps (`leave_file`).

So all have the same values, ties between tensors, and next random numbers as if each had built its own. A follower
builds its own if it cannot open the file, if its tensors are laid out otherwise, or if building left a tensor where
this module does not look, such as in a list. All build their own if

    the model has fewer than `LEAST` bytes, or does not build on the meta device
    it has a tensor that is more than strided values (hooks of its gradient, a conjugate view), or a random generator
    its first weights depend on the replica, or on training samples
    all workers are in one process
"""

import gc
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from hashlib import sha256
from itertools import chain
from mmap import mmap

import torch
from torch import Tensor, nn
from torch.utils import swap_tensors

from ...comm import Comm
from ...comm.errors import FabricError
from ...comm.shared_memory import GIB, GrowingFile, open_copied
from ...compat.storages import has_hooks, storage_key
from ...strategies.core.protocols import SideBySide
from ...tasks.models.unsupervised import Unsupervised
from ..base import memory
from ..base.caches import without_meta
from ..config import looking
from ..features.feature import Parts

LEAST = memory.BUILT_ONCE
ALIGNED = 64  # bytes, as torch aligns its own tensors


def built(parts: Parts, comm: Comm, build: Callable[[], nn.Module]) -> nn.Module:
    """Returns the whole model as `build` makes it. All workers and servers of the run call this.

    Raises what `build` raises, and `HangError` or `PeerLostError` for a worker of this host that is missing.
    """
    if parts.fabric.modelled:  # one process; and each worker's list of all hosts is quadratic in the workers
        return build()
    hosts = comm.hosts
    here = [rank for rank, host in enumerate(hosts) if host == hosts[comm.rank]]
    if len(here) == 1 or not _is_shared(parts):
        return build()
    leader, *followers = here
    if comm.rank == leader:
        return _lead(comm, build, followers)
    return _follow(parts, comm, build, leader)


def leave_file(module: nn.Module) -> None:
    """Gives the tensors of `module` that are in a file memory of their own."""
    tensors = [each for each in _by_name(module).values() if type(each) in (Tensor, nn.Parameter) and not each.is_cuda]
    for its in _by_storage(tensors):
        if not (storage := its[0].untyped_storage()).resizable():
            own = storage.clone()
            for each in its:
                each.data = _laid_out(own, each)


def _is_shared(parts: Parts) -> bool:
    """Returns the same on every worker of the run."""
    if memory.held(_by_name(parts.model).values()) < LEAST:
        return False
    by_replica = parts.experiment.weights is not None and isinstance(parts.sync, SideBySide)
    if by_replica or isinstance(parts.model, Unsupervised):
        return False
    return looking.tried(parts.experiment) is looking.Tried.META and _is_plain(parts.model)


def _is_plain(model: nn.Module) -> bool:
    """Returns whether strided values are all that there is of its tensors, and it draws from torch's own generator."""
    tensors = _by_name(model).values()
    values = chain.from_iterable(vars(layer).values() for layer in model.modules())
    return not any(isinstance(value, torch.Generator) for value in values) and all(map(_is_values, tensors))


def _is_values(tensor: Tensor) -> bool:
    strided = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided and not tensor.is_quantized
    return strided and tensor.is_leaf and not (has_hooks(tensor) or tensor.is_conj() or tensor.is_neg())


# -- the two roles


def _lead(comm: Comm, build: Callable[[], nn.Module], followers: list[int]) -> nn.Module:
    model = build()
    told = {"place": ""}
    with ExitStack() as opened:
        with suppress(OSError):  # no memory, or no such files: the tensors that have moved stay in the file
            if _is_plain(model):
                layout = _Layout(model)
                file = GrowingFile(layout.size)
                opened.callback(file.close)
                _move_into(file, layout)
                random = torch.get_rng_state().numpy().tobytes().hex()
                told = {"place": file.place, "digest": layout.digest, "random": random}
        comm.key_values.post(f"model/{comm.rank}", json.dumps(told))
        for rank in followers:
            comm.key_values.read(f"model/{rank}", rank)
    return model


def _move_into(file: GrowingFile, layout: "_Layout") -> None:
    whole, freed = file.copied(), 0
    for offset, tensors in layout.storages:
        source = torch.empty(0, dtype=torch.uint8).set_(tensors[0].untyped_storage())
        file.write(offset, source.numpy().data)
        for tensor in tensors:
            tensor.data = _placed(whole, offset, tensor)
        freed += len(source)
        if freed >= GIB:
            del source
            memory.give_back()
            freed = 0
    memory.give_back()


def _follow(parts: Parts, comm: Comm, build: Callable[[], nn.Module], leader: int) -> nn.Module:
    told = json.loads(comm.key_values.read(f"model/{leader}", leader))
    model = _mapped(parts, told["place"], told["digest"]) if told["place"] else None
    comm.key_values.post(f"model/{comm.rank}", "")
    if model is None:
        return build()
    torch.set_rng_state(torch.frombuffer(bytearray.fromhex(told["random"]), dtype=torch.uint8))
    return model


def _mapped(parts: Parts, place: str, digest: str) -> nn.Module | None:
    """Returns the model with the leader's tensors, or None where that cannot be."""
    before = _alive()
    try:
        with without_meta(parts.allowed), torch.device("meta"):
            model = parts.make_model()
        if not _is_plain(model) or (layout := _Layout(model)).digest != digest:
            return None
        whole = open_copied(place, layout.size)
        for offset, tensors in layout.storages:
            for tensor in tensors:
                _put_in_place(tensor, _placed(whole, offset, tensor))
    except (FabricError, OSError, RuntimeError, ValueError):
        return None
    gc.collect()
    known = {id(each) for each in chain(before, _by_name(model).values())}
    return model if all(id(each) in known for each in _alive()) else None


def _put_in_place(tensor: Tensor, values: Tensor) -> None:
    """Gives `tensor`, which stays the same object, these values and their memory."""
    learns = tensor.requires_grad
    new = nn.Parameter(values, learns) if isinstance(tensor, nn.Parameter) else values.requires_grad_(learns)
    vars(new).update(vars(tensor))
    swap_tensors(tensor, new)


def _alive() -> list[Tensor]:
    """Returns all tensors of this process."""
    return [each for each in gc.get_objects() if issubclass(type(each), Tensor)]


# -- where tensors are in the file


class _Layout:
    """The places of a model's tensors in a file. Tensors that share memory share it there, too.

    storages: the first byte of each stretch of memory, and the tensors in it.
    size: bytes of the file.
    digest: tells apart two models that differ in a name, a shape, a tie or anything else that the places depend on.
    """

    def __init__(self, model: nn.Module) -> None:
        tensors = _by_name(model)
        self.storages: list[tuple[int, list[Tensor]]] = []
        self.size = 1
        for its in _by_storage(tensors.values()):
            start = -(-self.size // ALIGNED) * ALIGNED
            self.storages.append((start, its))
            self.size = start + its[0].untyped_storage().nbytes()
        numbers = {id(each): i for i, each in enumerate(chain.from_iterable(its for _, its in self.storages))}
        places = {id(each): start for start, its in self.storages for each in its}
        said = [
            (
                *(name, numbers.get(id(each)), places.get(id(each)), each.storage_offset(), each.requires_grad),
                *(type(each).__name__, str(each.dtype), list(each.shape), each.stride()),
            )
            for name, each in tensors.items()
        ]
        self.digest = sha256(json.dumps([self.size, said]).encode()).hexdigest()


def _by_storage(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Returns the tensors, each once, in groups that share memory."""
    found: dict[int, list[Tensor]] = {}
    for tensor in {id(each): each for each in tensors}.values():
        found.setdefault(storage_key(tensor), []).append(tensor)
    return list(found.values())


def _by_name(model: nn.Module) -> dict[str, Tensor]:
    """Returns parameters, buffers and tensors that are plain attributes of a layer, each under all of its names."""
    parameters, buffers = model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    return dict(chain(parameters, buffers, _plain(model)))


def _plain(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, layer in model.named_modules():
        for own, value in vars(layer).items():
            if isinstance(value, Tensor):
                yield f"{name}.{own}", value


def _placed(whole: mmap, offset: int, like: Tensor) -> Tensor:
    """Returns a tensor laid out as `like`, whose storage begins at `offset` of `whole`."""
    nbytes = like.untyped_storage().nbytes()
    if not nbytes:
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
    return _laid_out(torch.frombuffer(whole, dtype=torch.uint8, count=nbytes, offset=offset).untyped_storage(), like)


def _laid_out(storage: torch.UntypedStorage, like: Tensor) -> Tensor:
    return torch.empty(0, dtype=like.dtype).set_(storage, like.storage_offset(), like.shape, like.stride())
