"""The parameters that a run trains are fixed when it begins. User code may change the model later: it is found here.

All that a replica does to a gradient (sums over replicas, clipping, precision, checkpoints) is set up once, for the
parameters that require gradients then. A parameter that comes later would be trained by each replica alone, or not at
all. So the run ends, and says why. A parameter of the set may be frozen, and may require gradients again.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from operator import is_
from typing import Any

from torch import Size, Tensor, nn, strided
from torch.optim import Optimizer

from ...compat.dispatch import tree_leaves, tree_map_only
from ...compat.modules import buffers_in, registered, saved_buffers
from ...compat.storages import storage_key
from ...strategies.core.memory_format import keep_layout
from .errors import ChangedModelError


class TrainedSet:
    """A model's parameters as they are now. `check` costs 0.1 us for each parameter and module."""

    def __init__(self, module: nn.Module, optimizer: Optimizer | None = None, vectors: "Vectors | None" = None) -> None:
        """Takes the model before, or after, the sync mode is prepared.

        Args:
            optimizer: The optimizer that user code holds, if it holds one.
            vectors: The memory in which the sync mode keeps the parameters.
        """
        self._module, self._optimizer, self._vectors = module, optimizer, vectors
        self._given = _stepped(optimizer) if optimizer is not None else set()
        self._known = {name: each for name, each in module.named_parameters()}
        self._forms = [(name, each, each.dtype, each.shape) for name, each in self._known.items()]
        self._frozen = [(name, each) for name, each in self._known.items() if not each.requires_grad]
        self._trained = {id(each) for each in self._known.values() if each.requires_grad}
        self.look()
        if optimizer is not None:
            self._check_groups(optimizer, "since step 0")

    def accept(self, optimizer: Optimizer) -> None:
        """Knows what the optimizer steps with now: a sync mode may put shards in the place of parameters."""
        stepped = _stepped(optimizer)
        self._trained = self._trained if stepped == self._given else stepped

    def look(self) -> None:
        """Finds the modules' registries as they are now."""
        dicts = [registered(each) for each in self._module.modules()]
        self._registries = [each for its in dicts for each in its]
        self._sizes, self._objects = _contents(self._registries)

    def check(self, since: str) -> None:
        """Checks the parameters after the passes of a step, before its update.

        Args:
            since: Words for when they changed, if they did: "since step 3".

        Raises:
            ChangedModelError: One came or went, is another tensor, or has another form.
        """
        sizes, objects = _contents(self._registries)
        if sizes != self._sizes or not all(map(is_, objects, self._objects)):
            self._check_names(since)
            self.look()  # other modules, which have no parameters
        for name, each in self._frozen:
            if each.requires_grad:
                raise ChangedModelError(
                    f"model: parameter {name} requires gradients {since}, and did not when the run began: "
                    "replicas would train it apart. Have it require gradients at first, and freeze it in the first "
                    "forward pass (in a wrapped script: after wrap)"
                )
        for name, each, dtype, shape in self._forms:
            if each.dtype != dtype:
                raise ChangedModelError(
                    f"model: parameter {name} is {each.dtype} {since}, and was {dtype} when the run began. "
                    "Choose the dtype when the model is built, or precision=bf16."
                )
            if each.shape != shape:
                raise ChangedModelError(
                    f"model: parameter {name} is {list(each.shape)} {since}, and was {list(shape)} when the run began. "
                    "Choose the shape in the constructor, or nn.LazyLinear."
                )
        if self._vectors is not None:
            self._vectors.restore()
        if self._optimizer is not None:
            self._check_groups(self._optimizer, since)

    def _check_names(self, since: str) -> None:
        now = dict(self._module.named_parameters())
        for name in dict.fromkeys([*self._known, *now]):
            old, new = self._known.get(name), now.get(name)
            if old is not new:
                what = "is new" if old is None else "is gone" if new is None else "is another tensor"
                raise ChangedModelError(
                    f"model: parameter {name} {what} {since}: the run trains those that the model had when it began. "
                    "Build all modules in the constructor (nn.LazyLinear finds shapes), and change values in place"
                )

    def _check_groups(self, optimizer: Optimizer, since: str) -> None:
        for group in optimizer.param_groups:
            for each in group["params"]:
                if each.requires_grad and id(each) not in self._trained:
                    raise ChangedModelError(
                        f"optimizer: has a parameter of shape {list(each.shape)} {since} that no replica knows of. "
                        "Have the model hold it, require its gradient, and give it to the optimizer before the run "
                        "begins"
                    )


