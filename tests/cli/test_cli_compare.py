"""`paceline compare` over run directories."""

import csv
import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
from needs import needs_latex

from paceline.tracking.latex import escaped, latex_table
from paceline.tracking.run_directory import RunDirectory


@pytest.fixture
def runs(here: Path) -> Path:
    """Three runs: `slow`, `fast`, and `going`, which has not ended; made in this order."""
    for age, (name, throughput, accuracy) in enumerate([("slow", 100.0, 0.9), ("fast", 400.0, 0.8)]):
        run = RunDirectory.create(here / "runs", name)
        run.write_summary(
            {
                "name": name,
                "status": "completed",
                "model": "mlp",
                "data": "digits",
                "strategy": "data_parallel",
                "sync": "bsp",
                "workers": 2,
                "throughput": throughput,
                "accuracy": accuracy,
            }
        )
        os.utime(run.metrics, (age, age))
    RunDirectory.create(here / "runs", "going").append({"kind": "start", "sync": "asp", "workers": 4})
    return here / "runs"


def names(out: str) -> list[str]:
    return [row["run"] for row in json.loads(out)]


def test_without_names_every_run_is_there_the_latest_last(paceline, runs: Path) -> None:
    assert names(paceline("compare", "--format", "json").out) == ["slow", "fast", "going"]


def test_pictures_of_runs_that_have_not_finished_are_refused(paceline, runs: Path) -> None:
    ended = paceline("compare", "going", "--png", "pictures")
    assert (ended.status, ended.last) == (
        2,
        "--png pictures: these runs have nothing to draw. Choose runs that have finished.",
    )
    assert not Path("pictures").exists()


@pytest.mark.parametrize("width", ["140", "80", "40", "20", "5"])
def test_a_baselines_speed_up_is_shown_at_any_width(
    width: str, paceline, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    ended = paceline("compare", "--baseline", "slow")
    assert ended.out.splitlines()[0].split()[:2] == ["run", "speed-up"] and "4.00x" in ended.out


def test_latex_has_booktabs_rules_and_shows_special_characters_as_they_are(paceline, runs: Path) -> None:
    made = paceline("compare", "slow", "fast", "--columns", "run,accuracy", "--format", "latex")
    assert made.out.splitlines() == [
        r"% needs \usepackage{booktabs}",
        r"\begin{tabular}{lr}",
        r"  \toprule",
        r"  run & accuracy \\",
        r"  \midrule",
        r"  slow & 90.00\% \\",
        r"  fast & 80.00\% \\",
        r"  \bottomrule",
        r"\end{tabular}",
    ]
    words = ("--format", "latex", "--caption", "50 % & more_of {this}", "--label", "tab:two_runs")
    captioned = paceline("compare", "slow", "fast", *words).out.splitlines()
    assert captioned[1:5] == [
        r"\begin{table}",
        r"  \centering",
        r"  \caption{50 \% \& more\_of \{this\}}",
        r"  \label{tab:two_runs}",
    ]
    assert captioned[-1] == r"\end{table}"
    for wrong in (["--format", "latex", "--label", "a}b"], ["--caption", "text"], ["--label", "tab:x"]):
        assert paceline("compare", "slow", *wrong).status == 2


def test_latex_escapes_every_special_character() -> None:
    told = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "[a]": "{[}a{]}"}
    told |= {"--x---": "-{}-x-{}-{}-", "a-b": "a-b", "*": "{*}", "`'": r"\textasciigrave{}\textquotesingle{}"}
    told |= {mark: f"\\{mark}" for mark in "&%$#_{}"} | {"1 \u00b12": r"1 $\pm$2"}
    assert {text: escaped(text) for text in told} == told


def test_latex_names_the_letters_that_pdflatex_does_not_know() -> None:
    assert latex_table(["run"], [False], [["\u00fc\u00df \u6570\u6570"]]).startswith(
        "% needs \\usepackage{booktabs}, and XeLaTeX or LuaLaTeX for \u6570\n"
    )


