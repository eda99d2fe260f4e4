"""Reads a run's config.yaml for `--resume`, beside its checkpoint. The file must be as it was written.

Its last line is its checksum. What may not change when a run goes on (all but RESUMABLE, and the name) makes the run
what it is: each checkpoint's manifest has the SHA-256 of that, so that no other run's file is taken for it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ...conf.errors import ConfigError
from ...conf.grammar import typed
from ...tracking.checksums import sha256, verdict_on
from ...tracking.files import parse_yaml, read_text
from ...tracking.run_directory import RunDirectory
from ..base.errors import CorruptCheckpointError
from .experiment import Experiment, from_plain
from .resumed import RESUMABLE


@dataclass(frozen=True)
class StoredConfig:
    """A run's configuration as it lies in its directory, and the experiment that it is."""

    plain: dict[str, Any]
    experiment: Experiment

    def changed_to(self, now: dict[str, Any]) -> dict[str, Any]:
        """Returns it with what a resumed run may change as it is `now`; the rest stays as it was written.

        The number of workers stays, too (null, if torchrun or the strategy has said it), unless the run goes on at
        another size (then each replica has another `batch_size`), or under another strategy, whose replicas may have
        as many samples and other workers.
        """
        hardware = self.plain.get("hardware")
        workers = hardware.get("workers") if isinstance(hardware, dict) else None
        changed = self.plain | {key: now[key] for key in RESUMABLE if key in now}
        if any(now[key] != self.plain.get(key) for key in ("batch_size", "strategy")):
            changed["batch_size"], workers = now["batch_size"], now["hardware"]["workers"]
        return changed | {"hardware": changed["hardware"] | {"workers": workers}}


def identity(plain: dict[str, Any]) -> str:
    """Returns the SHA-256 of the settings that a run never changes. Its size and its strategy may change: see
    planning/resizing.py.
    """
    return _sum_of(plain, "batch_size")


def _former_identities(plain: dict[str, Any]) -> tuple[str, ...]:
    """Returns the identities that earlier versions wrote: with the strategy, and with the size, too."""
    kept, hardware = {"strategy": plain.get("strategy")}, plain.get("hardware")
    workers = hardware.get("workers") if isinstance(hardware, dict) else None
    return _sum_of(plain, "batch_size", **kept), _sum_of(plain, **kept, workers=workers)


def _sum_of(plain: dict[str, Any], *without: str, **more: Any) -> str:
    kept = {key: value for key, value in plain.items() if key not in (*RESUMABLE, "name", *without)}
    return sha256(yaml.safe_dump(kept | more).encode())


def read_stored(directory: RunDirectory) -> StoredConfig:
    """Raises `CorruptCheckpointError` for a damaged config.yaml, `ConfigError` for one that was changed or not made."""
    file = directory.config
    try:
        text = read_text(file)
        plain = parse_yaml(text)
    except FileNotFoundError:
        if not (hint := anew(directory)):
            raise ConfigError(
                f"--resume {directory.name}: {file} is not there. A run that ended before it wrote its config.yaml "
                f"has nothing to go on from. Begin it anew after paceline rm {directory.name}"
            ) from None
        raise CorruptCheckpointError(f"{file} is gone{hint}") from None
    except OSError as error:
        raise CorruptCheckpointError(f"{file} cannot be read ({error.strerror}){anew(directory)}") from None
    except ValueError as error:
        raise CorruptCheckpointError(f"{file} {error}{anew(directory)}") from None
    if not isinstance(plain, dict):
        raise CorruptCheckpointError(f"{file} is no YAML mapping{anew(directory)}")
    verdict = verdict_on(text)
    if verdict == "changed":
        raise ConfigError(
            f"--resume {directory.name}: {file} is not as paceline wrote it (its checksum differs), and a run goes on "
            f"as it began; undo the change (what may change is given behind --resume, as key=value){anew(directory)}"
        )
    if verdict == "unmarked":
        raise ConfigError(
            f"--resume {directory.name}: {file} does not end with its checksum, so that nobody can tell whether it is "
            f"as it was written: an earlier version made it, or it was changed{anew(directory)}"
        )
    return StoredConfig(plain, from_plain(plain))


def check_identity(directory: RunDirectory, stored: StoredConfig, checkpoint: Path, run: str) -> None:
    """`run`: what the checkpoint's manifest says of the run that made it. Raises `ConfigError`."""
    if run not in (identity(stored.plain), *_former_identities(stored.plain)):
        raise ConfigError(
            f"--resume {directory.name}: {checkpoint.name} was made with another configuration than {directory.config} "
            f"has; put back the one that belongs to it{anew(directory)}"
        )


def anew(directory: RunDirectory) -> str:
    """Says how to start anew from the weights that the run has learnt."""
    from ..base.checkpoint import steps_of

    made = [path for path in [directory.path / "model.safetensors"] if path.exists()]
    made += reversed(steps_of(directory.checkpoints))
    return f"; to train anew from its weights: {typed('weights', str(made[0]))}" if made else ""
