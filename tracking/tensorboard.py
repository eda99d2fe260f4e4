"""Writes a run's curves as TensorBoard's event files, runs/NAME/tensorboard/, by torch's own writer.

`tensorboard --logdir runs` shows all runs. A resumed run goes on in a further file, from which TensorBoard takes the
steps that are made again.
"""

import threading
from pathlib import Path
from typing import Any

import yaml

from .helper import final
from .history import history, numbers
from .run_directory import RunDirectory, follow

FOLDER = "tensorboard"


def mirror(settings: dict[str, Any], finish: threading.Event) -> None:
    from torch.utils.tensorboard import SummaryWriter

    directory = RunDirectory(Path(settings["directory"]))
    writer, step = None, 0
    for record in follow(directory.metrics, finish, settings["start_at"]):
        if writer is None:
            again = record.get("step") if record.get("kind") == "resume" else None
            purge = again + 1 if isinstance(again, int) else None
            writer = SummaryWriter(str(directory.path / FOLDER), purge_step=purge, flush_secs=10)
            if purge is None:
                writer.add_text("config", f"```yaml\n{yaml.safe_dump(settings['config'], sort_keys=False)}```")
        plotted = history(record)
        step = plotted.get("step", step)
        for key, value in numbers(plotted).items():
            writer.add_scalar(key, value, step)
    if writer is None:
        return
    _, row = final(directory)
    for key, value in row.items():
        writer.add_scalar(f"summary/{key}", value, step)
    writer.close()
