"""Energy, and what it emits.

Source: Patterson et al. 2021, "Carbon Emissions and Large Neural Network Training" (arXiv 2104.10350):

    kWh      = hours x devices x watts of a device x PUE / 1000
    kg CO2e  = kWh x kg CO2e of a kWh

PUE (power usage effectiveness) is what a data centre draws over what its computers draw. Here a device's watts are its
TDP (the power that its maker designed its cooling for) x utilisation, the share of it that training draws. A host, its
network and its disks draw power too: where `watts` is a card's TDP, they are left out.
"""

from .quantity import Quantity
from .rules import check

SOURCE = "Patterson et al. 2021, arXiv 2104.10350"
PUE = Quantity("PUE", "pue", 1.58, "", "default: mean of data centres, Uptime Institute Global Data Center Survey 2023")
WORLD = Quantity("c", "intensity", 0.481, "kg CO2e a kWh", "default: world, 2023 (Ember, data of July 2024)")
UTILISATION = Quantity("u", "utilisation", 1.0, "of the power", "default: all of it, an upper bound")
TDP = {
    "t4": Quantity("w", "watts", 70, "W a device", "NVIDIA T4 data sheet, 2019: TDP"),
    "v100": Quantity("w", "watts", 300, "W a device", "NVIDIA V100 SXM2 data sheet, 2018: TDP"),
    "a100": Quantity("w", "watts", 400, "W a device", "NVIDIA A100 80GB SXM data sheet, 2021: TDP"),
    "h100": Quantity("w", "watts", 700, "W a device", "NVIDIA H100 SXM data sheet, 2022: TDP"),
    "h200": Quantity("w", "watts", 700, "W a device", "NVIDIA H200 SXM data sheet, 2024: TDP"),
    "b200": Quantity("w", "watts", 1000, "W a device", "NVIDIA HGX B200 data sheet, 2024: TDP"),
    "mi300x": Quantity("w", "watts", 750, "W a device", "AMD Instinct MI300X data sheet, 2023: TBP"),
    "mi325x": Quantity("w", "watts", 1000, "W a device", "AMD Instinct MI325X data sheet, 2024: TBP"),
    "mi355x": Quantity("w", "watts", 1400, "W a device", "AMD Instinct MI355X data sheet, 2025: TBP"),
    "gb200": Quantity("w", "watts", 1200, "W a device", "NVIDIA GB200 NVL72 data sheet, 2024: TDP, without its CPU"),
    "rtx_3090": Quantity("w", "watts", 350, "W a device", "NVIDIA GeForce RTX 3090 data sheet, 2020: TGP"),
    "rtx_4090": Quantity("w", "watts", 450, "W a device", "NVIDIA GeForce RTX 4090 data sheet, 2022: TGP"),
    "rtx_5090": Quantity("w", "watts", 575, "W a device", "NVIDIA GeForce RTX 5090 data sheet, 2025: TGP"),
    "a6000": Quantity("w", "watts", 300, "W a device", "NVIDIA RTX A6000 data sheet, 2020: TDP"),
    "l40s": Quantity("w", "watts", 350, "W a device", "NVIDIA L40S data sheet, 2023: TDP"),
    "l4": Quantity("w", "watts", 72, "W a device", "NVIDIA L4 data sheet, 2023: TDP"),
    "a10g": Quantity("w", "watts", 300, "W a device", "NVIDIA A10G data sheet for AWS, 2022: TDP"),
}


def kwh_of(hours: float, devices: float, watts: float, utilisation: float, pue: float) -> float:
    """`watts`: of one device at full load. Raises `CostError`."""
    check(hours=hours, devices=devices, watts=watts, utilisation=utilisation, pue=pue)
    return hours * devices * watts * utilisation * pue / 1000


def kg_co2e(kwh: float, intensity: float) -> float:
    """`intensity`: kg of CO2e that the grid emits a kWh. Raises `CostError`."""
    check(kwh=kwh, intensity=intensity)
    return kwh * intensity