@pytest.mark.slow
@needs_latex
def test_latex_is_compiled_with_every_special_character(paceline, runs: Path, here: Path) -> None:
    """The characters of ASCII, of which LaTeX gives most a meaning, umlauts, and what a table itself has."""
    odd = (
        "".join(map(chr, range(33, 127)))
        + " -- --- \u00e4\u00f6\u00fc\u00df \u00e9 \u2264 \u2265 \u2192 \u2026 \u00d7 \u20ac"
    )
    captioned = paceline("compare", "--baseline", "slow", "--format", "latex", "--caption", f"a\n\n{odd}")
    rows = [["*", "[x]", odd], ["[1ex]", odd, "1 \u00b12"], ["*", "", "-"]]
    cells = latex_table([odd, "[1ex]", "*"], [True, False, False], rows, odd, "t:a_b")
    head = "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n"
    (here / "t.tex").write_text(f"{head}{captioned.out}{cells}\\ref{{t:a_b}}\n\\end{{document}}\n")
    compiled = subprocess.run(["pdflatex", "-halt-on-error", "t.tex"], capture_output=True, cwd=here, text=True)
    assert compiled.returncode == 0, compiled.stdout[-2000:]
    assert "Missing character" not in (here / "t.log").read_text(errors="replace")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--size", "3x2"], "goes with --png"),
        (["--png", "pictures", "--size", "3"], "WIDTHxHEIGHT"),
        (["--png", "pictures", "--size", "0x2in"], "WIDTHxHEIGHT"),
        (["--png", "pictures", "--font", "Times"], "TrueType"),
        (["--png", "pictures", "--font", "200"], "3 to 72 points"),
        (["--png", "pictures", "--font", "conf.ttf"], "cannot be read as a TrueType font"),
    ],
)
def test_wrong_sizes_and_fonts_are_refused_before_anything_is_drawn(
    options: list[str], says: str, paceline, runs: Path, here: Path
) -> None:
    (here / "conf.ttf").write_text("no font")
    ended = paceline("compare", "slow", *options)
    assert ended.status == 2 and says in ended.last and not (here / "pictures").exists()


def test_named_runs_keep_their_order_and_may_be_paths(paceline, runs: Path) -> None:
    assert names(paceline("compare", "fast", "runs/slow", "--format", "json").out) == ["fast", "slow"]


def test_sort_puts_the_best_first_and_reverse_the_worst(paceline, runs: Path) -> None:
    assert names(paceline("compare", "--sort", "accuracy", "--format", "json").out) == ["slow", "fast", "going"]
    ended = paceline("compare", "--sort", "throughput", "--reverse", "--format", "json")
    assert names(ended.out) == ["slow", "fast", "going"]
    assert names(paceline("compare", "--sort", "throughput", "--format", "json").out) == ["fast", "slow", "going"]


def test_a_baseline_that_was_not_named_joins_the_table(paceline, runs: Path) -> None:
    rows = json.loads(paceline("compare", "fast", "--baseline", "slow", "--format", "json").out)
    assert [(row["run"], row["speedup_throughput"]) for row in rows] == [("slow", 1.0), ("fast", 4.0)]


def test_the_formats_tell_the_same(paceline, runs: Path) -> None:
    rows = json.loads(paceline("compare", "--format", "json").out)
    from_csv = list(csv.DictReader(paceline("compare", "--format", "csv").out.splitlines()))
    assert [row["throughput_samples_per_s"] for row in from_csv] == ["100.0", "400.0", ""]
    for format, mark in (("table", ""), ("markdown", "| ")):
        lines = paceline("compare", "--format", format).out.splitlines()
        body = lines[-3:]
        assert [line.removeprefix(mark).split()[0] for line in body] == [row["run"] for row in rows]


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["compare", "fats"], "did you mean fast"),
        (["compare", "--baseline", "slw"], "did you mean slow"),
        (["compare", "--sort", "acuracy"], "did you mean accuracy"),
    ],
    ids=" ".join,
)
def test_what_is_not_there_is_refused_with_the_nearest(arguments: list[str], hint: str, paceline, runs: Path) -> None:
    ended = paceline(*arguments)
    assert (ended.status, ended.out) == (2, "") and hint in ended.last


