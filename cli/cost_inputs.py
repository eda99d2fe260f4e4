"""The inputs of `paceline cost`: KEY=VALUE, a file's, those of a configuration, and defaults."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from ..conf.errors import ConfigError
from ..cost.layout import DTYPES
from ..cost.quantity import Quantity
from .cost_choices import HAVE, ComposedExperiment, choose
from .cost_numbers import Number

NUMBERS = {
    number.name: number
    for number in (
        Number("tokens", "T", "tokens", "tokens", "how many the model is trained on, such as 300e9"),
        Number("parameters", "P", "parameters", "parameters", "how many compute a token; or model=gpt_1b data=text"),
        Number("devices", "n", "devices", "devices", "how many train; or give hardware=a100_8 hardware.workers=64"),
        Number("flops", "X", "flops", "flops a second, a device", "what one device sustains; or give hardware=a100_8"),
        Number("machines", "m", "machines", "machines", "how many are rented, and may be taken away one by one"),
        Number("price_per_hour", "p", "price_per_hour", "US$ an hour, a machine", "the price of a machine on demand"),
        Number("time", "t", "hours", "hours", "how long training takes, such as 34d; or give what it follows from"),
        Number("watts", "w", "watts", "W a device", "the power of one device; card=a100 has its TDP"),
        Number("utilisation", "u", "utilisation", "of the power", "the share of the power that is drawn"),
        Number("pue", "PUE", "pue", "", "what the data centre draws over what its computers draw"),
        Number("intensity", "c", "intensity", "kg CO2e a kWh", "what the grid emits"),
        Number("between", "M1", "between", "hours", "the mean time between interruptions of one machine"),
        Number("checkpoint", "d", "checkpoint", "hours", "how long training stops for a checkpoint"),
        Number("restart", "R", "restart", "hours", "the time from an interruption until training goes on"),
        Number("interval", "tau", "interval", "hours", "the work between two checkpoints"),
        Number("spot_price", "s", "price_per_hour", "US$ an hour, a machine", "the price of a spot machine"),
        Number("occupancy", "o", "occupancy", "of the year", "the share of the year that devices are at work"),
        Number("price", "price", "price", "US$", "the price of all devices together; or give owning=DOLLARS a year"),
        Number("depreciation", "delta", "depreciation", "of the price, a year", "the share of the price, such as 25%"),
        Number("running", "running", "running", "US$ a year", "power, cooling, hosting, people"),
        Number("owning", "D", "owning", "US$ a year", "what the devices cost in a year"),
        Number("renting", "H", "renting", "US$ a year", "what the hours at work of a year cost"),
    )
}  # fmt: skip
QUESTIONS = {
    "training time": ("tokens", "parameters", "recompute"),
    "energy": ("card", "watts", "utilisation", "pue", "intensity"),
    "spot machines": ("between", "checkpoint", "restart", "interval", "spot_price"),
    "buy or rent": ("occupancy", "owning", "price", "depreciation", "running", "renting"),
}
# An input on the left is not used where one on the right is given.
INSTEAD = {
    "time": ("tokens", "parameters"),
    "watts": ("card",),
    **dict.fromkeys(("price", "depreciation", "running"), ("owning",)),
    "price_per_hour": ("renting",),
}
KEYS = (*NUMBERS, "card", "recompute")
_FORMER = {"days": (), "buy": ("price-per-hour",), "spot": (), "energy": ()}  # options that were of all machines
_PRECISIONS = {dtype: precision for precision, dtype in DTYPES.items()}
_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")


def former(words: list[str]) -> list[str] | None:
    """Returns the words for one of the four commands that there were: `days --tokens 20B` is `tokens=20B`.

    None: it is none of these.
    """
    if words[0] not in _FORMER:
        return None
    found: list[str] = []
    rest = iter(words[1:])
    for word in rest:
        name, equals, value = word.partition("=")
        key = name.removeprefix("--").replace("-", "_")
        if not name.startswith("--"):
            found.append(word)
        elif key.removeprefix("no_") == "recompute":
            found.append(f"recompute={str(key == 'recompute').lower()}")
        else:
            value = value if equals else next(rest, "")
            found.append(f"precision={_PRECISIONS.get(value, value)}" if key == "precision" else f"{key}={value}")
            if name.removeprefix("--") in _FORMER[words[0]]:
                found.append("machines=1")
    return found


@dataclass
class Given:
    """The inputs, each read when a formula asks for it; `used` has them in that order."""

    texts: dict[str, str]
    chosen: ComposedExperiment | None
    used: list[Quantity] = field(default_factory=list)
    _asked: set[str] = field(default_factory=set)

    def asks(self, question: str) -> bool:
        if question == "training time" and self.chosen is not None and self.chosen.names_a_model:
            return True
        return any(key in self.texts for key in QUESTIONS[question])

    def has(self, key: str) -> bool:
        return key in self.texts or (self.chosen is not None and self.chosen.has(key))

    def need(self, key: str) -> float:
        """Raises `ConfigError` if it is missing."""
        value = self.read(key)
        if value is None:
            raise NUMBERS[key].missing()
        return value

    def read(self, key: str) -> float | None:
        """Raises `ConfigError`."""
        if (known := next((each for each in self.used if each.name == key), None)) is not None:
            return known.value
        found = self._factor() if key == "flops_per_parameter" else self._quantity(key)
        if found is not None:
            self.used.append(found)
        return None if found is None else found.value

    def check_all_used(self) -> None:
        """Raises `ConfigError` for an input on which no answer depends."""
        for key, text in self.texts.items():
            if key in self._asked:
                continue
            if self.chosen is not None and self.chosen.has(key):
                typed = " ".join(each for each in self.chosen.overrides if each.startswith(HAVE[key]))
                raise ConfigError(f"{key}={text}: {typed} has its own. Leave one of them out")
            other = next((other for other in INSTEAD.get(key, ()) if other in self.texts), None)
            if other is not None:
                raise ConfigError(f"{key}={text}: {other} takes its place. Leave one of them out")
            raise ConfigError(f"{key}={text}: nothing that is asked depends on it. Leave it out")

    def unasked(self) -> ConfigError:
        """Returns the error of inputs that ask nothing by themselves."""
        typed = " ".join(f"{key}={text}" for key, text in self.texts.items())
        typed = typed or " ".join(self.chosen.overrides if self.chosen else ())
        needs = "; ".join(f"{name}: {', '.join(keys)}" for name, keys in QUESTIONS.items())
        return ConfigError(f"{typed}: asks nothing by itself. Give one of {needs}; rent: time, price_per_hour")

    def _quantity(self, key: str) -> Quantity | None:
        from ..cost import energy

        if self.chosen is not None and self.chosen.has(key):
            found = self.chosen.quantity(key)
            if found is not None or key not in self.texts:
                return found
        if key == "watts" and "card" in self.texts:
            return self._card()
        self._asked.add(key)
        if key in self.texts:
            return NUMBERS[key].read(self.texts[key])
        defaults = {"pue": energy.PUE, "intensity": energy.WORLD, "utilisation": energy.UTILISATION}
        if key == "machines":
            source = "default: each device is a machine" if self.has("devices") else "default"
            return Quantity("m", "machines", self.read("devices") or 1, "machines", source)
        if key == "running":
            return Quantity("running", "running", 0.0, "US$ a year", "default: none (power, cooling, hosting, people)")
        return defaults.get(key)

    def _card(self) -> Quantity:
        """Raises `ConfigError`."""
        from ..cost.energy import TDP
        from ..tracking.text import shown

        self._asked.add("card")
        card = self.texts["card"]
        if card not in TDP:
            raise ConfigError(f"card={shown(card)}: must be one of {', '.join(TDP)}; or give its power as watts=W")
        return TDP[card]

    def _factor(self) -> Quantity:
        """Returns F of `recompute`, else of the model that is chosen, else with recomputation. Raises `ConfigError`."""
        from ..cost.training_time import flops_per_parameter

        self._asked.add("recompute")
        text = self.texts.get("recompute")
        if text is not None and text.lower() not in (*_TRUE, *_FALSE):
            raise ConfigError(f"recompute={text}: must be true or false")
        given = None if text is None else text.lower() in _TRUE
        chosen = self.chosen if self.chosen is not None and self.chosen.names_a_model else None
        said = None if chosen is None else chosen.recomputes()
        if said is not None and given is not None and said[0] != given:
            raise ConfigError(f"recompute={text}: {said[1]} says the opposite. Leave one of them out")
        usual = True, "default: as in Narayanan et al. 2021; recompute=false is 6"
        if chosen is not None:
            usual = False, f"default: model={chosen.experiment.model.name} has no key recompute; recompute=true is 8"
        does, source = (given, "given: recompute") if given is not None else said or usual
        what = "2 forward, 4 backward, 2 again" if does else "2 forward, 4 backward"
        unit = f"flops a parameter and token: {what}"
        return Quantity("F", "flops_per_parameter", flops_per_parameter(does), unit, source)


def _near(key: str) -> str:
    """Returns `did you mean flops?` for a word that is no key of a configuration, and "" otherwise."""
    from ..engine.config.experiment import Experiment
    from ..engine.config.group_overrides import FOLDERS
    from ..tracking.text import did_you_mean

    is_known = not key.isidentifier() or key in (*Experiment.model_fields, *FOLDERS)
    return "" if is_known else did_you_mean(key, KEYS, 0.7)


def given_by(words: list[str], config: Path | None, config_dir: Path | None, allow_module: list[str] | None) -> Given:
    """Returns the inputs of the line and the file; the line wins. Raises `ConfigError`."""
    texts: dict[str, str] = {}
    overrides: list[str] = []
    for word in words:
        key, equals, value = word.partition("=")
        name = key.lstrip("-").replace("-", "_")
        if key.startswith("-"):
            hint = f"Write {name}={value or 'VALUE'}" if name in KEYS else "paceline cost -h shows the options"
            raise ConfigError(f"{key}: is no option. {hint}")
        if not equals or (key not in KEYS and not re.match(r"[+~]?\w+(?=[./@=])", word)):
            raise ConfigError(
                f"{word}: must be KEY=VALUE. Keys are {', '.join(KEYS)}; and choices such as model=gpt_1b"
            )
        if key in KEYS:
            texts[key] = value
        elif near := _near(key):
            raise ConfigError(f"{key}: there is no such key; {near}")
        else:
            overrides.append(word)
    chosen = overrides
    if config is not None:
        from ..engine.config.config_file import with_file

        merged = with_file(config, overrides, config_dir, KEYS)
        texts, chosen = merged.beside | texts, merged.overrides
    return Given(texts, choose(chosen, overrides, config_dir, allow_module))
