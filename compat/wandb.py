"""W&B's client: settings that it calls experimental, the format of its records, and what it prints."""

import os
import re
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

# Without these `wandb sync` tries for minutes, up to hours. What is set in the environment goes before.
BOUNDS = {
    "WANDB_HTTP_TIMEOUT": "10",  # seconds until one answer
    "WANDB_X_GRAPHQL_RETRY_MAX": "2",
    "WANDB_X_FILE_STREAM_RETRY_MAX": "3",
    "WANDB_ERROR_REPORTING": "false",
}
_ERROR = re.compile(r"(?:wandb: ERROR|Error:) (?:\[\S+\] )?(?P<said>.+)")
_ADDRESS = re.compile(r" at (https?://[!-~]+)$")
_CUT_OFF = "the file ends with an incomplete record"
_DAMAGED = re.compile(r"transactionlog: (?P<why>.+)")
_NOBODY = re.compile(r"(?:POST|GET) (?P<url>\S+) giving up after \d+ attempt\(s\)(?:: (?:\w+ \"\S+\": )?(?P<why>.+))?")
_NO_ENTRY = re.compile(r"returned error 401\b")


def quiet_settings(init_seconds: float, finish_seconds: float) -> Any:
    """`wandb.Settings`: nothing but what is logged is recorded, and it is on the disk within a second."""
    import wandb

    return wandb.Settings(
        console="off",
        silent=True,
        disable_git=True,
        disable_code=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
        init_timeout=init_seconds,
        finish_timeout=finish_seconds,
        finish_timeout_raises=True,
        x_transaction_log_flush_interval=1.0,  # what a killed run may lose, in seconds
    )


# -- where W&B takes its settings from


def folder_settings() -> Path | None:
    """Returns the settings file of the current folder, which W&B would follow, whoever wrote it."""
    return next((path for name in ("wandb", ".wandb") if os.path.lexists(path := Path(name, "settings"))), None)


def load_settings() -> Any:
    """Makes W&B load its settings from the environment and the user's own file alone, and returns them."""
    from wandb.sdk import wandb_setup

    wandb_setup.teardown()  # what was loaded before
    here = Path.cwd()
    if own := os.environ.get("WANDB_CONFIG_DIR"):
        os.environ["WANDB_CONFIG_DIR"] = str(here / Path(own).expanduser())
    with chdir("/"):  # W&B knows no other way; only root writes there
        known = wandb_setup.singleton().settings
    if known.root_dir == "/":
        known.root_dir = str(here)
    return known


def logins_of(url: str) -> tuple[str, str]:
    """Returns the servers whose logins in a netrc file W&B takes for the server at `url`."""
    from wandb.sdk.lib import urls

    return url, urls.forge_upstream_url(url)


def main() -> None:
    """W&B's command line."""
    load_settings()
    from wandb.cli import cli

    cli.cli(prog_name="wandb")


# -- what `wandb sync` prints


def errors_in(lines: Sequence[str]) -> list[str]:
    """Some quote the server: without control characters, which a terminal would obey."""
    said = [match["said"] for line in lines if (match := _ERROR.match(line))]
    return ["".join(c if c.isprintable() else "?" for c in line) for line in said]


def is_about(run_id: str, line: str) -> bool:
    """Returns whether the line is about the run: it has the run's id in brackets, as a word, or ending its folder's
    name.
    """
    return re.search(rf"(?<!\w){re.escape(run_id)}(?![\w-])", line) is not None


def address_in(line: str) -> str | None:
    """Returns the address at which a run that was sent can be seen."""
    match = _ADDRESS.search(line)
    return match[1] if match else None


def is_cut_off(error: str) -> bool:
    """The recording ends within a record: its run was killed, or goes on."""
    return _CUT_OFF in error


def damage_in(error: str) -> str | None:
    """Returns the reason why the recording cannot be read."""
    match = _DAMAGED.search(error)
    return match["why"] if match else None


def server_missing_in(error: str) -> tuple[str, str] | None:
    """(The URL that nobody answers at, why)."""
    match = _NOBODY.search(error)
    return (match["url"].removesuffix("/graphql"), match["why"] or "nothing but errors") if match else None


def is_refused_key(error: str) -> bool:
    return _NO_ENTRY.search(error) is not None


# -- `.wandb` files


class UnreadableRecordError(ValueError):
    """The bytes are no record."""


def record_of(payload: bytes) -> Any:
    """A `wandb_internal_pb2.Record`. Raises `UnreadableRecordError`."""
    from google.protobuf.message import DecodeError
    from wandb.proto import wandb_internal_pb2

    proto: Any = wandb_internal_pb2  # its classes are made when it is imported
    try:
        return proto.Record.FromString(payload)
    except DecodeError as error:
        raise UnreadableRecordError(str(error)) from None