def test_without_any_run_it_says_how_to_get_one(paceline) -> None:
    ended = paceline("compare")
    assert (ended.status, ended.out) == (2, "") and "paceline train" in ended.last


@pytest.mark.parametrize("content", ["{", '{"name": "slow", "throughput": "fast"}'], ids=["truncated", "wrong type"])
def test_a_damaged_run_is_a_row_when_found_and_an_error_when_named(content: str, paceline, runs: Path) -> None:
    (runs / "slow" / "summary.json").write_text(content)
    ended = paceline("compare")
    assert ended.status == 0 and "slow (damaged)" in ended.out and "fast" in ended.out
    assert names(paceline("compare", "--format", "json").out) == ["slow", "fast", "going"]
    for arguments in (["slow"], ["fast", "slow"], ["fast", "--baseline", "slow"]):
        ended = paceline("compare", *arguments)
        assert (ended.status, ended.out) == (7, "") and "slow/summary.json" in ended.last
    assert paceline("compare", "fast").status == 0


def test_files_that_could_not_be_read_in_whole_are_a_line_each_beside_the_table(paceline, runs: Path) -> None:
    (runs / "slow" / "config.yaml").write_text("just text")
    with (runs / "going" / "metrics.jsonl").open("ab") as file:
        file.write(b"garbage\n")
    ended = paceline("compare")
    assert ended.status == 0 and ended.err.splitlines() == [
        f"{runs}/slow/config.yaml: is no YAML mapping",
        f"{runs}/going/metrics.jsonl: 1 line is no record (the first: line 2)",
    ]
    assert paceline("show", "slow").err == f"{runs}/slow/config.yaml: is no YAML mapping\n"


