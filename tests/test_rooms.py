"""The rooms hold what the design says: arrows between them go one way, each tool has one owner, every algorithm and
every choice can be had.
"""

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from needs import NEEDS, require
from own_files import NEEDS as NEEDS_OF_FILES
from own_files import OF_FILES

import paceline.strategies
from paceline import engine
from paceline.cli.choices import ListedChoice, groups, read_yaml
from paceline.exchange.aggregate import Aggregator
from paceline.exchange.compress import Compressor
from paceline.strategies import Strategy, Sync

ROOT = Path(__file__).parents[1]
BELOW = {  # room -> the rooms that it may import from, with the rooms in them
    "cli": {"advise", "lab", "sweep", "verify", "engine", "strategies", "exchange", "comm", "tasks", "tracking", "conf"}
    | {"compat", "cost"},
    "verify": {"batches", "engine", "strategies", "exchange", "tasks", "tracking", "conf"},
    "advise": {"sweep", "engine", "strategies", "exchange", "tasks", "tracking", "conf", "cost"},
    "lab": {"engine", "comm", "tracking", "conf", "compat"},
    "wrap": {"engine", "strategies", "exchange", "comm", "tracking", "conf", "compat"},
    "testing": {"strategies", "exchange", "comm", "conf", "batches"},
    "sweep": {"engine", "tracking", "compat", "conf"},
    "engine": {"strategies", "exchange", "comm", "tasks", "tracking", "conf", "compat", "cost", "batches"},
    "strategies": {"exchange", "strategies.core", "comm", "compat", "batches", "conf", "cost"},
    "exchange": {"strategies.core", "comm", "compat", "batches", "conf", "cost"},
    "strategies.core": {"comm", "compat", "batches", "conf", "cost"},
    "comm": {"compat"},
    "tasks": {"batches", "compat", "conf"},
    "batches": set(),
    "tracking": {"conf", "compat"},
    "conf": set(),
    "cost": set(),
    "compat": set(),
}
TOP = [room for room in BELOW if "." not in room]
ENGINE = (  # its rooms, each of which may import from those after it
    *("api", "jobs", "calibration", "launch", "training", "predict", "planning"),
    *("features", "callbacks", "fabrics", "config", "base"),
)
BELOW |= {
    f"engine.{room}": BELOW["engine"] | {f"engine.{lower}" for lower in ENGINE[place + 1 :]}
    for place, room in enumerate(ENGINE)
}
BELOW["engine"] |= {f"engine.{room}" for room in ENGINE}
OWNERS = {  # what is imported -> the files that may
    "deepspeed": [
        "strategies/zero.py",
        "strategies/external/deepspeed_start.py",
        "strategies/external/deepspeed_stages.py",
        "compat/deepspeed.py",
    ],
    "wandb": ["tracking/wandb*.py", "compat/wandb.py"],
    "mlflow": ["tracking/mlflow.py"],
    "torch.utils.tensorboard": ["tracking/tensorboard.py"],
    "opacus": ["compat/opacus.py"],
    "cryptography": ["exchange/secure/primitives.py"],
    "hydra": [*(f"engine/config/{name}.py" for name in ("compose", "swept", "typed")), "compat/hydra.py"],
    "optuna": ["sweep/study.py", "sweep/storage.py", "compat/optuna.py"],
    "torch.distributed": [
        "comm/*.py",
        "strategies/torch_*.py",
        "strategies/external/fsdp_memory.py",
        "strategies/external/torch_schedules.py",
        "strategies/external/zero_redundancy.py",
        "compat/fsdp.py",
        "compat/process_groups.py",
        "compat/torchrun.py",
    ],
}
SOURCES = [path for room in TOP for path in sorted((ROOT / room).rglob("*.py"))]


READ = ast.Import | ast.ImportFrom | ast.Attribute | ast.Assign | ast.AugAssign | ast.AnnAssign
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
of_all_sources = pytest.mark.xdist_group("sources")  # one process parses them, once


@cache
def nodes(source: str) -> list[READ | DOCUMENTED]:
    """Returns what has a docstring, the imports, attributes and assignments of a file."""
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, READ | DOCUMENTED)]


@cache
def imports(source: str, path: Path) -> list[str]:
    return list(found_imports(source, path))


