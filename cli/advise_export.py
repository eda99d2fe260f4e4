"""`paceline advise --export torchtitan=run.toml`: the recommended layout as a file of another tool."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..conf.errors import ConfigError
from ..tracking.text import shown
from .compare import check_file
from .output import note, note_all, shortest

if TYPE_CHECKING:
    from ..advise.answer import Answer

FORMATS = "torchtitan=run.toml, torchtitan=run.py, accelerate=run.yaml or deepspeed=run.json"
NAMES = ("torchtitan", "accelerate", "deepspeed")


def files_of(words: Sequence[str], races: bool) -> dict[Path, str]:
    """Returns the format of each file. Raises `ConfigError` or `TableError`."""
    files: dict[Path, str] = {}
    if words and races:
        raise ConfigError("--export: writes a prediction, and --race trains. Choose one of them.")
    for word in words:
        name, equals, path = word.partition("=")
        option = f"--export {shown(word)}"
        if name not in NAMES or not equals:
            raise ConfigError(f"{option}: names no format. Choose {FORMATS}.")
        if not path:
            raise ConfigError(f"{option}: names no file. Choose {FORMATS}.")
        file = Path(path)
        check_file("--export", file)
        if file in files:
            raise ConfigError(f"{option}: the file is that of another --export. Choose another file.")
        files[file] = name
    return files


def write(found: "Answer", files: dict[Path, str]) -> None:
    """Writes all files, or none if one format cannot express the layout. Raises `ConfigError`."""
    from ..advise.export import export
    from ..tracking.run_directory import write_atomically

    made = {file: export(found, name, file) for file, name in files.items()}
    for file, its in made.items():
        write_atomically(file, its.text)
        note(f"{files[file]}: {shortest(file)}")
        note_all(f"{shortest(file)}: {text}" for text in its.notes)