def test_a_reader_that_leaves_early_is_no_error(runs: Path, here: Path) -> None:
    command = [sys.executable, "-m", "paceline.cli.main", "compare"]
    process = subprocess.Popen(command, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait(30) == 0


# -- sweeps, conditions, reports


@pytest.fixture
def sweep(runs: Path) -> Path:
    """Two trials of two seeds each, the last of which failed."""
    for trial, seed in ((0, 0), (0, 1), (1, 0), (1, 1)):
        run = RunDirectory.create(runs / "rates", f"t{trial}-s{seed}")
        note = {"sweep": "rates", "trial": trial, "seed": seed, "parameters": {"optimizer.lr": 0.1 + trial}}
        (run.path / "trial.json").write_text(json.dumps(note))
        run.write_config(f"seed: {seed}\noptimizer: {{name: sgd, target: x.Y, knobs: {{lr: {0.1 + trial}}}}}\n")
        if (trial, seed) == (1, 1):
            run.append({"kind": "end", "status": "pruned", "reason": "pruned at epoch 1"})
        else:
            told = {"accuracy": 0.9 + seed / 100, "throughput": 100.0, "memory": {"parameters": 2**20}}
            run.write_summary({"name": run.name, "status": "completed", **told})
    (runs / "rates" / "sweep.yaml").touch()
    return runs / "rates"


def test_a_sweep_is_its_runs_with_seeds_as_one_row(paceline, sweep: Path) -> None:
    rows = json.loads(paceline("compare", "rates", "--format", "json").out)
    assert [(row["run"], row["n"], row["optimizer.lr"], row["others"]) for row in rows] == [
        ("t0", 2, 0.1, []),
        ("t1", 1, 1.1, ["t1-s1 (pruned)"]),
    ]
    assert names(paceline("compare", "rates", "--no-group", "--format", "json").out) == [
        "t0-s0",
        "t0-s1",
        "t1-s0",
        "t1-s1",
    ]
    out = paceline("compare", "rates").out
    assert "90.50% ±6.35" in out and "t1-s1 (pruned)" in out and "pruned at epoch 1" in out


def test_swept_numbers_are_numbers_to_select_and_sort_by(paceline, runs: Path) -> None:
    for trial, size in enumerate(["128", "8"]):
        run = RunDirectory.create(runs / "sizes", f"t{trial}")
        note = {"sweep": "sizes", "trial": trial, "seed": 0, "parameters": {"batch_size": size}}
        (run.path / "trial.json").write_text(json.dumps(note))
        run.write_config(f"batch_size: {size}\nseed: 0\n")
        run.write_summary({"name": run.name, "status": "completed"})
    (runs / "sizes" / "sweep.yaml").touch()
    told = json.loads(paceline("compare", "sizes", "--sort", "batch_size", "--format", "json").out)
    assert [(row["run"], row["batch_size"]) for row in told] == [("t1", 8), ("t0", 128)]
    assert names(paceline("compare", "sizes", "--where", "batch_size>=64", "--format", "json").out) == ["t0"]


def test_a_group_is_the_baseline_by_any_of_its_runs(paceline, sweep: Path) -> None:
    for name in ("t0-s0", "rates/t0-s1", "runs/rates/t0-s1"):
        rows = json.loads(paceline("compare", "rates", "--baseline", name, "--format", "json").out)
        assert [row["speedup_throughput"] for row in rows] == [1.0, 1.0] and len(rows) == 2
    ended = paceline("compare", "slow", "--baseline", "rates")
    assert (ended.status, ended.out) == (2, "") and "must be one run, and is 4 (t0-s0" in ended.last


def test_a_group_is_the_baseline_by_the_name_that_the_table_has_for_it(paceline, sweep: Path) -> None:
    by_run = paceline("compare", "rates", "--baseline", "t0-s1", "--format", "json").out
    for name in ("t0", "rates/t0"):
        assert paceline("compare", "rates", "--baseline", name, "--format", "json").out == by_run
    for name in ("rates/t0", "runs/rates/t0"):  # not among those named
        rows = json.loads(paceline("compare", "slow", "--baseline", name, "--format", "json").out)
        assert [(row["run"], row["n"]) for row in rows] == [("t0", 2), ("slow", 1)]
        assert [row["throughput_samples_per_s"] for row in rows] == [100, 100]
    ended = paceline("compare", "rates", "--no-group", "--baseline", "t0")
    assert (ended.status, ended.out) == (2, "") and "is 2 (t0-s0, t0-s1, ...); without --no-group" in ended.last
    ended = paceline("compare", "rates", "--baseline", "rates/t9")
    assert (ended.status, ended.out) == (2, "") and "no run 'rates/t9'" in ended.last


def test_rows_of_one_name_are_told_apart_by_their_sweeps(paceline, sweep: Path) -> None:
    shutil.copytree(sweep, sweep.parent / "again")
    for config in sweep.parent.glob("again/*/config.yaml"):
        config.write_text(config.read_text() + "epochs: 2\n")
    for note in sweep.parent.glob("again/*/trial.json"):
        note.write_text(note.read_text().replace("rates", "again"))
    told = json.loads(paceline("compare", "rates", "again", "--format", "json").out)
    assert [row["run"] for row in told] == ["rates/t0", "rates/t1", "again/t0", "again/t1"]
    assert told[2]["runs"] == ["again/t0-s0", "again/t0-s1"] and told[3]["others"] == ["again/t1-s1 (pruned)"]
    told = json.loads(paceline("compare", "rates", "again", "--baseline", "again/t0", "--format", "json").out)
    assert [row["speedup_throughput"] for row in told] == [1.0] * 4
    for name, rule in (("t0", "rates/t0 or again/t0"), ("t0-s1", "rates/t0-s1 or again/t0-s1")):
        ended = paceline("compare", "rates", "again", "--baseline", name)
        assert (ended.status, ended.out) == (2, "") and f"and is 2: {rule}" in ended.last


def test_plain_runs_are_shown_without_names_and_a_note_names_the_sweeps(paceline, sweep: Path) -> None:
    ended = paceline("compare", "--format", "json")
    assert names(ended.out) == ["slow", "fast", "going"] and "sweeps rates" in ended.err


def test_only_sweeps_are_to_be_named(paceline, here: Path) -> None:
    RunDirectory.create(here / "runs" / "only", "t0")
    (here / "runs" / "only" / "sweep.yaml").touch()
    ended = paceline("compare")
    assert (ended.status, ended.out) == (2, "") and "those of sweeps (only)" in ended.last


def test_conditions_columns_and_the_front_go_together(paceline, runs: Path) -> None:
    arguments = ["--where", "workers=2", "--where", "accuracy>=0.8", "--pareto", "accuracy,throughput"]
    out = paceline("compare", *arguments, "--columns", "accuracy,front,workers", "--sort", "accuracy").out
    assert [line.split() for line in out.splitlines()] == [
        ["run", "accuracy", "front", "workers"],
        ["slow", "90.00%", "*", "2"],
        ["fast", "80.00%", "*", "2"],
    ]


def test_the_front_is_a_column_by_itself_unless_it_is_among_those_asked_for(paceline, runs: Path) -> None:
    lines = paceline("compare", "--pareto", "accuracy", "--columns", "data,accuracy").out.splitlines()
    assert [line.split()[:2] for line in lines[:3]] == [["run", "front"], ["slow", "*"], ["fast", "-"]]
    header = paceline("compare", "--pareto", "accuracy", "--columns", "accuracy,front", "--format", "csv").out
    assert header.splitlines()[0] == "run,accuracy,front"
    alone = paceline("compare", "--columns", "accuracy", "--format", "csv").out
    assert alone.splitlines()[0] == "run,accuracy"


def test_one_run_is_counted_in_the_singular(paceline, runs: Path) -> None:
    assert paceline("compare", "slow", "--where", "accuracy>2").last == "none of 1 run fulfils accuracy>2"


@pytest.mark.parametrize("more", [[], ["--columns", "accuracy,workers"], ["--columns", "sync", "--sort", "accuracy"]])
def test_conditions_that_nothing_fulfils_are_no_error(more: list[str], paceline, runs: Path) -> None:
    ended = paceline("compare", "--where", "accuracy>2", *more)
    assert (ended.status, ended.out) == (0, "") and ended.last == "none of 3 runs fulfils accuracy>2"
    assert paceline("compare", "--where", "accuracy>2", *more, "--format", "json").out == "[]\n"


@pytest.mark.parametrize("more", [["--columns", "acuracy"], ["--columns", "speedup"], ["--sort", "acuracy"]])
def test_a_column_that_there_is_not_is_refused_even_if_no_row_is_shown(more: list[str], paceline, runs: Path) -> None:
    for condition in ([], ["--where", "accuracy>2"]):
        ended = paceline("compare", *condition, *more)
        assert (ended.status, ended.out) == (2, "") and f"no column '{more[1]}'" in ended.last


def test_the_memory_by_kind_is_shown_only_where_it_is_asked_for(paceline, sweep: Path) -> None:
    for form in ("table", "markdown", "csv", "json"):
        usual = paceline("compare", "rates", "--format", form).out
        assert "accuracy" in usual and "peak memory of the" not in usual and "parameters MiB" not in usual
    alone = paceline("compare", "rates", "--memory").out
    assert "parameters MiB" in alone and "accuracy" not in alone


def test_columns_in_the_environment_is_the_width_of_a_piped_table(
    paceline, sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = paceline("compare", "rates").out
    assert "left out" not in whole and max(map(len, whole.splitlines())) == 80
    monkeypatch.setenv("COLUMNS", "60")
    narrow = paceline("compare", "rates").out
    assert max(map(len, narrow.splitlines())) <= 60 and "left out to fit 60 columns: " in narrow
    assert "pruned at" in narrow, "the reason stays"
    for useless in ("", "0", "-5", "wide"):
        monkeypatch.setenv("COLUMNS", useless)
        assert paceline("compare", "rates").out == whole


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str], Path]]:
    """Stands for the writers of reports and pictures: what they were given."""
    given: list[tuple[str, list[str], Path]] = []

    def write_report(runs, file: Path, rows, columns, metric, requests) -> None:
        given.append(("html", [run.name for run in runs if run.records is not None], file))

    def write_pictures(runs, directory: Path, requests, alone: bool, style: object) -> list[Path]:
        given.append(("png", [run.name for run in runs], directory))
        return [directory / "a.png", directory / "a.pdf"]

    for name, function in (("report", write_report), ("pictures", write_pictures)):
        module = types.ModuleType(f"paceline.tracking.{name}")
        setattr(module, function.__name__, function)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return given