def found_imports(source: str, path: Path) -> Iterator[str]:
    """Every module and name that a file imports, in full: relative ones as paceline.<room>..., and torch.x.y in use."""
    package = ["paceline", *path.parent.parts]
    for node in nodes(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and root_of(node) == "torch":
            yield ast.unparse(node)


def root_of(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def room_of(names: tuple[str, ...]) -> str | None:
    """The innermost room of ("strategies", "core", "sync"): strategies.core."""
    return next((room for room in (".".join(names[:2]), names[0]) if room in BELOW), None)


def rooms_used(source: str, path: Path) -> set[str]:
    """The rooms that a file imports from, other than its own and those in it."""
    own = room_of(path.with_suffix("").parts)
    names = (name.split(".")[1:] for name in imports(source, path) if name.startswith("paceline."))
    return {room for each in names if (room := room_of(tuple(each))) not in (own, None)}


def allowed(path: Path) -> set[str]:
    """The rooms that a file may import from."""
    below = BELOW[room_of(path.with_suffix("").parts) or ""]
    return {room for room in BELOW if any(f"{room}.".startswith(f"{each}.") for each in below)}


def tools_used(source: str, path: Path) -> set[str]:
    return {tool for tool in OWNERS for name in imports(source, path) if f"{name}.".startswith(f"{tool}.")}


@pytest.mark.budget(4)
@of_all_sources
def test_arrows_between_rooms_go_one_way_and_tools_have_one_owner() -> None:
    wrong: list[str] = []
    for path in SOURCES:
        relative, source = path.relative_to(ROOT), path.read_text()
        wrong += [f"{relative} uses {room}" for room in rooms_used(source, relative) - allowed(relative)]
        wrong += [
            f"{relative} uses {tool}"
            for tool in tools_used(source, relative)
            if not any(relative.match(pattern) for pattern in OWNERS[tool])
        ]
    assert not wrong


@pytest.mark.parametrize(
    ("path", "source", "rooms", "tools"),
    [
        ("strategies/x.py", "from ..tasks.base import Data", {"tasks"}, set()),
        ("strategies/sync/x.py", "from ...tracking import compare", {"tracking"}, set()),
        (
            "strategies/sync/x.py",
            "from .. import data_parallel\nfrom ..core.state import to_bytes",
            {"strategies.core"},
            set(),
        ),
        ("exchange/x.py", "from ..strategies.core.cost import World", {"strategies.core"}, set()),
        ("exchange/x.py", "from ..strategies.sync.bsp import BSP", {"strategies"}, set()),
        ("comm/x.py", "def f():\n    import paceline.engine.planning.make_plan", {"engine.planning"}, set()),
        ("engine/x.py", "from .. import cli", {"cli"}, set()),
        ("engine/x.py", "def f():\n    from ..sweep.study import Study", {"sweep"}, set()),
        ("engine/x.py", "from torch import distributed as dist", set(), {"torch.distributed"}),
        ("engine/x.py", "import torch.distributed.rpc", set(), {"torch.distributed"}),
        ("engine/x.py", "def f():\n    return torch.distributed.get_rank()", set(), {"torch.distributed"}),
        ("cli/x.py", "import wandb\nfrom hydra.utils import instantiate", set(), {"wandb", "hydra"}),
        ("cli/x.py", "from ..tracking.wandb import mirror", {"tracking"}, set()),
    ],
)
def test_the_scan_sees_what_is_forbidden(path: str, source: str, rooms: set[str], tools: set[str]) -> None:
    assert (rooms_used(source, Path(path)), tools_used(source, Path(path))) == (rooms, tools)


@of_all_sources
def test_no_files_import_each_other_in_a_circle() -> None:
    files = {".".join(module_of(path)): path for path in SOURCES}
    uses = {
        name: {
            files_of for each in imports(path.read_text(), path.relative_to(ROOT)) if (files_of := file_of(each, files))
        }
        - {name}
        for name, path in files.items()
    }
    while free := {name for name, used in uses.items() if not used & uses.keys()}:
        uses = {name: used for name, used in uses.items() if name not in free}
    while free := set(uses) - set().union(*uses.values()):  # they import from a circle, and are in none
        uses = {name: used for name, used in uses.items() if name not in free}
    assert sorted(uses) == []


CALLED = {"strategy", "sync", "mode", "compress", "aggregate", "attack", "collective", "callback", "clip", "privacy"}


def assigned_outside(source: str) -> set[str]:
    """Returns a file's assignments to attributes of such objects: `parts.sync.rate = 1`, and not `self.rate = 1`."""
    found = set[str]()
    for node in nodes(source):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for each in [
            each for target in targets for each in (target.elts if isinstance(target, ast.Tuple) else [target])
        ]:
            if isinstance(each, ast.Attribute) and ast.unparse(each.value).split(".")[-1].strip("_") in CALLED:
                found.add(ast.unparse(each))
    return found


BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))
NO_BEGINNING = re.compile(  # of a docstring: prepositions, pronouns, conjunctions and question words
    "(about|above|after|against|along|among|as|at|because|before|behind|below|beside|besides|between|beyond|but|by|during"
    "|except|for|from|here|how|if|in|inside|into|it|its|like|near|nor|not|of|off|on|onto|or|our|over|past|per|since|so|such"
    "|than|that|their|them|then|there|these|they|this|those|though|through|till|to|toward|under|unless|unlike|until|up|upon"
    "|we|what|whatever|when|where|whether|which|while|who|whoever|whom|whose|why|with|within|without|you|your)\\b",
    re.IGNORECASE,
)


