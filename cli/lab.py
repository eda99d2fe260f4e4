"""`paceline lab`: a page on this host that compares two configurations, and runs both on the virtual cluster."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import AllowModule, ConfigDir, Overrides

if TYPE_CHECKING:
    from ..lab.catalogue import Listed


def lab(
    overrides: Overrides = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 0,
    config_dir: ConfigDir = None,
    allow_module: AllowModule = None,
) -> None:
    """Compare two configurations on a local page: their plans at once, and both runs side by side.

    The page has a list for each group and a field for each knob. It shows the plan of A and of B, or the words with
    which paceline train refuses it, and the command that repeats each run. "Run both" trains on the virtual cluster:
    real gradients, modelled times. Loss, accuracy, staleness, bytes and timelines are drawn on one scale.

    OVERRIDES are of both sides. The lab takes at most 64 workers, 2,000 steps and 120 s, and data that need no
    download. Only this host can ask for the page, and only who knows the address, which is printed. The runs are in a
    temporary folder. Ctrl-C ends everything, with exit status 0.

    \b
    paceline lab                                          bsp and asp beside a slow worker
    paceline lab sync=gossip hardware.workers=16          both begin with this
    paceline lab model=cnn partition=dirichlet --port 8000
    """
    from ..lab.server import LabServer
    from .serving import serve

    known = listed(config_dir, allow_module or ())
    begins = "open this address in a browser of this host; Ctrl-C ends the lab and its runs"
    serve(port, lambda: LabServer(port, known, overrides or []), begins, "the lab has ended")


def listed(config_dir: Path | None = None, allowed: Sequence[str] = ()) -> "Listed":
    """Raises `ConfigError` where there is no such folder."""
    from ..lab.catalogue import NETWORK, Listed
    from .choices import defaults, groups, primary, primary_comments, read_yaml
    from .list_first import FIRST

    known = groups(config_dir)
    [virtual] = (choice for choice in known["hardware"] if choice.name == "virtual")
    networks = [each["network"] for each in read_yaml(virtual.path)["defaults"] if "network" in each]
    return Listed(
        known,
        tuple(FIRST),
        defaults() | {NETWORK: networks[0]},
        primary() | {f"hardware.{key}": value for key, value in virtual.knobs().items()},
        primary_comments() | {f"hardware.{key}": text for key, text in virtual.comments().items()},
        config_dir,
        tuple(allowed),
    )
