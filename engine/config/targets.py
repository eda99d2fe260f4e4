"""Makes an object of a choice's `_target_`, with everything about it checked first.

A configuration may come from anywhere, so what it names is held to three rules before it is called: the module is ours,
torch.nn's or torch.optim's, or one that the user allowed; it names a class; the class is of the type that the group
demands. Of a model it may name a function, whose annotation says that it returns such a class: torchvision's and timm's
models are functions. Then its knobs are held to the types and ranges in its own signature.
"""

import copy
import difflib
import importlib
import inspect
import json
import math
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from types import FunctionType, ModuleType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from annotated_types import Ge, Le, Lt
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError
from torch import Tensor

from ...conf.errors import ConfigError, of_part
from ...conf.groups import BY_NAME, CALLBACKS, ConfigGroup
from ...tasks.data.torch_dataset import OWN, OfDataset, is_dataset, of_dataset
from ...tracking.redact import shown
from ..base.blame import place, said
from ..base.failures import first_line_of, speaks_for_itself
from .choice_files import choices_of
from .experiment import Choice, explain
from .hints import elsewhere
from .moved import moved

T = TypeVar("T")

# What torch's optimizers check themselves, without saying the rule
_Rate = Annotated[float, Ge(0)]
_Decay = Annotated[float, Ge(0), Lt(1)]
_OF_OPTIMIZERS: dict[str, Any] = {
    **dict.fromkeys(("lr", "momentum", "weight_decay", "eps", "lr_decay", "initial_accumulator_value"), _Rate),
    "betas": tuple[_Decay, _Decay],
    "alpha": _Rate,
    "rho": Annotated[float, Ge(0), Le(1)],
}
MAY_BE_MADE = ("model",)  # groups of which a function may make an object
_STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True, allow_inf_nan=False)
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_OPERATOR = re.compile(r"operator \w+::\w+ does not exist")  # of a library that was built for another torch


def check_target(group: str, target: str, allowed: tuple[str, ...]) -> None:
    """Refuse, without importing anything, a target outside the modules that `group` may name."""
    if not _DOTTED.fullmatch(target):
        raise ConfigError(f"{group}._target_={target}: must be module.Class")
    modules = (*_of_table(group).modules, *allowed)
    if not any(target.startswith(f"{module}.") for module in modules):
        raise ConfigError(
            f"{group}._target_={target}: must name a class in {', '.join(modules)}; "
            f"for a module of your own: --allow-module {target.split('.')[0]}"
        )


def load_class(group: str, target: str, base: type[T], allowed: tuple[str, ...]) -> type[T]:
    """The class that `target` names. Raises `ConfigError` unless it is a `base`."""
    found = _named(group, target, base, allowed)
    if not (isinstance(found, type) and issubclass(found, base)):
        what = f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"
        says = ", or a function that says so of what it returns (-> Module)" if group in MAY_BE_MADE else ""
        raise ConfigError(f"{group}._target_={target}: is {what}; must be a class {_derived(group, base)}{says}")
    if inspect.isabstract(found):
        lacks = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
        raise ConfigError(f"{group}._target_={target}: lacks {lacks}; must be a class {_derived(group, base)}")
    return found


def load_maker(group: str, target: str, base: type[T], allowed: tuple[str, ...]) -> Callable[..., T]:
    """Returns the class, or a function that is annotated to return a `base`, if the group takes one.

    Raises `ConfigError`.
    """
    found = _named(group, target, base, allowed) if group in MAY_BE_MADE else None
    if isinstance(found, FunctionType):
        result = _hints(found).get("return")
        if isinstance(result, type) and issubclass(result, base):
            return found
    return load_class(group, target, base, allowed)


def check_label(group: str, section: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    """`section`: describes a choice with its class and a `name`. Raises `ConfigError` if the class takes one, too: the
    name is what tables call the choice.
    """
    maker = load_maker(group, section["_target_"], base_of(group), allowed)
    if "name" in _signature(maker).parameters:
        raise ConfigError(
            f"{group}.name={section['name']}: is what tables call this choice, and {maker.__name__} takes a `name`, "
            f"too. Add +{group}.name={section['name']} for that one."
        )


def _named(group: str, target: str, base: type, allowed: tuple[str, ...]) -> object:
    if (now := moved(target)) != target:
        raise ConfigError(f"{group}._target_={target}: is called {now} now")
    check_target(group, target, allowed)
    module_name, _, name = target.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"{group}._target_={target}: cannot import {module_name}: {error}{_near_module(error)}"
        ) from None
    except Exception as error:
        if speaks_for_itself(error):
            raise
        where = place(error, (module_name.partition(".")[0],))
        built = f"; was it built for torch {torch.__version__}, which is here?" if _OPERATOR.search(str(error)) else ""
        raise ConfigError(
            f"{group}._target_={target}: cannot import {module_name}: {said(error)}{where and f', in {where}'}{built}"
        ) from error
    found = getattr(module, name, None)
    if found is None:
        raise ConfigError(f"{group}._target_={target}: the module {_near_class(module, name, base)}")
    return found