@of_all_sources
def test_docstrings_begin_with_what_a_thing_is_or_does() -> None:
    found: list[str] = []
    for path in [*SOURCES, *BENCHMARKS]:
        for node in nodes(path.read_text()):
            text = (ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None) or ""
            if NO_BEGINNING.match(text):
                found.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}: {text.partition(chr(10))[0]}")
    assert found == []


LONGEST = 80  # lines of a function, its signature and docstring included


@of_all_sources
def test_no_function_is_longer_than_80_lines() -> None:
    longer = {
        f"{path.relative_to(ROOT)}: {node.name}": length
        for path in [*SOURCES, *BENCHMARKS]
        for node in nodes(path.read_text())
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > LONGEST
    }
    assert longer == {}


@of_all_sources
def test_a_class_name_means_one_thing_in_the_product() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in [*SOURCES, *BENCHMARKS]:
        for node in nodes(path.read_text()):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert len(places) > 900
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@of_all_sources
def test_nobody_assigns_what_belongs_to_the_class_of_a_choice() -> None:
    found = {str(path.relative_to(ROOT)): assigned_outside(path.read_text()) for path in SOURCES}
    assert {path: names for path, names in found.items() if names} == {}
    assert assigned_outside("self.a, parts.sync.setting = b, 1; self._strategy.x = 2") == {
        "parts.sync.setting",
        "self._strategy.x",
    }


def below(cls: type) -> set[type]:
    return {cls}.union(*map(below, cls.__subclasses__()))


@pytest.mark.parametrize("base", [Strategy, Sync, Compressor, Aggregator])
def test_what_a_class_declares_is_in_its_traits(base: type[Strategy | Sync | Compressor | Aggregator]) -> None:
    fields = {field.name for field in dataclasses.fields(base.traits)}
    assert len(fields) >= 8 and len(below(base)) > 10
    assert {cls.__name__: found for cls in below(base) if (found := fields & vars(cls).keys())} == {}