class FixedState(TrainedSet):
    """A model's parameters, and the shapes of its saved buffers: evaluations and checkpoints need the same ones."""

    def __init__(self, module: nn.Module, vectors: "Vectors | None" = None) -> None:
        super().__init__(module, vectors=vectors)
        self._saved = {name: each.shape for name, each in saved_buffers(module)}

    def look(self) -> None:
        super().look()
        self._buffers = [buffers_in(each) for each in self._module.modules()]
        self._shapes = _shapes_in(self._buffers)

    def check(self, since: str) -> None:
        modules = self._registries
        super().check(since)
        if modules is not self._registries or _shapes_in(self._buffers) != self._shapes:
            self._check_buffers(since)
            self.look()  # buffers that nobody saves

    def _check_buffers(self, since: str) -> None:
        now = {name: each.shape for name, each in saved_buffers(self._module)}
        for name in dict.fromkeys([*self._saved, *now]):
            was, its = (list(each[name]) if name in each else "nothing" for each in (self._saved, now))
            if was != its:
                raise ChangedModelError(
                    f"model: saved buffer {name} is {its} {since}, and was {was} when the run began: "
                    "evaluations and checkpoints need those of the constructor. Make it there with that shape, or "
                    "choose persistent=False"
                )


def _shapes_in(registries: Sequence[dict[str, Tensor | None]]) -> list[Size | None]:
    return [None if each is None else each.shape for its in registries for each in its.values()]


class Vectors:
    """Follows the memory of parameters in sync modes that exchange vectors, of which the parameters are views.

    User code may put other memory under a parameter (`p.data = ...`, `model.to`). The vector then gets the new values,
    and the parameter is a view of it again. Otherwise the sync mode would exchange old values.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        """Takes the parameters before the sync mode is prepared."""
        self._before = [(each, each.data_ptr()) for each in parameters]
        self._views: list[tuple[nn.Parameter, Tensor, int]] = []  # parameter, its view of a vector, and where that is

    def accept(self) -> None:
        """Knows the memory that the sync mode has moved parameters to."""
        moved = [each for each, place in self._before if each.data_ptr() != place]
        self._views = [(each, each.data, each.data_ptr()) for each in moved]

    def restore(self) -> None:
        for each, view, place in self._views:
            if each.data_ptr() != place:
                view.copy_(each.data)
                each.data = view


def keep_memory(optimizer: Optimizer) -> None:
    """Has the parameters of a user's optimizer stay in their memory, where a sync mode or a server has views of it: an
    optimizer may put other memory under a parameter (`p.data = p.data - lr * p.grad`). A gradient that it keeps in its
    state (`state["before"] = p.grad`) is copied there, as the next one may come into the same memory. State that any
    optimizer loads gets the memory format of its parameters.
    """
    keep_layout(optimizer)
    if type(optimizer).__module__.startswith(("torch.", f"{__name__.partition('.')[0]}.")):
        return
    kept: list[tuple[Tensor, Tensor, Tensor | None]] = []

    def before(*_: object) -> None:
        kept[:] = [(each, each.data, each.grad) for group in optimizer.param_groups for each in group["params"]]

    def after(*_: object) -> None:
        for each, data, gradient in kept:
            if each.data_ptr() != data.data_ptr():
                data.copy_(each.data)
                each.data = data
            state = optimizer.state.get(each)
            if isinstance(state, dict) and gradient is not None and gradient.layout is strided:
                storage = storage_key(gradient)
                for key, value in state.items():
                    if any(
                        _is_in(storage, leaf) for leaf in tree_leaves(value)
                    ):  # others stay the objects that they are
                        state[key] = tree_map_only(Tensor, partial(_copied, storage), value)
        kept.clear()

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


def _is_in(storage: int, value: object) -> bool:
    return isinstance(value, Tensor) and value.layout is strided and storage_key(value) == storage


def _copied(storage: int, value: Tensor) -> Tensor:
    """Returns a tensor itself, or a copy if its memory is `storage`."""
    return value.detach().clone() if _is_in(storage, value) else value


def _stepped(optimizer: Optimizer) -> set[int]:
    return {id(each) for group in optimizer.param_groups for each in group["params"]}


def _contents(registries: Sequence[dict[str, Any]]) -> tuple[list[int], list[Any]]:
    """Returns the sizes of the registries, and all that is in them."""
    return [*map(len, registries)], [*chain.from_iterable(each.values() for each in registries)]
