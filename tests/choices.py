"""The choices of `strategy` and `sync`, from their files alone.

Every test process imports what parametrizes tests: composing each choice there would cost all of them half a minute.
"""

from paceline.engine.config.experiment import CONF, shipped
from paceline.engine.config.targets import build
from paceline.engine.features import injected
from paceline.strategies import Strategy, Sync

CHOICES = {group: sorted(path.stem for path in (CONF / group).glob("*.yaml")) for group in ("strategy", "sync")}
CHOSEN = {(group, name): shipped(group, name) for group, names in CHOICES.items() for name in names}
USUAL = injected.usual()
STRATEGIES = {name: build("strategy", CHOSEN["strategy", name], Strategy, (), USUAL) for name in CHOICES["strategy"]}
SYNCS = {name: build("sync", CHOSEN["sync", name], Sync, (), USUAL) for name in CHOICES["sync"]}


def overrides_for(sync: str) -> list[str]:
    """The optimizer that this mode steps with, where it takes no other, and what else it needs beside it."""
    trial = SYNCS[sync].trial
    return [f"{key}={value}" for key, value in {**trial.beside, **trial.optimizer}.items()]