@pytest.mark.parametrize(
    ("more", "metric", "first"),
    [([], "throughput", "t1"), (["--sort", "accuracy"], "throughput", "t0"), (["slow"], None, "t0")],
    ids=["alone", "sorted", "beside"],
)
def test_the_report_of_a_sweep_ranks_by_the_sweeps_own_metric(
    more: list[str], metric: str | None, first: str, paceline, sweep: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[str | None, str]] = []
    (sweep / "sweep.yaml").write_text("metric: {name: throughput, goal: maximize}\n")
    RunDirectory(sweep / "t1-s0").write_summary(
        {"name": "t1-s0", "status": "completed", "accuracy": 0.5, "throughput": 900.0}
    )
    monkeypatch.setattr(
        "paceline.tracking.report.write_report",
        lambda runs, file, rows, columns, metric, requests: given.append((metric, rows[0]["run"])),
    )
    assert paceline("compare", "rates", *more, "--html", "r.html").status == 0
    assert given == [(metric, first)]


def test_a_report_and_pictures_are_of_the_runs_shown_each_by_itself(paceline, sweep: Path, here: Path, writers) -> None:
    ended = paceline("compare", "rates", "slow", "--where", "accuracy<0.906", "--html", "r.html", "--png", "pictures")
    shown = ["t0-s0", "t0-s1", "t1-s0", "t1-s1", "slow"]
    assert writers == [("html", shown, Path("r.html")), ("png", shown, Path("pictures"))]
    assert "slow" in ended.out and ended.err == "report: r.html\n2 pictures: pictures\n"


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (["--html", "no/where.html"], "--html no/where.html: must name a file to write; there is no directory no"),
        (["--html", "runs"], "--html runs: must name a file to write; is a directory"),
        (["--html", "loop"], "--html loop: must name a file to write; it is a link to itself"),
        (["--html", "/dev/full"], "--html /dev/full: must name a file to write; it is a device or a pipe"),
        (["--html", "report.PDF"], "--html report.PDF: writes .html and no .pdf. Choose a name that ends in .html."),
        (["--png", "runs/slow/summary.json"], "must name a directory, and is a file"),
        (["--png", "step.png"], "--png step.png: must name a directory; its pictures have names of their own"),
    ],
    ids=" ".join,
)
def test_where_nothing_can_be_written_is_refused_at_once(arguments, rule, paceline, runs: Path, writers) -> None:
    Path("loop").symlink_to("loop")
    ended = paceline("compare", *arguments)
    assert (ended.status, ended.out, writers) == (2, "", []) and rule in ended.last


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (["--columns", ""], "--columns '': must name columns, such as accuracy,bytes"),
        (["--columns", " , "], "--columns ' , ': must name columns"),
        (["--pareto", ""], "--pareto '': must name columns"),
        (["--sort", ""], "no column ''"),
        (["--where", ""], "must be NAME, one of"),
        (["--baseline", ""], "run '': must be the name or path of a run"),
        (["--png", ""], "--png '': must name a directory"),
        (["--html", ""], "must name a file to write"),
        ([""], "run '': must be the name or path of a run"),
    ],
)
def test_what_is_left_empty_is_refused(arguments, rule, paceline, runs: Path, writers) -> None:
    ended = paceline("compare", *arguments)
    assert (ended.status, ended.out, writers) == (2, "", []) and rule in ended.last


