"""`make mutations`: breaks source files in a copy of the tree, one small edit at a time, and sees whether a test fails.

    python tests/mutations.py local_sgd krum        # files whose path has one of the words
    python tests/mutations.py --changed origin/main # functions that differ from a revision
    python tests/mutations.py --sample 200 --seed 7 # some of the mutants; 0 for all of them

The edits come from the syntax tree (mutants.py) and from named_mutations.tsv, which has those that no rule
makes. The tests that
reach a function are measured first, on the unbroken copy (reached.py); a mutant runs these, the quickest first. Exit
status 1: a mutant survived; 2: something is wrong (tests fail unbroken, or a text of `NAMED` is gone).
"""

import argparse
import ast
import difflib
import json
import os
import queue
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

from budget import CASES, COSTS
from mutants import Mutant, functions, mutants
from reached import instrumented, noted

ROOT = Path(__file__).resolve().parent.parent
ROOMS = tuple(sorted({path.parent.name for path in ROOT.glob("*/__init__.py")} - {"benchmarks"}))
AT_ONCE = 2  # copies of the tree, with a mutant each
SAMPLE = 100  # mutants
CANDIDATES = 30.0  # CPU seconds of the tests that are tried, for each file
LONGEST = 6.0  # seconds of the tests that one mutant runs
PASSED, FAILED, EMPTY = 0, 1, 5  # pytest's exit statuses


class WrongListError(Exception):
    """What a list says is not so."""


@dataclass(frozen=True)
class Named:
    """A mutant that no rule makes. `old` is once in `file`; pytest is given `tests`, and some of them must fail."""

    file: str
    old: str
    new: str
    tests: str


NAMED = [Named(*line.split("\t")) for line in (ROOT / "tests/named_mutations.tsv").read_text().splitlines()[1:]]


# -- the copy


