"""Reads the constructor of a class from its source. Nothing is imported: a module may be slow, or not allowed."""

import ast
import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path


@dataclass(frozen=True)
class Parameter:
    is_annotated: bool
    may_be_null: bool  # its default is None


def source_of(module: str) -> Path | None:
    """Returns the file of a module, None where there is none in Python."""
    spec = _spec(module)
    file = Path(spec.origin) if spec and spec.origin else None
    return file if file and file.suffix == ".py" else None


def _spec(module: str) -> ModuleSpec | None:
    if loaded := getattr(sys.modules.get(module), "__spec__", None):
        return loaded
    parent = module.rpartition(".")[0]
    if not parent:
        return PathFinder.find_spec(module)
    package = _spec(parent)
    if package is None or package.submodule_search_locations is None:
        return None
    return PathFinder.find_spec(module, list(package.submodule_search_locations))


def parameters_of(target: str) -> dict[str, Parameter]:
    """Returns the parameters of `module.Class` or `module.function` by name, {} where its file does not show them, nor
    that of which it imports the class.
    """
    seen: set[str] = set()
    while target and target not in seen:
        seen.add(target)
        module, _, name = target.rpartition(".")
        try:
            file = source_of(module)
            body = ast.parse(file.read_bytes()).body if file else []
        except (OSError, SyntaxError, ValueError, ImportError, RecursionError):
            return {}
        found = next(
            (each for each in body if isinstance(each, ast.ClassDef | ast.FunctionDef) and each.name == name), None
        )
        if found is not None:
            return _parameters(found)
        target = _imported(name, body, module, file)
    return {}


def _parameters(found: ast.ClassDef | ast.FunctionDef) -> dict[str, Parameter]:
    """Returns those of a function, or of the constructor of a class; {} for a class that has none of its own."""
    if isinstance(found, ast.ClassDef):
        inner = [each for each in found.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
        return _parameters(inner[0]) if inner else {}
    positional = [*found.args.posonlyargs, *found.args.args]
    defaults = [None] * (len(positional) - len(found.args.defaults)) + found.args.defaults
    every = [*zip(positional, defaults, strict=True), *zip(found.args.kwonlyargs, found.args.kw_defaults, strict=True)]
    return {
        arg.arg: Parameter(arg.annotation is not None, isinstance(default, ast.Constant) and default.value is None)
        for arg, default in every
        if arg.arg != "self"
    }


def _imported(name: str, body: list[ast.stmt], module: str, file: Path | None) -> str:
    """Returns the full name of what `from ... import` calls `name` in this module; "" where nothing is."""
    package = module.split(".") if file and file.name == "__init__.py" else module.split(".")[:-1]
    for each in body:
        if isinstance(each, ast.ImportFrom):
            above = package[: len(package) + 1 - each.level] if each.level else []
            for alias in each.names:
                if (alias.asname or alias.name) == name:
                    return ".".join([*above, *filter(None, [each.module]), alias.name])
    return ""