def test_an_encoding_without_the_signs_is_given_others(sweep: Path, here: Path) -> None:
    command = [sys.executable, "-m", "paceline.cli.main", "compare", "rates"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "90.50% +/-6.35" in done.stdout


@pytest.mark.parametrize(
    ("figure", "rule"),
    [
        ("x=optimizer.lr y=acuracy", "did you mean accuracy"),
        ("x=optimizer.lr", "y= is missing"),
        ("no.yaml", "--figure no.yaml: cannot be read"),
    ],
)
def test_a_figure_that_cannot_be_drawn_is_refused_before_anything_is_shown(
    figure: str, rule: str, paceline, sweep: Path
) -> None:
    ended = paceline("compare", "rates", "--png", "pictures", "--figure", figure)
    assert (ended.status, ended.out) == (2, "") and rule in ended.last and not Path("pictures").exists()


def test_a_figure_without_a_place_to_draw_it_is_refused(paceline, sweep: Path) -> None:
    ended = paceline("compare", "rates", "--figure", "x=optimizer.lr y=accuracy")
    assert ended.status == 2 and "--html FILE or --png DIR" in ended.last


def test_a_figure_is_drawn_alone_and_those_of_the_sweep_come_with_the_others(
    paceline, sweep: Path, here: Path, writers: list[tuple[str, list[str], Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[list[str], bool]] = []
    monkeypatch.setattr(
        sys.modules["paceline.tracking.pictures"],
        "write_pictures",
        lambda runs, directory, requests, alone, style: (
            given.append(([r.text for r in requests], alone)) or [directory]
        ),
    )
    own, other = "x=optimizer.lr y=accuracy", "x=optimizer.lr y=throughput"
    (sweep / "sweep.yaml").write_text(f"figures: ['{own}', 'x=no.such y=accuracy', 'nonsense']\n")
    (here / "file.yaml").write_text(f"description: |\n  What for?\n  --figure {other}\n")
    for more in ([], ["--figure", other], ["--figure", "file.yaml"]):
        assert paceline("compare", "rates", "--png", "pictures", *more).status == 0
    assert given == [([own], False), ([other], True), ([other], True)]


def test_columns_that_take_the_records_are_shown_when_they_are_asked_for(paceline, runs: Path) -> None:
    run = RunDirectory.create(runs, "evaluated")
    for step, accuracy in ((10, 0.5), (20, 0.95), (30, 0.97)):
        run.append({"kind": "evaluation", "step": step, "epoch": step / 10, "accuracy": accuracy})
    run.write_summary({"name": run.name, "status": "completed", "target_accuracy": 0.9})
    told = paceline("compare", "evaluated", "--columns", "epochs_to_accuracy", "--format", "json").out
    assert json.loads(told) == [{"run": "evaluated", "epochs_to_accuracy": 2.0}]
    told = paceline("compare", "evaluated", "--format", "json").out
    assert json.loads(told)[0]["steps_to_accuracy"] == 20
    run.write_summary({"name": run.name, "status": "completed", "target_accuracy": 0.9, "time_to_accuracy": 3.0})
    for words in (["--columns", "time_per_pass"], ["--columns", "PASS S"], ["--where", "time_per_pass<2"]):
        told = paceline("compare", "evaluated", *words, "--format", "json").out
        assert json.loads(told)[0].get("time_per_pass_s", 1.5) == 1.5
