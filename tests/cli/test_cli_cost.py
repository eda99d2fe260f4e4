"""`paceline cost`: the lectures' questions from one line each, where every input came from, and what is refused."""

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.choices import CONF
from paceline.cost.energy import PUE, WORLD
from paceline.tasks.models.gpt import GPT

PAGE = (Path(__file__).parents[2] / "docs" / "cost.md").read_text()
SHOWN = re.findall(r"```sh\n(paceline [^\n]*)\n```\n```text\n(.*?)```", PAGE, flags=re.S)
GPT3 = ("--parameters", "175e9", "--tokens", "300e9")
ONE_V100 = (*GPT3, "--devices", "1", "--flops", "46.2e12")
A100S = (*GPT3, "--devices", "1024", "--flops", "140e12")
EIGHT = ("--devices", "8", "--flops", "19.5e12", "--occupancy", "0.5")
LECTURE = (*EIGHT, "--owning", "55534", "--renting", "143544")
SPOT = ("--time", "500h", "--between", "24h", "--checkpoint", "5min", "--restart", "10min")
BILLION = ("model=gpt_1b", "data=text", "--tokens", "20e9")


@pytest.fixture
def answer(paceline):
    """The JSON document of a question, with its inputs by symbol."""

    def ask(*words: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        ended = paceline("cost", *words, "--format", "json")
        assert ended.status == 0, ended.err
        document = json.loads(ended.out)
        assert document["question"] == words[0] and document["formulas"]
        return document["results"], {each["symbol"]: each for each in document["inputs"]}

    return ask


# -- days


def test_gpt3_on_one_v100_takes_288_years_and_on_1024_a100_34_days(paceline) -> None:
    assert paceline("cost", "days", *ONE_V100).out.startswith("training takes 288 years\n")
    assert paceline("cost", "days", *A100S).out.startswith("training takes 34 days\n")


def test_dollars_are_read_with_their_sign_or_name_and_other_currencies_are_refused(paceline, answer) -> None:
    named, plain = (
        answer("buy", *EIGHT, "--owning", owning, "--renting", renting)
        for owning, renting in (("$55534", "143544USD"), ("55534", "143544"))
    )
    assert named == plain
    ended = paceline("cost", "buy", *EIGHT, "--owning", "55534EUR", "--renting", "143544")
    assert (ended.status, ended.last) == (
        2,
        "--owning 55534EUR: prices are in US dollars; give it in them, such as 5000USD",
    )


def test_the_formula_and_every_input_are_shown_with_where_they_came_from(paceline, answer) -> None:
    out = paceline("cost", "days", *ONE_V100).out
    assert "seconds = F T P / (n X) = 8 x 3e11 x 1.75e11 / (1 x 4.62e13) = 9.09091e9" in out
    assert "Narayanan et al. 2021, arXiv 2104.04473, equation 4" in out
    _, inputs = answer("days", *ONE_V100)
    assert {symbol: each["source"] for symbol, each in inputs.items() if symbol != "F"} == {
        "T": "given: --tokens",
        "P": "given: --parameters",
        "n": "given: --devices",
        "X": "given: --flops",
    }
    assert inputs["F"]["source"] == "default: with recomputation, as in Narayanan et al. 2021; --no-recompute is 6"


def test_without_recomputation_it_is_six_eighths(answer) -> None:
    whole, _ = answer("days", *A100S)
    less, inputs = answer("days", *A100S, "--no-recompute")
    assert less["days"] / whole["days"] == pytest.approx(6 / 8)
    assert inputs["F"]["source"] == "given: --no-recompute"


def test_suffixes_are_powers_of_ten(answer) -> None:
    words = ("--parameters", "175B", "--tokens", "0.3T", "--devices", "1", "--flops", "46.2T")
    assert answer("days", *words)[0] == answer("days", *ONE_V100)[0]


def test_dollars_are_those_of_a_price_or_are_said_to_be_unknown(paceline, answer) -> None:
    results, _ = answer("days", *A100S, "--price-per-hour", "2")
    assert results["dollars"] == pytest.approx(results["seconds"] / 3600 * 1024 * 2)
    assert answer("days", *A100S)[0]["dollars"] is None
    assert "dollars: unknown, as no price is known; --price-per-hour DOLLARS" in paceline("cost", "days", *A100S).out


def test_hardware_and_model_are_those_of_the_configuration(answer) -> None:
    hardware = ("hardware=a100_8", "hardware.workers=20")
    results, inputs = answer("days", *BILLION, *hardware, "--precision", "bfloat16")
    expected = 2 * 50257 * 2048 + 1024 * 2048 + 16 * (12 * 2048**2 + 13 * 2048) + 2 * 2048
    assert inputs["P"]["value"] == expected and inputs["P"]["source"] == "counted: model=gpt_1b"
    assert results["seconds"] == pytest.approx(6 * 20e9 * expected / (20 * 140e12))
    assert results["dollars"] == pytest.approx(results["seconds"] / 3600 * 3 * 27.44705)  # 20 devices take 3 machines
    assert inputs["n"]["source"] == "given: hardware.workers"
    assert "Megatron-LM reached" in inputs["X"]["source"] and inputs["X"]["source"].startswith("hardware=a100_8: ")
    assert inputs["p"]["source"] == (
        "hardware=a100_8: AWS p4de.24xlarge, on-demand list price, us-east-1, November 2026"
    )
    assert inputs["F"]["value"] == 6 and inputs["F"]["source"] == "model.recompute=false"


def test_what_the_configuration_overrides_is_given(answer) -> None:
    price, rate = "hardware.machine.price_per_hour=10", "hardware.machine.flops.bfloat16=2e14"
    words = (*BILLION, "hardware=a100_8", price, rate, "--precision", "bfloat16", "model.recompute=true")
    _, inputs = answer("days", *words)
    assert (inputs["p"]["value"], inputs["p"]["source"]) == (10, "given: hardware.machine.price_per_hour")
    assert (inputs["X"]["value"], inputs["X"]["source"]) == (2e14, "given: hardware.machine.flops.bfloat16")
    assert (inputs["F"]["value"], inputs["F"]["source"]) == (8, "model.recompute=true")


def test_the_rate_is_that_of_the_chosen_precision_unless_another_is_asked_for(answer) -> None:
    _, inputs = answer("days", *BILLION, "hardware=a100_8")
    assert inputs["X"]["value"] == 1.5e13
    assert inputs["X"]["source"].startswith("float32, as precision=fp32 trains (--precision); hardware=a100_8")
    assert answer("days", *BILLION, "hardware=a100_8", "precision=bf16")[1]["X"]["value"] == 1.4e14


def test_a_laptop_has_one_cpu_and_no_price(paceline) -> None:
    out = paceline("cost", "days", *BILLION, "hardware=laptop", "hardware.workers=8").out
    assert "dollars: unknown, as no price is known; hardware.machine.price_per_hour=DOLLARS" in out
    assert "workers share the CPU of one machine" in out


def test_a_model_goes_with_options_for_the_hardware_and_the_other_way_round(answer) -> None:
    by_options, _ = answer("days", *BILLION, "--devices", "8", "--flops", "140e12")
    by_choice, inputs = answer(
        "days",
        "--parameters",
        "1013686272",
        "--tokens",
        "20e9",
        "--no-recompute",
        "hardware=a100_8",
        "--precision",
        "bfloat16",
    )
    assert by_options["seconds"] == by_choice["seconds"]
    assert inputs["P"]["source"] == "given: --parameters"


def test_parameters_are_counted_without_being_allocated(answer, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Any] = []
    made = GPT.__init__

    @functools.wraps(made)  # knobs are checked by its signature
    def watch(self: GPT, *arguments: Any, **knobs: Any) -> None:
        made(self, *arguments, **knobs)
        built.append({parameter.device.type for parameter in self.parameters()})

    monkeypatch.setattr(GPT, "__init__", watch)
    _, inputs = answer("days", "model=gpt_100m", "data=text", "--tokens", "1e12", "--devices", "8", "--flops", "1e14")
    assert built == [{"meta"}] and 1e8 < inputs["P"]["value"] < 2e8


def test_a_time_beyond_all_measure_is_short(paceline) -> None:
    out = paceline("cost", "days", "--parameters", "1e18", "--tokens", "1e18", "--devices", "1", "--flops", "1").out
    assert out.startswith("training takes 2.53678e29 years\n")


def test_hardware_of_ones_own_has_its_own_sources(paceline, here: Path) -> None:
    (here / "conf" / "hardware").mkdir(parents=True)
    text = (CONF / "hardware" / "t4.yaml").read_text().replace("0.526  # AWS", "0.25  # \x1b[31mour own, 2026; not AWS")
    (here / "conf" / "hardware" / "mine.yaml").write_text(text.replace("\x1b", "\u200f"))
    out = paceline("cost", "days", *GPT3, "hardware=mine", "--config-dir", "conf").out
    assert "hardware=mine: \\u200f[31mour own, 2026; not AWS" in out and "\u200f" not in out


# -- buy


def test_a_year_of_eight_devices_bought_and_on_demand(paceline) -> None:
    out = paceline("cost", "buy", *LECTURE).out
    assert "bought, a dollar is worth 44.3 PFLOP; on demand, 17.1\n" in out
    assert "a year of work is 2,459,808 PFLOP\n" in out
    assert "W = n X 31,536,000 s u = 8 x 1.95e13 x 31,536,000 x 0.5\n" in out
    assert "owning costs less from an occupancy of 19.3% on\n" in out


def test_from_a_price_its_depreciation_is_said(paceline, answer) -> None:
    words = (*EIGHT, "--price", "222136", "--depreciation", "25%", "--price-per-hour", "32.7726")
    results, inputs = answer("buy", *words)
    assert results["owning_dollars_per_year"] == 55_534
    assert round(results["renting_dollars_per_year"]) == 143_544
    assert inputs["running"]["source"].startswith("default: none")
    assert "D = price d + running = 55,534: straight-line" in paceline("cost", "buy", *words).out
    assert answer("buy", *words, "--running", "1000")[0]["owning_dollars_per_year"] == 56_534


def test_renting_may_always_cost_less(paceline) -> None:
    assert (
        "owning costs more at any occupancy"
        in paceline("cost", "buy", *EIGHT, "--owning", "9e5", "--renting", "1e5").out
    )


# -- spot


def test_spot_has_youngs_and_dalys_interval_the_time_and_the_dollars(answer, paceline) -> None:
    results, inputs = answer("spot", *SPOT, "--spot-price", "12", "--price-per-hour", "40", "--machines", "2")
    young, daly = results["rows"]
    assert (young["by"], daly["by"]) == ("Young", "Daly")
    assert young["interval_hours"] == pytest.approx((2 * 5 / 60 * 12) ** 0.5)  # two machines: half the mean time
    assert daly["dollars"] == pytest.approx(daly["expected_hours"] * 2 * 12)
    assert results["on_demand_dollars"] == 500 * 2 * 40
    assert daly["interruptions"] == pytest.approx(daly["expected_hours"] / 12)
    assert inputs["m"]["source"] == "given: --machines"
    out = paceline("cost", "spot", *SPOT).out
    assert "Young          120.0" in out and "Daly           116.7" in out
    assert "Daly 2006, FGCS 22(3), equation 37" in out and "Young 1974, CACM 17(9)" in out


@pytest.mark.parametrize(
    ("prices", "says"),
    [
        ((), "unknown, as no price is known: --spot-price for that on spot, --price-per-hour for that on demand"),
        (("--spot-price", "1"), "$548 on spot; unknown, as no price is known: --price-per-hour for that on demand"),
        (("--price-per-hour", "1"), "$500 on demand; unknown, as no price is known: --spot-price for that on spot"),
        (("--spot-price", "1", "--price-per-hour", "1"), "$548 on spot, $500 on demand: spot costs 10% more"),
        (("--spot-price", "1", "--price-per-hour", "2"), "$548 on spot, $1,000 on demand: spot costs 45% less"),
    ],
    ids=" ".join,
)
def test_spot_says_which_price_is_unknown(prices: tuple[str, ...], says: str, paceline) -> None:
    assert says in paceline("cost", "spot", *SPOT, *prices).out


def test_an_interval_of_ones_own_is_answered_too(answer, paceline) -> None:
    results, _ = answer("spot", *SPOT, "--interval", "10h")
    assert [row["by"] for row in results["rows"]] == ["Young", "Daly", "given"]
    assert results["rows"][2]["checkpoints"] == 50
    assert results["rows"][2]["expected_hours"] > results["rows"][1]["expected_hours"] * 1.1
    first = paceline("cost", "spot", *SPOT, "--interval", "9d").out.splitlines()[0]
    assert first.startswith("a checkpoint after each 6.9 days of work (given): 21 days of training")


# -- energy


def test_energy_of_a_card_has_its_source_and_the_defaults_theirs(answer) -> None:
    results, inputs = answer("energy", "--time", "34d", "--devices", "1024", "--card", "a100")
    assert results["kwh"] == pytest.approx(34 * 24 * 1024 * 0.4 * PUE.value)
    assert results["kg_co2e"] == pytest.approx(results["kwh"] * WORLD.value)
    assert inputs["w"]["source"] == "NVIDIA A100 80GB SXM data sheet, 2021: TDP"
    assert inputs["PUE"]["source"] == PUE.source and inputs["c"]["source"] == WORLD.source


def test_every_figure_of_energy_can_be_given(answer) -> None:
    given = ("--watts", "330", "--utilisation", "0.5", "--pue", "1.1", "--intensity", "0.429")
    results, inputs = answer("energy", "--time", "14.8d", "--devices", "10000", *given)
    assert results["kwh"] == pytest.approx(14.8 * 24 * 10000 * 0.33 * 0.5 * 1.1)
    assert results["kg_co2e"] == pytest.approx(results["kwh"] * 0.429)
    assert all(each["source"].startswith("given: --") for each in inputs.values())


# -- what is refused


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("days", *ONE_V100[:-1], "-1"), "--flops -1: must be at least 1 "),
        (
            ("buy", "--devices", "8", "--flops", "1T", "--occupancy", "80", "--owning", "1", "--renting", "1"),
            "--occupancy 80: must be at least 1e-9 and at most 1, such as 50% or 0.5",
        ),
        (
            (
                *("spot", "--time", "72h", "--between", "1s", "--machines", "16"),
                "--checkpoint",
                "90s",
                "--restart",
                "1s",
            ),
            "--between 1s: 16 machines are interrupted every 1.73611e-05 hours, and that must be at least 0.0001 ",
        ),
        (("days", *ONE_V100[:-1], "nan"), "--flops nan: must be a number such as"),
        (("days", *ONE_V100[:-1], "1e40"), "--flops 1e40: must be at least 1 and at most 1e18"),
        (
            ("spot", "--time", "500h", "--between", "1s", "--checkpoint", "5min", "--restart", "10min"),
            "--between: an interruption every 0.000277778 hours is too often for pieces of ",
        ),
        (
            (
                *("spot", "--time", "500h", "--between", "1h"),
                *("--checkpoint", "9min", "--restart", "9min", "--interval", "400h"),
            ),
            "--interval: an interruption every 1 hours is too often for pieces of ",
        ),
        (("days", "--tokens", "lots", *ONE_V100[:2]), "--tokens lots: must be a number such as 300e9, 300B or 0.5"),
        (("days", *GPT3, "--devices", "1.5", "--flops", "1e12"), "--devices 1.5: must be a whole number"),
        (("days", *GPT3, "--devices", "0", "--flops", "1e12"), "--devices 0: must be a whole number, at least 1"),
        (("days", "--parameters", "7B"), "--tokens: is missing; it is how many the model is trained on"),
        (("days", "--tokens", "1T"), "--parameters: is missing"),
        (("days", *GPT3), "--devices: is missing; it is how many train; or hardware=a100_8"),
        (("days", *BILLION, "--parameters", "7B"), "--parameters: model=gpt_1b is given, too, and has its own"),
        (("days", *BILLION, "--recompute"), "--recompute: model.recompute=false is given, too, and says the opposite"),
        (("days", *BILLION, "hardware=a100_8", "--flops", "1T"), "--flops: hardware is given, too"),
        (("days", *BILLION, "hardware=a100_8", "--devices", "2"), "has hardware.workers"),
        (("days", *BILLION, "hardware=a100_8", "--price-per-hour", "2"), "has hardware.machine.price_per_hour"),
        (
            ("days", *BILLION, "hardware=t4", "--precision", "bfloat16"),
            "no rate in bfloat16; known are float32, float16",
        ),
        (("days", *ONE_V100, "--precision", "float32"), "--precision float32: goes with a choice of hardware"),
        (("days", *GPT3, "hardware.workers=4"), "hardware.workers=4: hardware.machine=null says neither how fast"),
        (("days", *GPT3, "hardware=a100_8", "hardware.workers=null"), "give hardware.workers=N"),
        (("days", *ONE_V100, "optimizer.lr=1"), "optimizer.lr=1: days do not depend on it"),
        (("days", *ONE_V100, "hardwear=t4"), "did you mean hardware"),
        (("days", "model=cnn", "--tokens", "1e9", *ONE_V100[4:]), "data=digits: has no tokens"),
        (("buy", *LECTURE, "--price", "9"), "--owning: --price is given, too, and owning follows from it"),
        (("buy", *LECTURE, "--price-per-hour", "9"), "--renting: --price-per-hour is given, too"),
        (
            ("buy", *EIGHT, "--price", "1e5", "--depreciation", "30", "--renting", "9"),
            "--depreciation 30: must be at least 1e-9 and at most 1",
        ),
        (("buy", *EIGHT), "--price: is missing; it is of all devices together; or --owning DOLLARS"),
        (("buy", *EIGHT, "--owning", "1"), "--price-per-hour: is missing"),
        (("spot", *SPOT[:-1], "10"), "--restart 10: must be a number with a unit: 90s, 10min, 24h or 3d"),
        (("spot", *SPOT[:-1], "-10s"), "--restart -10s: must be at least 0 and at most 10,000 hours"),
        (("days", *ONE_V100[:-1], "1e-320"), "must be at least 1 and at most 1e18"),
        (("spot", *SPOT, "--interval", "1e-300s"), "must be at least 0.0001 and at most 1e7 hours"),
        (("spot", *SPOT, "--interval", "0h"), "--interval 0h: must be at least 0.0001"),
        (("spot", *SPOT[:-1], "4000h"), "training would never end"),
        (("spot", *SPOT[:2]), "--between: is missing"),
        (
            ("energy", "--time", "1h", "--devices", "1"),
            "--watts: is missing; it is the power of one device; --card a100",
        ),
        (("energy", "--time", "1h", "--devices", "1", "--card", "b7"), "--card b7: must be one of t4, v100, a100"),
        (("energy", "--time", "1h", "--devices", "1", "--card", "t4", "--watts", "9"), "--watts: --card is given, too"),
        (("energy", "--time", "1h", "--devices", "1", "--card", "t4", "--pue", "0.5"), "--pue 0.5: must be at least 1"),
        (("energy", "--time", "1e9999h", "--devices", "1", "--card", "t4"), "--time 1e9999h: must be at least 0.0001"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_is_refused_with_option_value_and_rule(words: tuple[str, ...], says: str, paceline) -> None:
    ended = paceline("cost", *words)
    assert (ended.status, ended.out) == (2, "") and "Traceback" not in ended.err
    assert says in ended.last


@pytest.mark.parametrize("question", ["days", "buy", "spot", "energy"])
def test_help_has_the_formula_and_an_example_that_is_answered(question: str, paceline) -> None:
    out = paceline("cost", question, "--help").out
    examples = [line.strip() for line in out.splitlines() if line.strip().startswith(f"paceline cost {question} ")]
    assert (len(examples) >= 2 and " = " in out) or "F T P / (n X)" in out
    for example in examples:
        assert paceline(*example.partition("      ")[0].partition("    ")[0].split()[1:]).status == 0, example


def test_cost_alone_names_its_questions(paceline) -> None:
    ended = paceline("cost", "--help")
    assert ended.status == 0 and all(
        f"paceline cost {each} " in ended.out for each in ("days", "buy", "spot", "energy")
    )


@pytest.mark.parametrize(("command", "printed"), SHOWN, ids=[command for command, _ in SHOWN])
def test_the_page_shows_what_its_commands_print(command: str, printed: str, paceline) -> None:
    assert paceline(*command.split()[1:]).out == printed


def test_the_page_shows_an_answer_to_each_question() -> None:
    assert {command.split()[2] for command, _ in SHOWN} == {"days", "buy", "spot", "energy"}