def module_of(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ("paceline", *(parts[:-1] if parts[-1] == "__init__" else parts))


def file_of(name: str, files: Collection[str]) -> str | None:
    """The module, among these, that a name is imported from: itself, or the one that defines it."""
    return next((each for each in (name, name.rpartition(".")[0]) if each in files), None)


def test_every_package_of_the_rooms_is_installed() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = {f"paceline.{'.'.join(path.parent.relative_to(ROOT).parts)}" for path in SOURCES}
    packages |= {"paceline.learn", "paceline.sweeps"}  # chapters and definitions, no modules
    assert set(tool["packages"]) == packages
    assert tool["package-dir"] == {"paceline": "."}


# -- algorithms and choices

COMPOSED = {  # an algorithm that is made of another -> that other
    "local_sgd": {"bsp"},  # post-local SGD is BSP up to the switch
    "onebit_adam": {"bsp"},  # its warm-up is BSP
    "offload": {"bsp"},  # the delayed update is BSP, whose optimizer steps in the background
    "hybrid_stages": {"pipeline"},  # what the stages of a hybrid's pipeline send, for hybrid.py
    "hybrid": {"pipeline"},  # a pipeline, whose stages are cut as tensor parallelism cuts a model
    "updates": {"bsp"},  # a pipeline without a flush: bsp among replicas, at each update
    "torch_pipelining": {"pipeline"},  # torch's schedules over the same cut, and the same account
    "deepspeed_pipeline": {"pipeline"},  # DeepSpeed's engine over the same cut
}

ALGORITHMS = {
    f"{module.name}.{name}"
    for module in pkgutil.walk_packages(paceline.strategies.__path__, "paceline.strategies.")
    if module.name != "paceline.strategies.zero"  # deepspeed takes seconds to import; its choice builds it below
    for name, found in vars(importlib.import_module(module.name)).items()
    # a Sync beside a strategy is the update that the strategy owns
    if inspect.isclass(found) and issubclass(found, Sync if ".sync." in module.name else Strategy)
    if not inspect.isabstract(found)
    if found.__module__ == module.name and not name.startswith("_")
}
CHOICES = [choice for choices in groups().values() for choice in choices]
COMPANIONS = {  # what a choice needs beside it
    ("aggregate", "draco"): ["hardware=virtual", "hardware.workers=3"],
    ("aggregate", "self_centered_clipping"): ["sync=gossip"],
    ("aggregate", "zeno"): ["sync=asp"],
    ("callbacks", "by_client"): ["sync=fedavg", "partition=by_label"],
    **{("client", name): ["sync=fedavg"] for name in ("fednova", "fedprox", "scaffold")},
    ("client", "mime_lite"): ["sync=fedavg", "optimizer.momentum=0"],
    **{("aggregate", name): ["hardware=virtual", "hardware.workers=7"] for name in ("bulyan", "krum", "multi_krum")},
    **{("server", name): ["sync=fedavg"] for name in ("adagrad", "adam", "momentum", "sgd", "yogi")},
    ("data", "text"): ["model=gpt"],
    ("data", "tokens"): ["model=gpt", "data.context=16", "data.vocabulary=50"],
    ("data", "sparse"): ["model=sparse_logistic_regression", "optimizer.momentum=0"],
    ("data", "svmlight"): ["model=sparse_logistic_regression", "optimizer.momentum=0"],
    ("model", "sparse_logistic_regression"): ["data=sparse", "optimizer.momentum=0"],
    ("collective", "hierarchical"): ["hardware=virtual", "hardware.workers=4", "hardware.workers_per_host=2"],
    ("compress", "demo"): ["optimizer.momentum=0"],
    ("compress", "dgc"): ["optimizer.momentum=0"],
    ("compress", "masked"): ["adapt=pruned"],
    ("freeze", "layers"): ["freeze.first=1"],
    ("partition", "poisson"): ["privacy=dp_sgd"],
    ("privacy", "dp_fedavg"): ["sync=fedavg"],
    ("secure", "bonawitz"): ["sync=fedavg", "hardware=virtual", "hardware.workers=3"],
    ("data", "diabetes"): ["model=linear", "task=squared"],
    **{("model", name): ["data=tokens"] for name in ("llama_1b", "llama_8b", "llama_70b", "llama_405b")},
    ("model", "mixtral_8x7b"): ["data=tokens", "data.vocabulary=32000"],
    ("data", "disks"): ["model=unet", "data.side=16"],
    ("model", "unet"): ["data=disks", "data.side=16"],
    ("strategy", "domain"): ["model=cnn"],
    ("task", "squared"): ["data=diabetes", "model=linear"],
    ("task", "huber"): ["data=diabetes", "model=linear"],
    ("task", "binary"): ["data=diabetes", "model=linear"],
    ("stragglers", "trace"): ["stragglers.path=factors.txt"],
    **{(choice.group, choice.name): ["hardware=virtual"] for choice in CHOICES if choice.group == "failures"},
    ("launcher", "kubernetes"): ["launcher.image=registry.example/paceline:1"],
    ("optimizer", "pegasos"): ["model=linear", "task=hinge", "task.multiclass=one_vs_rest"],
    ("sync", "onebit_adam"): ["optimizer=adam"],
    ("sync", "routed"): ["partition=clusters"],
    ("model", "kmeans"): ["task=reconstruction", "optimizer=lloyd"],
    ("optimizer", "lloyd"): ["task=reconstruction", "model=kmeans"],
    ("task", "reconstruction"): ["model=kmeans", "optimizer=lloyd"],
    ("callbacks", "purity"): ["experiment=kmeans"],
    ("model", "pca"): ["task=reconstruction", "optimizer=power_iteration"],
    ("optimizer", "power_iteration"): ["task=reconstruction", "model=pca"],
    **{(choice.group, choice.name): ["data=text"] for choice in CHOICES if choice.name.split("_")[0] == "gpt"},
    **{(choice.group, choice.name): ["hardware=virtual"] for choice in CHOICES if choice.group == "hardware/network"},
}


def private_names(source: str) -> set[str]:
    """Of other libraries: what is imported from a private module or by a private name, and private attributes, but
    those of `self` and of this project's own classes (which a type checker looks after).
    """
    outside, found = set[str](), set[str]()
    for node in nodes(source):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            for alias in node.names:
                name = f"{module}.{alias.name}".strip(".")
                if not getattr(node, "level", 0) and not name.startswith("paceline"):
                    outside.add(alias.asname or alias.name.split(".")[0])
                    found |= {name} if any(is_private(each) for each in name.split(".")) else set()
    for node in nodes(source):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            whole = ast.unparse(node)
            root = whole.replace("(", ".").split(".")[0]
            found |= {whole} if root not in ("self", "cls") and whole not in PROMISED else set()
    return found


@of_all_sources
def test_links_are_followed_by_realpath() -> None:
    """`Path.resolve` raises RuntimeError for a link to itself, up to Python 3.12."""
    assert [path for path in SOURCES if re.search(r"\.resolve\((strict.*)?\)", path.read_text())] == []


PROMISED = {"os._exit"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_replace"  # a named tuple's, documented


@of_all_sources
def test_private_names_of_others_are_in_compat_alone() -> None:
    found = {path: private_names(path.read_text()) for path in SOURCES if path.parent.name != "compat"}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from torch._subclasses import FakeTensorMode", {"torch._subclasses.FakeTensorMode"}),
        ("import hydra._internal", {"hydra._internal"}),
        ("group._register_backend(gloo)", {"group._register_backend"}),
        ("x.untyped_storage()._cdata", {"x.untyped_storage()._cdata"}),
        ("self._own, os._exit(1), op._replace(a=1), type(x).__name__", set()),
        ("from .a import _b", set()),
    ],
)
def test_the_scan_sees_private_names(source: str, found: set[str]) -> None:
    assert private_names(source) == found


