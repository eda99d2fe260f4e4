"""Knobs of classes that do not annotate them, and knobs that a choice's file lacks."""

from pathlib import Path

import pytest

from paceline.conf import groups
from paceline.conf.errors import ConfigError
from paceline.engine.config import experiment, hints
from paceline.engine.config.compose import compose
from paceline.engine.config.constructors import parameters_of

MODULE = """from paceline.strategies import Sync
from nowhere import never_imported
class Mine(Sync):
    def __init__(self, beta=0.5, many=2, late=False, free=None, text="a", maybe=None, said: float | str = 1.0, alpha=1):
        pass
"""
FILE = """# Mine
_target_: mine_unannotated.Mine
beta: 0.5
many: 2
late: false
free: null
text: a
maybe: 0.5
said: 1.0
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine_unannotated.py").write_text(MODULE)
    (tmp_path / "sync").mkdir()
    (tmp_path / "sync" / "mine.yaml").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "rule"),
    [
        ("sync.beta=abc", "must be a number. Choose one, such as sync.beta=0.5."),
        ("sync.beta=true", "must be a number."),
        ("sync.beta=null", "must be a number."),
        ("sync.many=1.5", "must be a whole number. Choose one, such as sync.many=2."),
        ("sync.late=1", "must be true or false. Choose one, such as sync.late=false."),
    ],
)
def test_a_knob_without_annotation_is_of_the_kind_of_its_default(mine: Path, typed: str, rule: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(["sync=mine", typed], mine)
    assert str(caught.value).startswith(f"{typed}: {rule}") and "does not annotate" in str(caught.value)


@pytest.mark.parametrize(
    "typed", ["beta=2", "beta=0.1", "many=3", "late=true", "free=abc", "text=1", "maybe=null", "said=auto"]
)
def test_what_a_class_may_take_is_left_to_it(mine: Path, typed: str) -> None:
    assert typed.partition("=")[0] in compose(["sync=mine", f"sync.{typed}"], mine).sync.knobs


def test_a_knob_that_the_class_has_and_its_file_lacks_is_named_with_the_file(mine: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^sync.alpha: .*; \+sync.alpha=0.5 gives it to .*, as does a line in .*mine"
    ):
        compose(["sync=mine", "sync.alpha=0.5"], mine)
    with pytest.raises(ConfigError, match=r"^sync.rank: there is no such key; (?!.*gives it)"):
        compose(["sync=mine", "sync.rank=1"], mine)


@pytest.mark.parametrize(
    ("chosen", "typed", "said"),
    [
        (["optimizer=adam"], "optimizer.amsgrad=true", r"\+optimizer.amsgrad=true gives it to torch.optim.Adam$"),
        (["optimizer={_target_: torch.optim.Adam}"], "optimizer.lr=0.1", r"\+optimizer.lr=0.1 gives it to"),
        (["optimizer={_target_: torch.optim.Adam}"], "optimizer.lrr=0.1", "(?!.*gives)"),
        (["optimizer._target_=torch.optim.Adagrad"], "optimizer.lr_decay=1", r"\+optimizer.lr_decay=1 .*Adagrad$"),
        (["model={_target_: nowhere.Net}"], "model.width=16", r"\+model.width=16 gives it to nowhere.Net$"),
        (["model={_target_: nowhere.Net, widths: 1}"], "model.width=16", r"did you mean model.widths\?"),
    ],
)
def test_a_knob_that_a_class_may_have_is_added_with_a_plus(chosen: list[str], typed: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{typed.partition('=')[0]}: there is no such key; {said}"):
        compose([*chosen, typed])


def test_a_constructor_that_cannot_be_read_has_no_parameters() -> None:
    assert parameters_of("nowhere.at.All") == parameters_of("math.Sine") == {}


def test_a_class_that_its_package_imports_has_the_parameters_of_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "house" / "rooms").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "house" / "__init__.py").write_text("from .rooms import Room as Hall, Door\nfrom . import rooms\n")
    (tmp_path / "house" / "rooms" / "__init__.py").write_text("from .room import Room\nfrom .. import Door\n")
    (tmp_path / "house" / "rooms" / "room.py").write_text("class Room:\n    def __init__(self, wide=1): ...\n")
    assert [*parameters_of("house.Hall")] == ["wide"]
    assert parameters_of("house.rooms.Door") == {}  # two files that import it of each other


def test_a_group_without_a_default_or_without_an_entry_is_told_which_file_lacks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").write_text("defaults: [_self_]\n")
    monkeypatch.setattr(experiment, "CONF", tmp_path)
    first = next(iter(groups.BY_NAME))
    with pytest.raises(ConfigError, match=f"^{first}: has no default choice. Add `- {first}: CHOICE` to conf/config"):
        experiment.from_config({}, {})
    (tmp_path / "newcomer").mkdir()
    (tmp_path / "newcomer" / "none.yaml").write_text("")
    monkeypatch.setattr(hints, "CONF", tmp_path)
    assert hints.elsewhere("newcomer").endswith("conf/groups.py has no such group. Add it to GROUPS there.")
