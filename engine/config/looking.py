"""Models that look at values: `.item()`, `if x.max() > 1`, masks, routing, NumPy.

A plan builds the model and takes its passes on the meta device, where tensors have shapes and no values. A model that
fails there is tried again: built for real and moved there, which serves a constructor that looks at values; then wholly
on real tensors, with a few samples of the data. What fails there, too, is refused.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import IntEnum
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy

from ...batches import Samples, call
from ...comm.shared_memory import GIB, available
from ...compat.dynamo import without_dynamo
from ...conf.errors import ConfigError
from ...strategies import Strategy
from ...strategies.core.copies import without_data
from ...strategies.core.foreign import foreign_to
from ...strategies.core.staged import StagedStrategy
from ...tasks.base import Readable
from ..base.blame import said
from ..base.caches import without_meta
from ..base.failures import speaks_for_itself
from ..base.meta import Repeats
from .experiment import Experiment
from .fits import NotTakenError, model_takes, weighted
from .targets import load_maker

OF_LEAF = "a leaf Variable that requires grad"  # torch's refusal to change one in place begins so
SAMPLES = 8  # of which a pass is tried for real
T = TypeVar("T")


class Tried(IntEnum):
    """The tensors on which a model is tried."""

    META = 0
    BUILT = 1  # built for real, tried on the meta device
    REAL = 2


class NoRoomError(ConfigError):
    """A model that is built for real does not fit into this host's memory."""


_held: set[tuple[str, ...]] = set()  # models that use parameters of their own alone
_known: dict[str, tuple[Tried, str]] = {}  # of what failed before in this process: what to try, and what was said
_bytes: dict[str, int] = {}  # of the weights of models that were built


def tried(experiment: Experiment) -> Tried:
    return _known.get(_key(experiment), (Tried.META, ""))[0]


def why(experiment: Experiment) -> str:
    """Returns the operation of the model that needed values."""
    return _known.get(_key(experiment), (Tried.META, ""))[1]


def _key(experiment: Experiment) -> str:
    """A loss may need values where its model does not: the task counts."""
    return repr((experiment.model, experiment.data, experiment.task, experiment.choice("adapt")))


def built(experiment: Experiment, make_model: Callable[[], nn.Module]) -> nn.Module:
    """The model to try: on the meta device, but where it is to be tried on real tensors. Raises as `make_model`."""
    if tried(experiment) is Tried.META:
        model, error = on_meta(make_model)
        if error is not None:
            _known[_key(experiment)] = Tried.BUILT, _said(error)
        _bytes[_key(experiment)] = sum(each.nbytes for each in model.parameters() if not is_lazy(each))
        return model
    _check_room(experiment)
    model = _for_real(make_model)
    return model if tried(experiment) is Tried.REAL else without_data(model)


def _check_room(experiment: Experiment) -> None:
    """Raises `ConfigError` where this host cannot hold the weights, of which real passes make gradients besides."""
    weights, free = _bytes.get(_key(experiment), 0), available()
    if weights * tried(experiment) > free:
        raise ConfigError(
            f"model={experiment.model.name}: looks at values ({why(experiment)}), so that it is tried for real before "
            f"it trains. Its weights take {weights / GIB:,.1f} GiB, and passes as much for gradients; this host has "
            f"{free / GIB:,.1f} GiB free. Choose a smaller one, or a host with more memory."
        )


def on_meta(make_model: Callable[[], nn.Module]) -> tuple[nn.Module, Exception | None]:
    """The model on the meta device, and why it had to be built for real first. Raises as `make_model`."""
    try:
        with torch.device("meta"), without_dynamo(), Repeats():  # the first draws of weights are left out
            return make_model(), None
    except Exception as error:
        if not _is_of_users(error):
            raise
        try:
            return without_data(_for_real(make_model)), error
        except NoRoomError:
            raise
        except Exception as again:
            raise (again if "meta" in str(error).lower() else error) from error.__cause__


def _for_real(make_model: Callable[[], nn.Module]) -> nn.Module:
    """Raises `NoRoomError` as soon as its parameters take more than this host has free."""
    free, held = available(), 0

    def add(_: nn.Module, name: str, parameter: Tensor | None) -> None:
        nonlocal held
        held += 0 if parameter is None or is_lazy(parameter) else parameter.nbytes
        if held > free:
            raise NoRoomError(
                f"model: its constructor looks at values, so that it is built for real before it trains. Up to {name} "
                f"its weights take {held / GIB:,.1f} GiB, and this host has {free / GIB:,.1f} GiB free. Choose a "
                "smaller one, or a host with more memory."
            )

    counting = register_module_parameter_registration_hook(add)
    try:
        with torch.random.fork_rng(devices=[]):
            return make_model()
    finally:
        counting.remove()


def _is_of_users(error: Exception) -> bool:
    """Returns True for an error that is not ours and not about a lack of the machine."""
    cause = error.__cause__ if isinstance(error, ConfigError) else error
    return isinstance(cause, Exception) and not speaks_for_itself(cause)


def _said(error: Exception) -> str:
    cause = error.__cause__ if error.__cause__ is not None else error
    if "on the expected device" in str(cause):  # torch says meta, and the user's code knows of no such device
        return (
            "it makes a tensor without device=x.device, x its input, and would need that on a GPU, too; or the loss "
            "keeps a tensor, which `.to(outputs.device)` moves"
        )
    return said(cause)


