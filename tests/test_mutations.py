"""`make mutations` makes the mutants that it says it makes, and its lists are of the code that there is."""

import ast
from pathlib import Path
from types import SimpleNamespace

import mutations
import pytest
import reached
from faults.safeguards import SAFEGUARDS
from mutants import mutants
from mutations import NAMED

ROOT = Path(__file__).parents[1]


def edits(source: str) -> set[str]:
    """The lines that mutants make of a source of one line that matters, its last."""
    return {mutant.of(source).splitlines()[-1].strip() for mutant in mutants(source) if mutant.is_one(source)}


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("return x + y", {"return x - y"}),
        ("return x < y", {"return x <= y"}),
        ("return x and y", {"return x or y"}),
        ("return x is not y", {"return x is y"}),
        (
            "return [x, 1, True, 0.5]",
            {"return [x, 2, True, 0.5]", "return [x, 1, False, 0.5]", "return [x, 1, True, 1.0]"},
        ),
        ("return -x", {"return x"}),
        ("return x if y else z", {"return x if (not (y)) else z"}),
        ("return x.clone()", {"return x"}),
        ("return hidden(x)", {"return x"}),
        ("return max(x, y)", {"return min(x, y)"}),
        ("return f(x, y, z)", {"return f(y, x, z)"}),
        ("return f(x, y, k=z)", {"return f(y, x, k=z)", "return f(x, y)"}),
        ("x += y", {"pass", "x -= y"}),
        ("x.y = z", {"pass"}),
        ("x = f(x)", {"pass", "x = x"}),
        ("raise ValueError(f'{x + 1}')", {"pass"}),
        ("with x.off(): y.f()", {"if True: y.f()", "with x.off(): pass"}),
        ("if x: return", {"if (not (x)): return", "if x: pass"}),
    ],
)
def test_mutants_of_a_statement(statement: str, expected: set[str]) -> None:
    assert edits(f"def g(x, y, z):\n    {statement}") == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""Text with 1 < 2."""',
        "w: int | None = None",
        "def g(x: int | None) -> Literal[1]: return x",
        "def g(x): assert x < 1",
        "def g(x): print(x + 1)",
        "def g(x): raise NotImplementedError",
        "def g(x): return f'{x + 1}' + y",
        "def __repr__(self): return self.x + 1",
        "@abstractmethod\ndef g(x): return x + 1",
        "if TYPE_CHECKING: x = 1",
    ],
)
def test_no_mutant_that_no_test_could_notice(source: str) -> None:
    assert not edits(source) - {"def g(x): return f'{x + 1}' - y"}


def test_a_rule_in_an_annotation_is_mutated() -> None:
    assert edits("def g(x: Annotated[int, Ge(1)]): ...") == {"def g(x: Annotated[int, Ge(2)]): ..."}


def test_each_mutant_of_a_file_is_another_program() -> None:
    source = (ROOT / "exchange" / "aggregate" / "krum.py").read_text()
    made = mutants(source)
    assert len(made) > 40 and all(mutant.is_one(source) for mutant in made[::8])
    assert {mutant.function for mutant in made} >= {"scores", "Krum.aggregate", "MultiKrum.check"}


def test_a_sample_repeats() -> None:
    every = mutations.population(["exchange/aggregate/krum.py"], None)
    assert mutations.drawn(every, 5, seed=1) == mutations.drawn(every, 5, seed=1) != mutations.drawn(every, 5, seed=2)


def test_functions_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = (ROOT / "exchange" / "aggregate" / "krum.py").read_text()
    before = now.replace("max(n - f - 2", "max(n - f - 1")
    monkeypatch.setattr(mutations.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=0, stdout=before))
    assert mutations.changed("exchange/aggregate/krum.py", "REV") == {"scores"}
    before = now.replace("replace(Robust.traits, bound", "Traits(bound")
    assert mutations.changed("exchange/aggregate/krum.py", "REV") == {""}


def test_an_instrumented_file_says_what_is_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = 'class A:\n    def f(self):\n        """Doc."""\n        if True:\n            return 1\n\n'
    source = f"{method}def g(): return A().f()\n"
    monkeypatch.setattr(reached, "WHERE", tmp_path)
    monkeypatch.setattr(reached, "_here", [])
    (tmp_path / "now").write_text("test_x")
    space: dict[str, object] = {}
    exec(reached.instrumented(source, "a.py"), space)
    assert space["g"]() == 1  # pyright: ignore[reportCallIssue]
    assert sorted(reached.noted(tmp_path, "reached")) == [["test_x", "a.py", "A.f"], ["test_x", "a.py", "g"]]


def test_files_can_be_instrumented() -> None:
    for file in mutations.source_files(["comm/process.py", "sync/local_sgd.py", "aggregate/"]):
        ast.parse(reached.instrumented(mutations.source_of(file), file))


def test_tests_that_may_reach_a_file() -> None:
    chosen = mutations.candidates("strategies/sync/local_sgd.py")
    assert chosen["tests/strategies/test_local_sgd.py"] == 0 < max(chosen.values())


def test_a_line_that_is_to_be_broken_is_there_once() -> None:
    every = [*NAMED, *SAFEGUARDS]
    texts = {file: (ROOT / file).read_text() for file in {broken.file for broken in every}}
    wrong = [broken for broken in every if texts[broken.file].count(broken.old) != 1]
    assert not wrong, "\n".join(f"{broken.file} does not have once:\n{broken.old}" for broken in wrong)


def test_the_tests_that_guard_a_line_are_there() -> None:
    assert not [named.tests for named in NAMED if not (ROOT / named.tests.split()[0]).exists()]


@pytest.mark.slow
def test_the_copy_of_the_tree_has_links_to_folders(tmp_path: Path) -> None:
    mutations.copy_of_the_tree(tmp_path)
    assert (tmp_path / "learn").is_symlink() and list((tmp_path / "learn").glob("01_*.md"))
