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
GPT3 = "parameters=175e9 tokens=300e9"
V100 = f"{GPT3} devices=1 flops=46.2e12"
A100S = f"{GPT3} devices=1024 flops=140e12"
EIGHT = "devices=8 flops=19.5e12 occupancy=0.5"
LECTURE = f"{EIGHT} owning=55534 renting=143544"
SPOT = "time=500h between=24h checkpoint=5min restart=10min"
BILLION = "model=gpt_1b data=text tokens=20e9"


OWN = """
from torch import nn

class Tiny(nn.Sequential):
    def __init__(self, vocabulary: int = 128) -> None:
        super().__init__(nn.Embedding(vocabulary, 4), nn.Linear(4, vocabulary))
"""


@pytest.fixture
def answer(paceline):
    """The JSON document of a question: results, and inputs by symbol."""

    def ask(words: str, *more: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        ended = paceline("cost", *words.split(), *more, "--format", "json")
        assert ended.status == 0, ended.err
        document = json.loads(ended.out)
        assert document["formulas"].keys() == document["results"].keys()
        return document["results"], {each["symbol"]: each for each in document["inputs"]}

    return ask


@pytest.fixture
def told(paceline):
    """The table's lines, with one blank between columns."""

    def ask(words: str) -> list[str]:
        ended = paceline("cost", *words.split())
        assert ended.status == 0, ended.err
        return [" ".join(line.split()) for line in ended.out.splitlines()]

    return ask


# -- training time and rent


def test_gpt3_on_one_v100_takes_288_years_and_on_1024_a100_34_days(told) -> None:
    assert told(V100)[0].startswith(
        "training time 288 years t = F T P / (n X) (Narayanan et al. 2021, arXiv 2104.04473"
    )
    assert told(A100S)[0].startswith("training time 33.9 days ")


def test_every_input_is_shown_with_where_it_came_from(answer) -> None:
    _, inputs = answer(V100)
    assert {symbol for symbol, each in inputs.items() if each["source"] == "given"} == {"T", "P", "n", "X"}
    assert inputs["F"]["source"] == "default: as in Narayanan et al. 2021; recompute=false is 6"


def test_without_recomputation_it_is_six_eighths(answer) -> None:
    whole, _ = answer(A100S)
    less, inputs = answer(A100S, "recompute=false")
    assert less["training_hours"] / whole["training_hours"] == pytest.approx(6 / 8)
    assert inputs["F"]["source"] == "given: recompute"


def test_suffixes_are_powers_of_ten(answer) -> None:
    assert answer("parameters=175B tokens=0.3T devices=1 flops=46.2T")[0] == answer(V100)[0]


def test_dollars_are_those_of_a_price_or_are_said_to_be_unknown(told, answer) -> None:
    results, inputs = answer(A100S, "price_per_hour=2")
    assert results["rent_dollars"] == pytest.approx(results["training_hours"] * 1024 * 2)
    assert inputs["m"]["source"] == "default: each device is a machine"
    assert answer(A100S, "price_per_hour=16", "machines=128")[0]["rent_dollars"] == results["rent_dollars"]
    assert answer(A100S)[0]["rent_dollars"] is None
    assert any(
        line.startswith("rent on demand unknown US$ t m p; price_per_hour=DOLLARS gives") for line in told(A100S)
    )
    assert answer("time=10h price_per_hour=3")[0] == {"rent_dollars": 30}


def test_hardware_and_model_are_those_of_the_configuration(answer) -> None:
    results, inputs = answer(f"{BILLION} hardware=a100_8 hardware.workers=20 precision=bf16")
    expected = 2 * 50257 * 2048 + 1024 * 2048 + 16 * (12 * 2048**2 + 13 * 2048) + 2 * 2048
    assert inputs["P"]["value"] == expected and inputs["P"]["source"] == "counted: model=gpt_1b"
    assert results["training_hours"] == pytest.approx(6 * 20e9 * expected / (20 * 140e12) / 3600)
    assert results["rent_dollars"] == pytest.approx(results["training_hours"] * 3 * 27.44705)  # 20 take 3 machines
    assert inputs["n"]["source"] == "given: hardware.workers"
    assert inputs["X"]["source"].startswith("bfloat16, as precision=bf16 trains; hardware=a100_8: ")
    assert "Megatron-LM reached" in inputs["X"]["source"]
    assert inputs["p"]["source"] == (
        "hardware=a100_8: AWS p4de.24xlarge, on-demand list price, us-east-1, November 2026"
    )
    assert inputs["F"]["value"] == 6 and inputs["F"]["source"] == "model.recompute=false"


def test_what_the_configuration_overrides_is_given(answer) -> None:
    price, rate = "hardware.machine.price_per_hour=10", "hardware.machine.flops.bfloat16=2e14"
    _, inputs = answer(f"{BILLION} hardware=a100_8 {price} {rate} precision=bf16 model.recompute=true")
    assert (inputs["p"]["value"], inputs["p"]["source"]) == (10, "given: hardware.machine.price_per_hour")
    assert inputs["X"]["value"] == 2e14 and "given: hardware.machine.flops.bfloat16" in inputs["X"]["source"]
    assert (inputs["F"]["value"], inputs["F"]["source"]) == (8, "model.recompute=true")


def test_the_rate_is_that_of_the_chosen_precision(answer) -> None:
    _, inputs = answer(f"{BILLION} hardware=a100_8")
    assert inputs["X"]["value"] == 1.5e13
    assert inputs["X"]["source"].startswith("float32, as precision=fp32 trains; hardware=a100_8")


def test_a_laptop_has_one_cpu_and_no_price(told, answer) -> None:
    words = f"{BILLION} hardware=laptop hardware.workers=8"
    assert any("workers share the CPU of one machine" in line for line in told(words))
    assert answer(words)[0]["rent_dollars"] is None
    assert answer(f"{words} price_per_hour=1")[1]["p"]["source"] == "given"


def test_a_model_goes_with_inputs_for_the_hardware_and_the_other_way_round(answer) -> None:
    by_inputs, _ = answer(f"{BILLION} devices=8 flops=140e12")
    by_choice, inputs = answer(
        "parameters=1013686272 tokens=20e9 recompute=false hardware=a100_8 hardware.workers=8 precision=bf16"
    )
    assert by_inputs["training_hours"] == by_choice["training_hours"]
    assert inputs["P"]["source"] == "given"


def test_parameters_are_counted_without_being_allocated(answer, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Any] = []
    made = GPT.__init__

    @functools.wraps(made)  # knobs are checked by its signature
    def watch(self: GPT, *arguments: Any, **knobs: Any) -> None:
        made(self, *arguments, **knobs)
        built.append({parameter.device.type for parameter in self.parameters()})

    monkeypatch.setattr(GPT, "__init__", watch)
    _, inputs = answer("model=gpt_100m data=text tokens=1e12 devices=8 flops=1e14")
    assert built == [{"meta"}] and 1e8 < inputs["P"]["value"] < 2e8


def test_parameters_of_experts_are_those_that_compute_a_token(answer) -> None:
    _, inputs = answer("model=mixtral_8x7b data=text tokens=1e12 devices=8 flops=1e14")
    assert inputs["P"]["value"] == 12_879_925_248
    assert inputs["P"]["source"] == "counted: model=mixtral_8x7b, of which model.active=2 of 8 experts"


def test_a_time_beyond_all_measure_is_short(told) -> None:
    assert told("parameters=1e18 tokens=1e18 devices=1 flops=1")[0].startswith("training time 2.53678e29 years")


def test_hardware_of_ones_own_has_its_own_sources(paceline, here: Path) -> None:
    (here / "conf" / "hardware").mkdir(parents=True)
    text = (CONF / "hardware" / "t4.yaml").read_text().replace("0.526  # AWS", "0.25  # \x1b[31mour own, 2026; not AWS")
    (here / "conf" / "hardware" / "mine.yaml").write_text(text.replace("\x1b", "\u200f"))
    out = paceline("cost", *GPT3.split(), "hardware=mine", "--config-dir", "conf").out
    assert "hardware=mine: \\u200f[31mour own, 2026; not AWS" in out and "\u200f" not in out


# -- files


def test_a_file_has_inputs_and_choices_and_the_line_wins(answer, here: Path) -> None:
    (here / "inputs.yaml").write_text(
        "tokens: 20e9\nmodel: gpt_1b\ndata: text\nhardware: {name: a100_8, workers: 64}\nprecision: bf16\ncard: a100\n"
    )
    typed, _ = answer(f"{BILLION} hardware=a100_8 hardware.workers=64 precision=bf16 card=a100")
    assert answer("--config inputs.yaml")[0] == typed
    assert answer("--config inputs.yaml tokens=40e9")[0]["energy_kwh"] == pytest.approx(2 * typed["energy_kwh"])


def test_a_runs_configuration_may_hold_keys_that_no_answer_depends_on(answer, here: Path) -> None:
    (here / "run.yaml").write_text("model: gpt_1b\ndata: text\nsync: asp\ncheckpoint: {keep: 3}\n")
    assert answer("--config run.yaml tokens=20e9 devices=8 flops=140T")[1]["P"]["source"] == "counted: model=gpt_1b"


# -- buy or rent


def test_dollars_are_read_with_their_sign_or_name_and_other_currencies_are_refused(paceline, answer) -> None:
    named, plain = (
        answer(f"{EIGHT} owning={owning} renting={renting}")
        for owning, renting in (("$55534", "143544USD"), ("55534", "143544"))
    )
    assert named == plain
    ended = paceline("cost", *EIGHT.split(), "owning=55534EUR", "renting=143544")
    assert (ended.status, ended.last) == (
        2,
        "owning=55534EUR: prices are in US dollars. Give it in them, such as 5000USD",
    )


def test_a_year_of_eight_devices_bought_and_on_demand(told) -> None:
    lines = told(LECTURE)
    assert "work of a year 2,459,808 PFLOP Y = 31,536,000 o n X" in lines
    assert "bought 44.3 PFLOP a dollar Y / D" in lines and "rented 17.1 PFLOP a dollar Y / H" in lines
    assert "owning costs less from an occupancy of 19.3 % D o / H" in lines


def test_from_a_price_its_depreciation_is_said(answer) -> None:
    words = f"{EIGHT} price=222136 depreciation=25% price_per_hour=32.7726 machines=1"
    results, inputs = answer(words)
    assert results["owning_dollars_per_year"] == 55_534
    assert round(results["renting_dollars_per_year"]) == 143_544
    assert inputs["running"]["source"].startswith("default: none")
    assert answer(words, "running=1000")[0]["owning_dollars_per_year"] == 56_534


def test_renting_may_always_cost_less(told) -> None:
    assert "above 100 %: owning costs more at any occupancy" in told(f"{EIGHT} owning=9e5 renting=1e5")[-7]


# -- spot machines


def test_spot_has_youngs_and_dalys_interval_the_time_and_the_dollars(answer, told) -> None:
    results, inputs = answer(f"{SPOT} spot_price=12 price_per_hour=40 machines=2")
    assert results["young_interval_hours"] == pytest.approx(
        (2 * 5 / 60 * 12) ** 0.5
    )  # two machines: half the mean time
    assert results["daly_spot_dollars"] == pytest.approx(results["daly_expected_hours"] * 2 * 12)
    assert results["rent_dollars"] == 500 * 2 * 40
    assert results["daly_interruptions"] == pytest.approx(results["daly_expected_hours"] / 12)
    assert inputs["m"]["source"] == "given"
    lines = told(SPOT)
    assert any(line.startswith("checkpoint interval (Young) 2 hours") and "Young 1974, CACM" in line for line in lines)
    assert any(line.startswith("checkpoint interval (Daly) 1.94 hours") and "equation 37" in line for line in lines)
    assert any(line.startswith("rent on spot (Daly) unknown US$ E m s; spot_price=DOLLARS") for line in lines)


def test_an_interval_of_ones_own_is_answered_too(answer) -> None:
    results, _ = answer(SPOT, "interval=10h")
    assert results["given_checkpoints"] == 50
    assert results["given_expected_hours"] > results["daly_expected_hours"] * 1.1


# -- energy


def test_energy_of_a_card_has_its_source_and_the_defaults_theirs(answer) -> None:
    results, inputs = answer("time=34d devices=1024 card=a100")
    assert results["energy_kwh"] == pytest.approx(34 * 24 * 1024 * 0.4 * PUE.value)
    assert results["emissions_kg_co2e"] == pytest.approx(results["energy_kwh"] * WORLD.value)
    assert inputs["w"]["source"] == "NVIDIA A100 80GB SXM data sheet, 2021: TDP"
    assert inputs["PUE"]["source"] == PUE.source and inputs["c"]["source"] == WORLD.source


def test_every_figure_of_energy_can_be_given(answer) -> None:
    results, inputs = answer("time=14.8d devices=10000 watts=330 utilisation=0.5 pue=1.1 intensity=0.429")
    assert results["energy_kwh"] == pytest.approx(14.8 * 24 * 10000 * 0.33 * 0.5 * 1.1)
    assert results["emissions_kg_co2e"] == pytest.approx(results["energy_kwh"] * 0.429)
    assert all(each["source"] == "given" for each in inputs.values())


def test_energy_and_interruptions_follow_from_the_training_time(answer) -> None:
    whole, _ = answer(f"{A100S} card=a100 between=2000d checkpoint=5min restart=10min")
    hours = whole["training_hours"]
    assert whole["energy_kwh"] == answer(f"time={hours}h devices=1024 card=a100")[0]["energy_kwh"]
    assert whole["daly_expected_hours"] > hours


# -- the four commands that there were


@pytest.mark.parametrize(
    ("was", "now"),
    [
        (
            "days --parameters 175B --tokens=300B --devices 1024 --flops 140T --no-recompute",
            "parameters=175B tokens=300B devices=1024 flops=140T recompute=false",
        ),
        (
            "days model=gpt_1b data=text --tokens 20e9 hardware=a100_8 --precision bfloat16",
            "model=gpt_1b data=text tokens=20e9 hardware=a100_8 precision=bf16",
        ),
        (
            "buy --devices 8 --flops 1T --occupancy 50% --owning 9 --price-per-hour 3",
            "devices=8 flops=1T occupancy=50% owning=9 price_per_hour=3 machines=1",
        ),
        (
            "spot --time 72h --between 6h --checkpoint 90s --restart 10min --spot-price 12 --price-per-hour 40",
            "time=72h between=6h checkpoint=90s restart=10min spot_price=12 price_per_hour=40",
        ),
        ("energy --time 34d --devices 1024 --card a100", "time=34d devices=1024 card=a100"),
    ],
    ids=["days", "choices", "buy", "spot", "energy"],
)
def test_a_former_command_answers_and_says_its_new_line(was: str, now: str, paceline) -> None:
    ended = paceline("cost", *was.split())
    name = was.split()[0]
    new = paceline("cost", *now.split())
    assert ended.err == f"cost {name}: is now one command. Write: paceline cost {now}\n" + new.err
    assert ended.status == 0 and ended.out == new.out


# -- what is refused


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (f"{GPT3} devices=1 flops=-1", "flops=-1: must be at least 1 "),
        (
            "devices=8 flops=1T occupancy=80 owning=1 renting=1",
            "occupancy=80: must be at least 1e-9 and at most 1, such as 50% or 0.5",
        ),
        (
            "time=72h between=1s machines=16 checkpoint=90s restart=1s",
            "between=1s: 16 machines are interrupted every 1.73611e-05 hours, and that must be at least 0.0001 ",
        ),
        (f"{GPT3} devices=1 flops=nan", "flops=nan: must be a number such as"),
        (f"{GPT3} devices=1 flops=1e40", "flops=1e40: must be at least 1 and at most 1e18"),
        (
            "time=500h between=1s checkpoint=5min restart=10min",
            "between=1s: an interruption every 0.000277778 hours is too often for pieces of ",
        ),
        (
            "time=500h between=1h checkpoint=9min restart=9min interval=400h",
            "interval=400h: an interruption every 1 hours is too often for pieces of ",
        ),
        ("tokens=lots parameters=175e9", "tokens=lots: must be a number such as 300e9, 300B or 0.5"),
        (f"{GPT3} devices=1.5 flops=1e12", "devices=1.5: must be a whole number"),
        (f"{GPT3} devices=0 flops=1e12", "devices=0: must be a whole number, at least 1"),
        ("parameters=7B", "tokens: is missing. It is how many the model is trained on"),
        ("tokens=1T", "parameters: is missing"),
        (GPT3, "devices: is missing. It is how many train; or give hardware=a100_8"),
        (f"{BILLION} parameters=7B devices=1 flops=1T", "parameters=7B: model=gpt_1b has its own"),
        (f"{BILLION} recompute=true", "recompute=true: model.recompute=false says the opposite"),
        (f"{V100} recompute=maybe", "recompute=maybe: must be true or false"),
        (f"{BILLION} hardware=a100_8 flops=1T", "flops=1T: hardware=a100_8 has its own"),
        (f"{BILLION} hardware=a100_8 devices=2", "devices=2: hardware=a100_8 has its own"),
        (f"{BILLION} hardware=a100_8 price_per_hour=2", "price_per_hour=2: hardware=a100_8 has its own"),
        (
            f"{BILLION} hardware=t4 precision=bf16",
            "the hardware has no rate in bfloat16. Choose precision=fp32 or precision=fp16",
        ),
        (f"{V100} precision=fp32", "precision=fp32: goes with a choice of hardware"),
        (f"{GPT3} hardware.workers=4", "hardware.workers=4: hardware.machine=null says neither how fast"),
        (f"{GPT3} hardware=a100_8 hardware.workers=null", "give hardware.workers=N"),
        (f"{V100} optimizer.lr=1", "optimizer.lr=1: no answer depends on it"),
        (f"{V100} hardwear=t4", "did you mean hardware"),
        ("model=cnn tokens=1e9 devices=1 flops=1T", "data=digits: has no tokens"),
        (f"{LECTURE} price=9", "price=9: owning takes its place"),
        (f"{LECTURE} price_per_hour=9", "price_per_hour=9: renting takes its place"),
        (f"{V100} time=3d", "time=3d: tokens takes its place"),
        (f"{V100} machines=3", "machines=3: nothing that is asked depends on it"),
        (f"{EIGHT} price=1e5 depreciation=30 renting=9", "depreciation=30: must be at least 1e-9 and at most 1"),
        (EIGHT, "price: is missing. It is the price of all devices together; or give owning=DOLLARS a year"),
        (f"{EIGHT} owning=1", "price_per_hour: is missing"),
        (f"{SPOT} restart=10", "restart=10: must be a number with a unit: 90s, 10min, 24h or 3d"),
        (f"{SPOT} restart=-10s", "restart=-10s: must be at least 0 and at most 10,000 hours"),
        (f"{V100} flops=1e-320", "must be at least 1 and at most 1e18"),
        (f"{SPOT} interval=1e-300s", "must be at least 0.0001 and at most 1e7 hours"),
        (f"{SPOT} interval=0h", "interval=0h: must be at least 0.0001"),
        (f"{SPOT} restart=4000h", "training would never end"),
        ("checkpoint=5min", "time: is missing"),
        ("time=1h checkpoint=5min", "between: is missing"),
        ("time=1h devices=1 pue=2", "watts: is missing. It is the power of one device; card=a100"),
        ("time=1h devices=1 card=b7", "card=b7: must be one of t4, v100, a100"),
        ("time=1h devices=1 card=t4 watts=9", "watts=9: card takes its place"),
        ("time=1h devices=1 card=t4 pue=0.5", "pue=0.5: must be at least 1"),
        ("time=1e9999h devices=1 card=t4", "time=1e9999h: must be at least 0.0001"),
        ("devices=8", "devices=8: asks nothing by itself. Give one of training time: tokens, parameters"),
        ("hardware=a100_8", "hardware=a100_8: asks nothing by itself"),
        ("tokens", "tokens: must be KEY=VALUE. Keys are tokens, parameters, "),
        ("--tokens 3", "--tokens: is no option. Write tokens=VALUE"),
        ("--confg 3", "--confg: is no option. paceline cost -h shows the options"),
        ("buy --nothing 3", "nothing: "),
        ("--config none.yaml", "--config none.yaml: cannot be read"),
    ],
)
def test_what_cannot_be_is_refused_with_key_value_and_rule(words: str, says: str, paceline) -> None:
    ended = paceline("cost", *words.split())
    assert (ended.status, ended.out) == (2, "") and "Traceback" not in ended.err
    assert says in ended.last


