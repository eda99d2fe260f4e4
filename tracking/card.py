"""A run's model as a folder to take along: weights, configuration, and a model card with the run's figures.

Its files are those that model hubs take (huggingface.co/docs/hub/model-cards): README.md, whose first lines are YAML,
config.json and model.safetensors. A card names no licence, which is for whoever publishes the model to choose.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from .checksums import verdict_on_tensors
from .compare import rows
from .difference import environment_of
from .errors import CorruptRunError, RunNameError, StorageError
from .files import UnusableFileError
from .rendering import facts
from .run_data import RunData
from .run_directory import writing
from .values import flat
from .visible import visible

WEIGHTS = "model.safetensors"
KEPT = 2  # last parts of a path: its folder tells files of one name apart
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|])")  # in Markdown


def portable(config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Returns a run's configuration with the last parts of its absolute paths in their places, and these parts."""
    names: list[str] = []

    def told(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: told(each) for key, each in value.items()}
        if isinstance(value, list):
            return [told(each) for each in value]
        if not isinstance(value, str) or not Path(value).is_absolute():
            return value
        names.append("/".join(Path(value).parts[1:][-KEPT:]))
        return names[-1]

    return told(config), list(dict.fromkeys(names))


def write_card(run: RunData, folder: Path, command: str | None, files: Sequence[str] = ()) -> None:
    """Writes the folder, whole or not at all.

    Args:
        run: its configuration is `portable`.
        folder: new, or empty.
        command: the line that repeats the run; None: it has none.
        files: names in the line of files that the folder does not have.

    Raises `RunNameError` for a run without weights and for a folder that has files, `CorruptRunError` for damaged
    weights, `StorageError`.
    """
    weights = _weights(run)
    folder = Path(os.path.realpath(folder))  # a link leads to the folder that is replaced
    if folder == Path.cwd():
        raise RunNameError(f"{folder}: is the current folder, which cannot be replaced. Choose a new one")
    if folder.is_symlink():
        raise RunNameError(f"{folder}: is a link to itself. Choose a new one")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunNameError(f"{folder}: is there, and not an empty folder. Choose a new one")
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as made:
            whole = Path(made) / "whole"
            whole.mkdir()
            shutil.copyfile(weights, whole / WEIGHTS)
            (whole / "config.json").write_text(json.dumps(_configuration(run), indent=2) + "\n")
            (whole / "README.md").write_text(card(run, command, files), encoding="utf-8")
            whole.replace(folder)


def _weights(run: RunData) -> Path:
    """Returns the run's file of weights. Raises `RunNameError`, `CorruptRunError` or `StorageError`."""
    file = None if run.path is None else run.path / WEIGHTS
    if file is None or not file.is_file():
        raise RunNameError(
            f"{run.name}: has no {WEIGHTS}, which a run writes at its end. Choose one that completed: paceline ls"
        )
    try:
        verdict, _ = verdict_on_tensors(file)
    except UnusableFileError as error:
        raise CorruptRunError(f"{file}: {error}") from None
    except OSError as error:
        raise StorageError(f"{file}: cannot be read ({error.strerror})") from None
    if verdict == "changed":
        raise CorruptRunError(f"{file}: was changed after the run wrote it; its checksum is another one")
    return file


def _configuration(run: RunData) -> dict[str, Any]:
    return {"library_name": "paceline", "paceline_version": _versions(run).get("paceline"), "experiment": run.config}


def _versions(run: RunData) -> dict[str, str]:
    """Returns versions of paceline, Python and torch, where the run recorded them."""
    told = flat(environment_of(run) or {}, ".")
    named = {"paceline": "paceline", "python": "python", "torch": "packages.torch"}
    return {name: str(told[key]) for name, key in named.items() if key in told}


def card(run: RunData, command: str | None, files: Sequence[str] = ()) -> str:
    """Returns the model card, in Markdown. See `write_card` for the arguments."""
    (row,) = rows([run])
    modelled = bool(run.summary.get("modelled"))
    tags = ["paceline", "distributed-training", *(f"{key}-{row[key]}" for key in ("strategy", "sync") if row.get(key))]
    head = yaml.safe_dump({"library_name": "paceline", "tags": tags}, sort_keys=False, allow_unicode=True)
    table = [f"| {_cell(title)} | {_cell(text)} |" for title, text in facts(row) if title != "run" and text != "none"]
    clock = "Times are modelled: the run was on a virtual cluster. Gradients are real." if modelled else ""
    versions = ", ".join(f"{name} {_cell(version)}" for name, version in _versions(run).items())
    lacking = ", ".join(f"`{_code(name)}`" for name in files)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", command or "")), default=0))
    paragraphs = [
        f"---\n{head}# license: choose one, such as apache-2.0\n---",
        f"# {_cell(run.name)}",
        f"Model `{_code(row.get('model'))}`, trained on `{_code(row.get('data'))}` with paceline, a toolkit for "
        "experiments with distributed training.",
        f"Recorded with {versions}." if versions else "",
        "## Figures",
        clock,
        "\n".join(["| value | of this run |", "| --- | --- |", *table]),
        "## Repeat the run" if command else "",
        f"{fence}sh\n{command}\n{fence}" if command else "",
        f"The line reads what is not in this folder: {lacking}. Ask its author for them, or put in your own."
        if command and files
        else "",
        "It is without the run's seed, by which the noise of its privacy could be taken off, and trains other weights."
        if command and "seed" not in run.config
        else "",
        "## Use the weights",
        f'```python\nfrom safetensors.torch import load_file\n\nweights = load_file("{WEIGHTS}")\n```',
        "They are those of the model without `adapt`, and compute the same." if row.get("adapt") != "none" else "",
        f"`paceline train weights={WEIGHTS}` goes on from them, with the line's other choices." if command else "",
        "`config.json` has the configuration of the run.",
    ]
    return "\n\n".join(text for text in paragraphs if text) + "\n"


def _cell(value: object) -> str:
    return _SPECIAL.sub(r"\\\1", visible(str(value)))


def _code(value: object) -> str:
    return visible(str(value)).replace("`", "'")
