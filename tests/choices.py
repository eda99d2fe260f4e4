"""The choices of `strategy` and `sync`, from their files alone.

Every test process imports what parametrizes tests: composing each choice there would cost all of them half a minute.
"""

from pathlib import Path

import yaml

import paceline.conf
from paceline.engine.experiment import Choice
from paceline.engine.targets import build
from paceline.strategies import Strategy, Sync

CONF = Path(next(iter(paceline.conf.__path__)))
CHOICES = {group: sorted(path.stem for path in (CONF / group).glob("*.yaml")) for group in ("strategy", "sync")}


def described(group: str, choice: str) -> Choice:
    knobs = yaml.safe_load((CONF / group / f"{choice}.yaml").read_text())
    return Choice(name=choice, target=knobs.pop("_target_"), knobs=knobs)


CHOSEN = {(group, name): described(group, name) for group, names in CHOICES.items() for name in names}
STRATEGIES = {name: build("strategy", CHOSEN["strategy", name], Strategy, (), {}) for name in CHOICES["strategy"]}
SYNCS = {name: build("sync", CHOSEN["sync", name], Sync, (), {}) for name in CHOICES["sync"]}