def test_help_has_an_example_of_each_question_that_is_answered(paceline) -> None:
    out = paceline("cost", "--help").out
    examples = [line.strip() for line in out.splitlines() if line.strip().startswith("paceline cost ")]
    assert len(examples) == 7
    for example in examples:
        if "--config" not in example:
            assert paceline(*example.split()[1:]).status == 0, example


@pytest.mark.parametrize(("command", "printed"), SHOWN, ids=[command for command, _ in SHOWN])
def test_the_page_shows_what_its_commands_print(command: str, printed: str, paceline) -> None:
    assert paceline(*command.split()[1:]).out == printed


def test_the_page_answers_each_question() -> None:
    commands = " ".join(command for command, _ in SHOWN)
    assert all(f" {key}=" in commands for key in ("tokens", "model", "card", "between", "owning"))


def test_a_model_of_ones_own_is_found_here_and_recomputes_if_that_is_said(answer, here: Path) -> None:
    (here / "cost_of_mine.py").write_text(OWN)
    tiny = "model={_target_:cost_of_mine.Tiny} data=text hardware=a100_8 tokens=1e9 --allow-module cost_of_mine"
    _, inputs = answer(tiny)
    assert inputs["P"]["value"] == 128 * 4 + 4 * 128 + 128
    assert inputs["F"]["value"] == 6 and "model=Tiny has no key recompute" in inputs["F"]["source"]
    assert answer(f"{tiny} recompute=true")[1]["F"]["value"] == 8


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("parameters=7B", "tokens=1T", "devices=8", "flop=140T"), "flop: there is no such key; did you mean flops?"),
        (("params=7B", "tokens=1T", "hardware=h100"), "params: there is no such key; did you mean parameters?"),
        (("model=gpt_1b", "data=text", "hardware=h100", "token=1T"), "token: there is no such key; did you mean tok"),
    ],
)
def test_a_misspelt_input_is_taken_for_the_nearest_input(words: tuple[str, ...], says: str, paceline) -> None:
    ended = paceline("cost", *words)
    assert ended.status == 2 and ended.last.startswith(says)