def _signature(maker: Callable[..., object]) -> inspect.Signature:
    """Returns the parameters of a constructor or a function."""
    return _signature_by(maker, _own_function(maker))


@lru_cache(maxsize=1000)
def _signature_by(maker: Callable[..., object], function: Callable[..., object]) -> inspect.Signature:
    plain = isinstance(maker, type) and function is object.__init__ and maker.__new__ is object.__new__
    if plain and not hasattr(maker, "__signature__"):
        return inspect.Signature()  # inspect would parse the text of object's own, in some milliseconds
    return inspect.signature(maker)


def _own_function(maker: Callable[..., object]) -> Callable[..., object]:
    return maker.__init__ if isinstance(maker, type) else maker


@lru_cache(maxsize=1000)
def _hints(function: Callable[..., object]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError:  # a signature that names what its module does not import: nothing to check against
        return {}


def base_of(group: str) -> type:
    """The class that each choice of the group must derive from."""
    module, _, name = _of_table(group).base.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _derived(group: str, base: type) -> str:
    """Says which base a class of the group needs, and which page shows one."""
    needed = ", ".join(sorted(getattr(base, "__abstractmethods__", ())))
    with_these = f" with {needed}" if needed else ""
    entry = _of_table(group)
    example = f"; {entry.example}" if entry.example else ""
    return f"derived from {entry.base}{with_these}{example}"


def _of_table(group: str) -> ConfigGroup:
    """Returns the group's entry. Of `callbacks.early_stop` it is that of all callbacks."""
    root = group.partition(".")[0]
    return CALLBACKS if root == CALLBACKS.name else BY_NAME[root]


def _near_module(error: ImportError) -> str:
    """Returns the words for the modules whose names are like one that is not there."""
    parent, _, name = (error.name or "").rpartition(".")
    paths = getattr(sys.modules.get(parent), "__path__", None)
    if not isinstance(error, ModuleNotFoundError) or paths is None:
        return ""
    close = difflib.get_close_matches(name, [each.name for each in pkgutil.iter_modules(paths)], n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(f'{parent}.{each}' for each in close)}?" if close else ""


def _near_class(module: ModuleType, name: str, base: type) -> str:
    classes = [
        each
        for each, found in vars(module).items()
        if isinstance(found, type) and issubclass(found, base) and not inspect.isabstract(found)
    ]
    own = [each for each in classes if vars(module)[each].__module__ == module.__name__] or classes
    close = difflib.get_close_matches(name, own, n=3, cutoff=0.5)
    more = f" and {len(own) - 8} more" if len(own) > 8 else ""
    hint = (
        f"did you mean {' or '.join(close)}?"
        if close
        else f"it has {', '.join(sorted(own)[:8]) or 'none that fits'}{more}"
    )
    return f"{module.__name__} has no class {name}; {hint}"


def build(group: str, choice: Choice, base: type[T], allowed: tuple[str, ...], given: dict[str, Any]) -> T:
    """An object of the choice. `given`: what the engine itself passes, where the constructor has a place for it."""
    if group == "data" and is_dataset(dataset := _named(group, choice.target, base, allowed)):
        return _of_dataset(choice, dataset)  # pyright: ignore[reportReturnType]
    maker = load_maker(group, choice.target, base, allowed)
    signature = _signature(maker)
    _check_knobs(group, choice, maker, signature, set(given))
    choice = choice.model_copy(update={"knobs": {**choice.knobs, **_parts(group, choice, maker, allowed, given)}})
    passed = {name: value for name, value in given.items() if name in signature.parameters}
    try:
        made = maker(**passed, **choice.knobs)
    except Exception as error:
        where = place(error, allowed)
        is_of_knobs = isinstance(error, ValueError | TypeError | RuntimeError | AssertionError)
        is_of_knobs = is_of_knobs and not isinstance(error, RecursionError)
        if speaks_for_itself(error) or not (where or is_of_knobs):
            raise
        if not (is_of_knobs and choice.knobs):
            raise ConfigError(f"{group}={choice.name}: {where or choice.target}: {said(error)}") from error
        blamed = [name for name in choice.knobs if not _accepts(maker, {**passed, name: choice.knobs[name]})]
        knobs = ", ".join(f"{group}.{name}={shown(name, choice.knobs[name])!r}" for name in blamed or choice.knobs)
        raise ConfigError(f"{knobs}: {first_line_of(error)} ({where or choice.target})") from error
    if not isinstance(made, base):
        found = f"{choice.target} returned {type(made).__name__}"
        raise ConfigError(f"{group}={choice.name}: {found}; must return {base.__name__}")
    return made


def _parts(
    group: str, choice: Choice, maker: Callable[..., object], allowed: tuple[str, ...], given: dict[str, Any]
) -> dict[str, dict[str, object]]:
    """Builds the choices of the group in knobs of the type Mapping[str, CLASS]. Raises `ConfigError`."""
    found: dict[str, dict[str, object]] = {}
    for knob, hint in _hints(_own_function(maker)).items():
        if knob not in choice.knobs or (kind := _kind_of_parts(group, hint)) is None:
            continue
        sections, path = choice.knobs[knob], f"{group}.{knob}"
        if not isinstance(sections, dict) or not sections:
            raise ConfigError(f"{path}={sections}: must be choices of {group} by name. Choose {group}=A+B.")
        found[knob] = {}
        for name, section in sections.items():
            part = _part_choice(f"{path}.{name}", str(name), section)
            with _in_words_of(f"{path}.{name}"):
                cls = load_class(group, part.target, base_of(group), allowed)
            if not issubclass(cls, kind):
                rule = inspect.cleandoc(kind.__doc__ or "").partition(".")[0]
                raise ConfigError(
                    f"{group}={choice.name}: {name} cannot be a part. A part is {rule[:1].lower()}{rule[1:]}. Choose "
                    f"parts among {', '.join(_fitting(group, maker, knob, kind, given))}."
                )
            with _in_words_of(f"{path}.{name}"):
                # with copies of what it is given: some of that remembers
                found[knob][str(name)] = build(group, part, kind, allowed, copy.deepcopy(given))
    return found


def _kind_of_parts(group: str, hint: Any) -> type | None:
    if get_origin(hint) is not Mapping:
        return None
    kind = get_args(hint)[1]
    return kind if isinstance(kind, type) and issubclass(kind, base_of(group)) else None


def _part_choice(path: str, name: str, section: Any) -> Choice:
    if not isinstance(section, dict) or not isinstance(section.get("_target_"), str):
        raise ConfigError(
            f"{path}={section}: must be a choice with its _target_. Choose {path}.KNOB=VALUE, or "
            f"{path}={{_target_:MODULE.CLASS}}."
        )
    knobs = {str(key): value for key, value in section.items() if key != "_target_"}
    return Choice(name=name, target=section["_target_"], knobs=knobs)


@contextmanager
def _in_words_of(path: str) -> Iterator[None]:
    """Gives errors of a part the full keys of its knobs."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(of_part(error.text, path), error.about) from None


def _fitting(group: str, maker: Callable[..., object], knob: str, kind: type, given: dict[str, Any]) -> Iterator[str]:
    """Yields our choices of a group that may be parts, with the knobs of their files."""
    for choice in choices_of(group):
        if issubclass(load_class(group, choice.target, base_of(group), ()), kind):
            try:
                maker(**{knob: {choice.name: build(group, choice, kind, (), given)}})
            except ConfigError:
                continue
            yield choice.name


def _of_dataset(choice: Choice, dataset: Any) -> OfDataset:
    """Wraps a torch Dataset, whose own knobs are held to its signature."""
    signature = inspect.signature(dataset)
    own = {key: value for key, value in choice.knobs.items() if key in signature.parameters or key not in OWN}
    given = {"train"} if "train" in signature.parameters and "train" not in own else set[str]()
    _check_knobs("data", choice.model_copy(update={"knobs": own}), dataset, signature, given)
    return of_dataset(dataset, choice.knobs)


def _accepts(maker: Callable[..., object], arguments: dict[str, Any]) -> bool:
    try:
        maker(**arguments)
    except (ValueError, TypeError, RuntimeError, AssertionError):
        return False
    return True


def held_to(maker: Callable[..., object], knob: str) -> Any:
    """Returns the type that a value of the knob must have, with its bounds; None where nothing says it."""
    if maker.__module__.startswith("torch.optim.") and knob in _OF_OPTIMIZERS:
        return _OF_OPTIMIZERS[knob]
    return _hints(_own_function(maker)).get(knob)


def _check_knobs(
    group: str, choice: Choice, maker: Callable[..., object], signature: inspect.Signature, given: set[str]
) -> None:
    knobs = choice.knobs
    names = [name for name in signature.parameters if name not in given]
    takes_more = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
    for name, value in knobs.items():
        if (name in given or name not in names) and not (takes_more and group in MAY_BE_MADE):
            close = difflib.get_close_matches(name, names, n=3)
            hint = f"did you mean {' or '.join(close)}?" if close else elsewhere(f"{group}.{name}", choice=choice.name)
            hint = hint or f"valid: {', '.join(names) or 'none'}"
            if name in given and name in BY_NAME:
                hint = f"{name}=... chooses it"
            replaced = [its for its in choices_of(group) if its.name == choice.name and its.target != choice.target]
            if any(name in its.knobs for its in replaced):
                hint = f"{group}={choice.name} has it. Choose {group}={{_target_: {choice.target}}}, which replaces it"
            raise ConfigError(f"{group}.{name}: {maker.__name__} has no such parameter; {hint}")
        hint = held_to(maker, name)
        if hint is not None and name in names and _kind_of_parts(group, hint) is None:
            _check_type(f"{group}.{name}", value, hint)
    for name, parameter in signature.parameters.items():
        optional = parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        )
        if name not in knobs and name not in given and not optional:
            raise ConfigError(f"{group}.{name}: is missing; {maker.__name__} needs it")


def values_of(cls: type, knob: str) -> list[Any]:
    """The values that a knob may take, by its type: those of a Literal, false and true, a short range; else []."""
    hint = get_type_hints(cls.__init__, include_extras=True).get(knob)
    if get_origin(hint) in (Union, UnionType):  # ... | None, which leaves the choice to the class
        (hint,) = [member for member in get_args(hint) if member is not type(None)][:1]
    if hint is bool:
        return [False, True]
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    rules = {type(rule): rule for rule in get_args(hint)[1:]} if get_origin(hint) is Annotated else {}
    if Ge in rules and Le in rules and rules[Le].le - rules[Ge].ge < 8:
        return list(range(rules[Ge].ge, rules[Le].le + 1))
    return []


def _named_in(hint: Any) -> list[Any]:
    """The values of the Literals of a union."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else [hint]
    return [value for member in members if get_origin(member) is Literal for value in get_args(member)]


def _check_type(path: str, value: Any, hint: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value) and str(value) in _named_in(hint):
        return  # a knob whose type names nan, inf or -inf, as overrides and YAML write them
    if get_origin(hint) in (Union, UnionType):  # torch.optim's lr: float | Tensor; a file holds no tensors
        hint = Union[tuple(member for member in get_args(hint) if member is not Tensor)]  # noqa: UP007
    try:
        adapter = _adapter(hint, repr(hint))
    except TypeError:  # a user's own annotation that has no hash
        adapter = _adapter.__wrapped__(hint, repr(hint))
    if adapter is None:
        return
    try:
        adapter.validate_json(json.dumps(value))  # as JSON: a YAML list may stand for a tuple
    except ValidationError as error:
        raise ConfigError(explain(error, path) + _as_list(path, value, hint, adapter)) from None


def _as_list(path: str, value: Any, hint: Any, adapter: TypeAdapter[Any]) -> str:
    """Returns the words that show how to write `value` as the list that it must be; "" where that would be wrong too.

    A tuple of fixed length, such as [height, width], has the value in each place.
    """
    if isinstance(value, list | dict):
        return ""
    for member in get_args(hint) if get_origin(hint) in (Union, UnionType) else [hint]:
        bare = get_args(member)[0] if get_origin(member) is Annotated else member
        fixed = get_origin(bare) is tuple and Ellipsis not in get_args(bare)
        whole = [value] * (len(get_args(bare)) if fixed else 1)
        with suppress(ValidationError):
            adapter.validate_json(json.dumps(whole))
            return f". Choose {path}=[{','.join(str(shown(path, each)) for each in whole)}]."
    return ""


@lru_cache(maxsize=1000)
def _adapter(hint: Any, text: str) -> TypeAdapter[Any] | None:
    """Returns None for a type that pydantic does not know: the constructor decides.

    `text` is the hint as it is written. Unions that differ in the order of their members alone are equal.
    """
    try:
        return TypeAdapter(hint, config=_STRICT)
    except PydanticSchemaGenerationError:
        return None