def test_every_algorithm_has_a_choice() -> None:
    targets = {read_yaml(choice.path).get("_target_") for group in ("strategy", "sync") for choice in groups()[group]}
    assert len(ALGORITHMS) >= 6
    assert targets >= ALGORITHMS


def algorithm_files() -> set[Path]:
    """Those that a choice of a strategy or sync mode names, relative to the root."""
    targets = {str(read_yaml(choice.path)["_target_"]) for group in ("strategy", "sync") for choice in groups()[group]}
    return {Path(*target.split(".")[1:-1]).with_suffix(".py") for target in targets}


def algorithms_used(source: str, path: Path, algorithms: set[Path]) -> set[str]:
    """The algorithm files, other than itself, that a file imports from."""
    named = {tuple(name.split(".")) for name in imports(source, path)}
    used = {parts[: i + 1] for parts in named for i in range(len(parts))}
    return {one.stem for one in algorithms - {path} if ("paceline", *one.with_suffix("").parts) in used}


@of_all_sources
def test_what_algorithms_share_lies_below_them() -> None:
    algorithms = algorithm_files()
    assert len(algorithms) >= 12
    for path in sorted((ROOT / "strategies").rglob("*.py")):
        used = algorithms_used(path.read_text(), path.relative_to(ROOT), algorithms)
        assert used == COMPOSED.get(path.stem, set()), f"{path}: move it to exchange/ or strategies/core/"


@pytest.mark.parametrize(
    ("path", "source", "used"),
    [
        ("strategies/sync/gossip.py", "from .bsp import start_alike", {"bsp"}),
        ("strategies/zero.py", "def f():\n    from .sync import bsp", {"bsp"}),
        ("exchange/x.py", "from ..strategies.pipeline import balanced", {"pipeline"}),
        ("strategies/sync/bsp.py", "from ...exchange.flat import flatten\nfrom .bsp import BSP", set()),
    ],
)
def test_the_scan_sees_an_algorithm_that_imports_another(path: str, source: str, used: set[str]) -> None:
    assert algorithms_used(source, Path(path), algorithm_files()) == used


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: f"{choice.group}={choice.name}")
def test_every_choice_builds_and_can_be_planned(
    choice: ListedChoice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("factors.txt").write_text("1 2\n3 1\n")
    if choice.group == "tracking" and choice.name in NEEDS:
        require(choice.name)
    overrides = [f"{choice.group}={choice.name}", *COMPANIONS.get((choice.group, choice.name), [])]
    if choice.group == "data" and choice.name in OF_FILES:
        if choice.name in NEEDS_OF_FILES:
            require(NEEDS_OF_FILES[choice.name])
        overrides += OF_FILES[choice.name](tmp_path)
    if choice.group == "distillation" and choice.name != "none":
        engine.run(["hardware=virtual", "tracking=none", "data.limit=64", "steps=1"], name="teacher", quiet=True)
        overrides += ["distillation.teacher=teacher"]
    if choice.group == "task" and choice.name.startswith("model"):
        pytest.skip("takes the loss of a user's model (tests/engine/test_returned_objects.py)")
    plan = engine.prepare(overrides).plan()
    assert plan.layout.workers >= 1 and all(part.parameters > 0 for part in plan.parts)
    assert not torch.distributed.is_initialized()