def on_values_where_needed(experiment: Experiment, attempt: Callable[[], T], allowed: tuple[str, ...]) -> T:
    """`attempt()`, which passes the model a batch; again with more values where the model does not take it."""
    with suppress(Exception):  # the attempt tells; what its module keeps before is known from here on
        load_maker("model", experiment.model.target, nn.Module, allowed)
    first: NotTakenError | None = None
    while True:
        level = tried(experiment)
        try:
            with without_meta(allowed):
                return attempt()
        except Exception as error:
            if level is Tried.REAL or not isinstance(error, NotTakenError):
                raise _telling(experiment, first, error) from error.__cause__
            first = first or error
            # an attempt that failed in its constructor has gone further by itself; one within it may have begun anew
            _known[_key(experiment)] = Tried(min(max(level, tried(experiment)) + 1, Tried.REAL)), _said(first)


def _telling(experiment: Experiment, first: NotTakenError | None, error: Exception) -> Exception:
    """Returns the more telling error of the first failure and the last one."""
    if first is None:
        return error
    _known.pop(_key(experiment), None)
    is_of_meta = "meta" in str(first).lower()
    return error if is_of_meta or type(error) is ConfigError else first


def check_strategy(
    experiment: Experiment,
    strategy: Strategy,
    model: nn.Module,
    train: Callable[[], Readable],
    allowed: tuple[str, ...],
) -> None:
    """Refuses a strategy that needs shapes without values, for a model that takes real samples of `train`.

    Raises `ConfigError`, or `NotTakenError` where the model does not take them either.
    """
    if tried(experiment) is not Tried.REAL:
        return
    if strategy.setting.privacy is None and not strategy.traits.needs_shapes and strategy.parts == 1:
        return
    size = experiment.batch_size
    passed = min(strategy.micro_sizes(size)) if isinstance(strategy, StagedStrategy) else size
    inputs, _ = real_batch(train(), min(SAMPLES, passed))
    with model_takes(experiment, inputs, allowed), torch.random.fork_rng(devices=[]):
        call(model, inputs)
    if strategy.setting.privacy is not None:
        raise ConfigError(
            f"privacy={experiment.choice('privacy').name}: computes each sample's gradient by torch.func, and "
            f"model={experiment.model.name} looks at values ({why(experiment)}). Choose privacy=none."
        )
    if OF_LEAF in why(experiment):  # each stage's input is one, and the whole model's is none
        raise ConfigError(
            f"strategy={experiment.strategy.name}: a stage begins with a layer of model={experiment.model.name} that "
            "changes its input in place. Choose another strategy.cut, or let the layer compute a new tensor."
        )
    raise ConfigError(
        f"strategy={experiment.strategy.name}: computes the shapes of its tensors without values, and "
        f"model={experiment.model.name} looks at values ({why(experiment)}). Choose strategy=data_parallel, torch_ddp, "
        "torch_fsdp or zero."
    )


def real_batch(train: Readable, size: int) -> tuple[Samples, Samples]:
    """The first samples of the training split, inputs and targets."""
    taken = train.take(slice(0, min(size, len(train))))
    return taken.inputs, weighted(taken.targets, taken.weights)


# -- parameters outside of the model, as in a global of its module


def second(experiment: Experiment, model: nn.Module, make_model: Callable[[], nn.Module]) -> nn.Module | None:
    """Returns another model beside `model`, as a run builds one to evaluate weights in; None of a model of ours, or if
    one was held to `check_held` before.

    Raises `ConfigError` where the two have a parameter in common.
    """
    if experiment.model.target.startswith(f"{__name__.partition('.')[0]}.") or _passes(experiment, model) in _held:
        return None
    made = built(experiment, make_model)
    names = {id(each): name for name, each in model.named_parameters() if each.requires_grad}
    if shared := next((names[id(each)] for each in made.parameters() if id(each) in names), None):
        raise ConfigError(
            f"model={experiment.model.name}: its constructor takes {shared} from outside, so that a second model has "
            "the same parameter. A run builds several models. Create the parameter in the constructor."
        )
    return made


def check_held(experiment: Experiment, modules: Iterable[nn.Module], end: Tensor) -> None:
    """Raises `ConfigError` where a pass depends on parameters of no module. `end`: of the pass."""
    if foreign := foreign_to(modules, end):
        raise ConfigError(
            f"model={experiment.model.name}: its forward uses a parameter of shape {list(foreign[0].shape)} that the "
            "model does not hold, so that nothing would train or save it. Make it an attribute of the model and use "
            "that, or call requires_grad_(False) on it."
        )


def note_held(experiment: Experiment, model: nn.Module) -> None:
    """The model's passes were held to `check_held`."""
    _held.add(_passes(experiment, model))


def _passes(experiment: Experiment, model: nn.Module) -> tuple[str, ...]:
    """Returns a key of the passes of a model, which may become another one in mid-run."""
    return _key(experiment), *(name for name, _ in model.named_parameters())


def notes_on(experiment: Experiment) -> list[str]:
    if tried(experiment) is not Tried.REAL:
        return []
    return [
        f"model={experiment.model.name}: looks at values ({why(experiment)}). The plan gave it {SAMPLES} samples of "
        "the data, and its bytes of activations follow from theirs"
    ]
