"""A calibration as a choice of `hardware`, and as a picture."""

import re
import tempfile
from pathlib import Path
from typing import Any

import yaml

from ...conf.counted import counted
from ...cost.calibration import Calibration, plain
from ...tracking.drawn.calibration import FittedSeries, Panel, as_svg
from ...tracking.run_directory import write_atomically, writing

FOLDER = Path("conf-of-mine")  # as docs/your_own.md calls the user's own choices
ROOM = 1 << 18  # bytes of both files, and more
SHOWN = ("mul", "relu", "gelu", "_log_softmax", "native_layer_norm", "native_batch_norm", "copy_", "adam")


def default_name(host: str) -> str:
    """Returns a name that a choice can have on the command line."""
    return re.sub(r"[^A-Za-z0-9_]+", "_", host).strip("_").lower() or "here"


def check_writable(file: Path) -> None:
    """Checks that the disk has room for both files. Raises `StorageError`: measuring takes minutes."""
    place = next(path for path in file.absolute().parents if path.exists())
    with writing(file), tempfile.TemporaryFile(dir=place) as probe:
        probe.write(bytes(ROOM))


def write(calibration: Calibration, found: dict[str, Any], file: Path) -> Path:
    """Both files; returns the picture's place. Raises `StorageError`."""
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    told = {"defaults": ["local", "_self_"], "calibration": plain(calibration)}
    says = f"# {calibration.host}: {calibration.cores} cores, {calibration.cpu}, measured on {calibration.date}\n"
    write_atomically(file, says + yaml.safe_dump(told, sort_keys=False, width=10**6))
    picture = file.with_suffix(".svg")
    write_atomically(picture, drawn(calibration, found))
    return picture


def drawn(calibration: Calibration, found: dict[str, Any]) -> str:
    panels: list[Panel] = []
    for rates in calibration.rates:
        who = f"{counted(rates.processes, 'process')} of {counted(rates.threads, 'thread')}"
        flops = [
            FittedSeries(name, sorted((_work(point), _work(point) / point[-1]) for point in rates.tables[name].points))
            for name in ("product", "convolution", "convolution_backward", "attention")
            if name in rates.tables
        ]
        panels.append(Panel(f"{who}: work a second", "multiplications of a call", "a second", flops))
        streamed = [FittedSeries(name, sorted((p[0], p[1]) for p in rates.tables[name].points)) for name in SHOWN]
        panels.append(Panel(f"{who}: operators that stream", "entries", "seconds", streamed))
    for size in sorted({link.workers for link in calibration.links}):
        series: list[FittedSeries] = []
        for link in calibration.links:
            if link.workers == size:
                points = next(p for name, workers, p in found["links"] if (name, workers) == (link.operation, size))
                line = [(nbytes, max(link.fit.seconds(nbytes), 1e-9)) for nbytes, _ in points]
                series.append(FittedSeries(link.operation, [(n, s) for n, s in points], line))
        panels.append(Panel(f"{size} workers: alpha + S beta", "S: bytes that leave a worker", "seconds", series))
    return as_svg(f"{calibration.host}, {calibration.cpu}, measured on {calibration.date}", panels)


def _work(point: tuple[float, ...]) -> float:
    work = 1.0
    for size in point[:-1]:
        work *= size
    return work