def copy_of_the_tree(to: Path) -> None:
    """The files that git knows of or would take, as they are now, and `paceline` made of its rooms."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and ((ROOT / name).is_file() or (ROOT / name).is_symlink()):  # a link to a folder: learn
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name, follow_symlinks=False)
    (to / "paceline").mkdir()
    for room in ROOMS:
        (to / "paceline" / room).symlink_to(to / room)


def compile_by_content(tree: Path) -> None:
    """Compiles the rooms such that Python compares contents: a mutant may have the size and time of its file."""
    command = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", *ROOMS]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)


def environment(tree: Path) -> dict[str, str]:
    """In which Python imports `paceline` from the copy, in every process that is started; no file is compiled."""
    return {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}


def check_imports(tree: Path) -> None:
    code = "import paceline.engine; print(paceline.engine.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tree, env=environment(tree), capture_output=True, text=True
    )
    if not found.stdout.startswith(str(tree)):
        raise WrongListError(f"the copy is not what is imported: {found.stdout}{found.stderr}")


# -- what to break


def source_files(words: list[str]) -> list[str]:
    paths = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    names = [path.relative_to(ROOT).as_posix() for path in paths]
    return [name for name in names if not words or any(word in name for word in words)]


def parts_of(source: str) -> dict[str, str]:
    """The trees of the functions of a file, and under "" what is outside of them."""
    tree = ast.parse(source)
    every = functions(tree)
    found = {name: ast.dump(each) for name, each in every.items()}
    for each in every.values():
        each.body = []
    return {**found, "": ast.dump(tree)}


def changed(file: str, revision: str) -> set[str]:
    shown = subprocess.run(["git", "show", f"{revision}:{file}"], cwd=ROOT, capture_output=True, text=True)
    before = parts_of(shown.stdout) if shown.returncode == 0 else {}
    return {name for name, tree in parts_of(source_of(file)).items() if before.get(name) != tree}


def population(files: Iterable[str], revision: str | None) -> list[tuple[str, Mutant]]:
    found: list[tuple[str, Mutant]] = []
    for file in files:
        wanted = None if revision is None else changed(file, revision)
        if wanted is None or wanted:
            every = mutants(source_of(file))
            found += [(file, each) for each in every if wanted is None or each.function in wanted]
    return found


def drawn(every: list[tuple[str, Mutant]], sample: int, seed: int) -> list[tuple[str, Mutant]]:
    """As many as `sample` says (0: all), in the order of files and lines."""
    shuffled = random.Random(seed).sample(range(len(every)), len(every))
    real = (i for i in shuffled if every[i][1].is_one(source_of(every[i][0])))
    return [every[i] for i in sorted(islice(real, sample or None))]


@cache
def source_of(file: str) -> str:
    return (ROOT / file).read_text()


# -- which tests


@cache
def costs_of_files() -> dict[str, float]:
    """CPU seconds of the fast part, by file of tests."""
    costs = defaultdict[str, float](float)
    for line in COSTS.read_text().splitlines()[1:]:
        test, cases, seconds = line.split("\t")
        costs["tests/" + test.split("::")[0]] += min(int(cases) * float(seconds), max(float(seconds), CASES))
    return costs


@cache
def test_files() -> dict[str, str]:
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted(ROOT.glob("tests/**/test_*.py"))}


@cache
def candidates(file: str) -> dict[str, int]:
    """Files of tests that may reach a source file, as many as `CANDIDATES` allows, and how far each is: 0 is near."""
    module = "paceline." + file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    package, _, stem = module.rpartition(".")
    defined = re.findall(r"^(?:def|class) (\w+)", source_of(file), re.MULTILINE)
    word = re.compile(rf"\b({'|'.join(map(re.escape, (stem, *defined)))})\b")
    ranked: list[tuple[int, float, str]] = []
    for name, text in test_files().items():
        ranks = (
            stem in Path(name).stem or f"from {module} import" in text or f"from {package} import {stem}" in text,
            word.search(text) is not None and f"from {package} import" in text,
            word.search(text) is not None,
            package in text,
            name.split("/")[1] == file.split("/")[0],
        )
        if any(ranks):
            ranked.append((ranks.index(True), costs_of_files()[name], name))
    chosen, spent = dict[str, int](), 0.0
    for rank, cost, name in sorted(ranked):
        if not chosen or spent + cost <= CANDIDATES:
            chosen[name] = rank
            spent += cost
    return chosen


class Reached:
    """Which passing tests reach which function, with the seconds that each takes."""

    def __init__(self, folders: list[Path]) -> None:
        self.failed = {test: said for where in folders for test, said in noted(where, "failed")}
        took = [each for where in folders for each in noted(where, "took")]
        self.seconds: dict[str, float] = {test: seconds for test, seconds in took if test not in self.failed}
        self._tests = defaultdict[tuple[str, str], set[str]](set)
        for test, file, function in (each for where in folders for each in noted(where, "reached")):
            for key in (file, function), (file, ""):
                self._tests[key] |= {test} & self.seconds.keys()

    def of(self, file: str, function: str) -> list[str]:
        """The tests of a function ("": of the file): near ones, then others, each the quickest within `LONGEST`."""
        spent, chosen = [0.0, 0.0], list[tuple[bool, str]]()
        for test in sorted(self._tests[file, function], key=lambda test: (self.seconds[test], test)):
            far = candidates(file).get(test.split("::")[0], 1) > 0
            if spent[far] == 0 or spent[far] + self.seconds[test] <= LONGEST:
                spent[far] += self.seconds[test]
                chosen.append((far, test))
        return [test for _, test in sorted(chosen, key=lambda each: each[0])]


# -- running


def pytest(tree: Path, arguments: list[str], limit: float, **environ: str) -> tuple[int | None, str]:
    """Its exit status, None where it took too long, and the end of what it said."""
    options = ["-q", "-p", "no:cacheprovider", "-p", "reached"]
    command = [sys.executable, "-m", "pytest", *options, "-m", "not slow and not fault and not browser", *arguments]
    path = f"{tree}{os.pathsep}{tree / 'tests'}"
    environ = {**environment(tree), "PYTHONDONTWRITEBYTECODE": "", "PYTHONPATH": path, **environ}
    with tempfile.TemporaryFile("w+") as out:  # no pipe, which a worker that is left could hold open
        started = subprocess.Popen(command, cwd=tree, env=environ, start_new_session=True, stdout=out, stderr=out)
        try:
            started.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()
            return None, f"it took more than {limit:.0f} s"
        out.seek(0)
        return started.returncode, "\n".join(out.read().splitlines()[-12:])


def record(trees: list[Path], files: list[str], where: Path) -> Reached:
    """Runs the tests that may reach the files, in all trees at once, and notes which do."""
    tests = sorted({test for file in files for test in candidates(file)})
    folders = [where / tree.name for tree in trees]

    def run(i: int) -> None:
        folders[i].mkdir(parents=True)
        (folders[i] / "now").write_text("")
        for file in files:
            (trees[i] / file).write_text(instrumented(source_of(file), file))
        share = tests[i :: len(trees)]
        status, said = pytest(trees[i], share, 3600, MUTATIONS_REACHED=str(folders[i])) if share else (PASSED, "")
        for file in files:
            (trees[i] / file).write_text(source_of(file))
        if status not in (PASSED, FAILED):
            raise WrongListError(f"pytest ends with {status}:\n{said}")

    with ThreadPoolExecutor() as pool:
        list(pool.map(run, range(len(trees))))
    return Reached(folders)


def run_chosen(tree: Path, tests: list[str], limit: float) -> tuple[int | None, str]:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(tests, file)
        file.flush()
        paths = sorted({test.split("::")[0] for test in tests})
        return pytest(tree, ["-x", *paths], limit, MUTATIONS_CHOSEN=file.name)


def verdict(tree: Path, file: str, text: str, run: Callable[[], tuple[int | None, str]]) -> str:
    try:
        (tree / file).write_text(text)
        status, said = run()
    finally:
        (tree / file).write_text(source_of(file))
    return "survived" if status == PASSED else f"wrong: {said}" if status == EMPTY else "noticed"


def check_unbroken(status: int | None, said: str) -> str:
    if status != PASSED:
        raise WrongListError(f"unbroken, the tests end with {status}:\n{said}")
    return "fine"


def judge(tree: Path, file: str, mutant: Mutant, reached: Reached) -> str:
    tests, text = reached.of(file, mutant.function), mutant.of(source_of(file))
    limit = 30 + 5 * sum(reached.seconds[test] for test in tests)
    found = verdict(tree, file, text, lambda: run_chosen(tree, tests, limit)) if tests else "unreached"
    report(file, mutant.line, source_of(file), text, found)
    return found


def judge_named(tree: Path, each: Named) -> str:
    source = source_of(each.file)
    if source.count(each.old) != 1:
        raise WrongListError(f"{each.file}: has {source.count(each.old)} times, not once:\n{each.old}")
    tests = ["-x", "--all-cases", *shlex.split(each.tests)]
    check_unbroken(*pytest(tree, tests, 400))
    text = source.replace(each.old, each.new)
    found = verdict(tree, each.file, text, lambda: pytest(tree, tests, 400))
    report(each.file, source[: source.index(each.old)].count("\n") + 1, source, text, found)
    return found


def report(file: str, line: int, old: str, new: str, found: str) -> None:
    if found == "noticed":
        return
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm=""))[3:]
    why = "no test reaches it" if found == "unreached" else found
    print("\n".join([f"{file}:{line}: {why}", *(f"    {each}" for each in lines)]), flush=True)


def judged(sample: list[tuple[str, Mutant]], named: list[Named]) -> Counter[str]:
    """How many mutants had which verdict. The mutants go through the copies of the tree, `AT_ONCE` at a time."""
    counts, free = Counter[str](), queue.Queue[Path]()
    with tempfile.TemporaryDirectory(prefix="paceline-mutations-") as name:
        trees = [Path(name) / str(i) for i in range(AT_ONCE)]
        for tree in trees:
            tree.mkdir()
            copy_of_the_tree(tree)
            check_imports(tree)
            compile_by_content(tree)
            free.put(tree)
        began = time.monotonic()
        files = sorted({file for file, _ in sample})
        reached = record(trees, files, Path(name) / "reached")
        print(f"{len(reached.seconds)} tests were measured in {time.monotonic() - began:.0f} s", flush=True)
        for test, said in sorted(reached.failed.items()):
            print(f"left out, as it fails unbroken: {test[:100]}: {said}")

        def work(job: Callable[[Path], str]) -> str:
            tree = free.get()
            try:
                return job(tree)
            except WrongListError as error:
                print(f"wrong: {error}", flush=True)
                return "wrong"
            finally:
                free.put(tree)

        def unbroken(file: str) -> Callable[[Path], str]:
            every = {test for each, mutant in sample if each == file for test in reached.of(file, mutant.function)}
            return lambda tree: check_unbroken(*run_chosen(tree, sorted(every), 3600)) if every else "fine"

        with ThreadPoolExecutor(AT_ONCE) as pool:
            fine = dict(zip(files, pool.map(work, map(unbroken, files)), strict=True))
            counts["wrong"] += sum(fine[file] == "wrong" for file, _ in sample)
            jobs = [
                lambda tree, file=file, mutant=mutant: judge(tree, file, mutant, reached)
                for file, mutant in sample
                if fine[file] == "fine"
            ]
            jobs += [lambda tree, each=each: judge_named(tree, each) for each in named]
            counts.update(each.split(":")[0] for each in pool.map(work, jobs))
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description="Break source files in a copy, and see whether a test fails")
    parser.add_argument("words", nargs="*", help="of the paths of files")
    parser.add_argument("--changed", metavar="REV", help="functions alone that differ from this revision")
    parser.add_argument("--sample", type=int, default=SAMPLE, help="mutants at most; 0 for all (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    options = parser.parse_args()
    began = time.monotonic()
    for word in options.words:
        if not any(word in each for each in [*source_files([]), *(each.file for each in NAMED)]):
            parser.error(f"{word}: no source file has this in its path. Choose a part of a path, such as local_sgd.")
    if options.sample < 0:
        parser.error(f"--sample {options.sample}: must be at least 0. Choose 0 for all mutants.")
    commit = ["git", "rev-parse", "--quiet", "--verify", f"{options.changed}^{{commit}}"]
    if options.changed is not None and subprocess.run(commit, cwd=ROOT, capture_output=True).returncode:
        parser.error(f"--changed {options.changed}: no such revision. Choose one that `git log` knows.")
    every = population(source_files(options.words), options.changed)
    sample = drawn(every, options.sample, options.seed)
    touched = {file for file, _ in every}
    named = [each for each in NAMED if each.file in touched or not options.changed]
    named = [each for each in named if not options.words or any(word in each.file for word in options.words)]
    print(f"{len(sample)} of {len(every)} mutants (--seed {options.seed}), and {len(named)} named ones", flush=True)
    counts = judged(sample, named)
    survived = counts["survived"] + counts["unreached"]
    print(
        f"{counts.total()} mutants: {counts['noticed']} noticed, {survived} survived "
        f"({counts['unreached']} that no test reaches), {counts['wrong']} wrong, {time.monotonic() - began:.0f} s"
    )
    return 2 if counts["wrong"] else 1 if survived else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except WrongListError as error:
        print(f"mutations: {error}", file=sys.stderr)
        sys.exit(2)
