"""Accelerators that people train on: their makers' data sheets, and what was measured on them.

`peak`: dense, without sparsity. `best`: the largest share of it that any shape of product reached, by a search over
shapes (stas00/ml-engineering, compute/accelerator, "maximum achievable matmul flops", read in November 2026); where no
search is known, that of the A100 is taken, but for the T4. Its 70 W let it hold 24 TFLOP/s in products of 4,096 (NVIDIA
developer forum, "About GPU peak performance", 2023), which is its peak at the base clock, and about half in float32.
"""

from .device import Device
from .links import Link

TERA = 1e12


def _device(
    name: str,
    bandwidth: float,
    units: int,
    peak: dict[str, float],
    best: dict[str, float] | None = None,
    cuda: bool = True,
) -> Device:
    teras = {dtype: flops * TERA for dtype, flops in peak.items()}
    if "float16" in teras:
        teras.setdefault("bfloat16", teras["float16"])
    best = best or {}
    if "float16" in best:
        best = {"bfloat16": best["float16"], **best}
    return Device(name, teras, bandwidth, units, best, cuda)


DEVICES = {
    device.name: device
    for device in (
        # NVIDIA V100 data sheet, 2020
        _device("V100", 9.0e11, 80, {"float32": 15.7, "float16": 125}),
        # NVIDIA T4 data sheet, 2019
        _device("T4", 3.2e11, 40, {"float32": 8.1, "float16": 65}, {"float16": 0.37, "float32": 0.5}),
        # NVIDIA A10 data sheet, 2021
        _device("A10", 6.0e11, 72, {"float32": 31.2, "tf32": 62.5, "float16": 125}),
        # NVIDIA A10G data sheet, for AWS, 2022: half of an A10's tensor cores; multiprocessors as torch counts them
        _device("A10G", 6.0e11, 80, {"float32": 31.5, "tf32": 35, "float16": 70}),
        # NVIDIA L4 data sheet, 2023
        _device("L4", 3.0e11, 58, {"float32": 30.3, "tf32": 60, "float16": 121, "float8": 242}),
        # NVIDIA Ampere GA102 whitepaper, version 2, 2021: with sums in float32
        _device("RTX 3090", 9.36e11, 82, {"float32": 35.6, "tf32": 35.6, "float16": 71}),
        _device("RTX A6000", 7.68e11, 84, {"float32": 38.7, "tf32": 77.4, "float16": 154.8}),
        # NVIDIA Ada GPU architecture whitepaper, 2022: with sums in float32
        _device("RTX 4090", 1.008e12, 128, {"float32": 82.6, "tf32": 82.6, "float16": 165.2, "float8": 330.3}),
        # NVIDIA RTX Blackwell GPU architecture whitepaper, 2025: with sums in float32
        _device(
            "RTX 5090",
            1.792e12,
            170,
            {"float32": 104.8, "tf32": 104.8, "float16": 209.5, "float8": 419, "float4": 1676},
        ),
        # NVIDIA L40S data sheet, 2023
        _device("L40S", 8.64e11, 142, {"float32": 91.6, "tf32": 183, "float16": 362, "float8": 733}),
        # NVIDIA A100 data sheet, 2021: with 40 GB its memory is slower
        _device("A100 40 GB", 1.555e12, 108, {"float32": 19.5, "tf32": 156, "float16": 312}, {"float16": 0.869}),
        _device("A100", 2.0e12, 108, {"float32": 19.5, "tf32": 156, "float16": 312}, {"float16": 0.869}),
        # NVIDIA H100 SXM data sheet, 2023
        _device(
            "H100",
            3.35e12,
            132,
            {"float32": 67, "tf32": 494, "float16": 989, "float8": 1979},
            {"float16": 0.803, "float8": 0.709},
        ),
        # NVIDIA H200 data sheet, 2024
        _device(
            "H200",
            4.8e12,
            132,
            {"float32": 67, "tf32": 494, "float16": 989, "float8": 1979},
            {"float16": 0.803, "float8": 0.734},
        ),
        # NVIDIA DGX B200 data sheet, 2024: an eighth of it
        _device(
            "B200", 8.0e12, 148, {"float16": 2250, "float8": 4500, "float4": 9000}, {"float16": 0.776, "float8": 0.763}
        ),
        # NVIDIA HGX B300 data sheet, 2025
        _device(
            "B300", 8.0e12, 148, {"float16": 2250, "float8": 4500, "float4": 13500}, {"float16": 0.786, "float8": 0.745}
        ),
        # NVIDIA GB200 NVL72 data sheet, 2024: a 72nd of it
        _device(
            "GB200",
            8.0e12,
            148,
            {"float16": 2500, "float8": 5000, "float4": 10000},
            {"float16": 0.729, "float8": 0.723},
        ),
        # NVIDIA GB300 NVL72 data sheet, 2025
        _device(
            "GB300",
            8.0e12,
            148,
            {"float16": 2500, "float8": 5000, "float4": 15000},
            {"float16": 0.786, "float8": 0.745},
        ),
        # AMD Instinct MI300X data sheet, 2023
        _device("MI300X", 5.3e12, 304, {"float32": 163.4, "float16": 1307, "float8": 2615}, {"float16": 0.511}),
        # AMD Instinct MI325X data sheet, 2024
        _device("MI325X", 6.0e12, 304, {"float32": 163.4, "float16": 1307, "float8": 2615}, {"float16": 0.604}),
        # AMD Instinct MI355X data sheet, 2025; 1,565 TF/s of its 2,500 were reached
        _device(
            "MI355X",
            8.0e12,
            256,
            {"float32": 157.3, "float16": 2500, "float8": 5000, "float4": 10100},
            {"float16": 0.626},
        ),
        # Google Cloud TPU documentation, 2026; a unit is a matrix unit, of 128 x 128, in v6e of 256 x 256
        _device("TPU v5e", 8.19e11, 4, {"bfloat16": 197}, cuda=False),
        _device("TPU v5p", 2.765e12, 8, {"bfloat16": 459}, cuda=False),
        _device("TPU v6e", 1.638e12, 2, {"bfloat16": 918}, cuda=False),
    )
}

# Links inside a host, by device: what an all-reduce of 1 MiB and more was measured to take, as alpha + 2 (n-1)/n S beta
# (nccl-tests and all_reduce_bench.py in stas00/ml-engineering, network, and the traces of vTrain, read in November
# 2026; medians of the relative residuals are 2 to 12 %).
INSIDE = {
    "V100": Link(7.5e-5, 1.37e11),  # NVLink 2, 8 of a DGX-1V; pairs there have 2.3e10, fours 8.7e10
    "A100 40 GB": Link(5.5e-5, 2.2e11),
    "A100": Link(5.5e-5, 2.2e11),  # NVLink 3, 2 to 8: 41 to 78 us, 188 to 225 GB/s
    "H100": Link(5.2e-5, 4.6e11),  # NVLink 4 with sums in the switch; measured with H200
    "H200": Link(5.2e-5, 4.6e11),
    "B200": Link(7.9e-5, 7.4e11),  # NVLink 5
    "B300": Link(7.9e-5, 7.4e11),
    "GB200": Link(7.9e-5, 7.4e11),
    "GB300": Link(7.9e-5, 7.4e11),
    "T4": Link(5.0e-5, 6.0e9),  # PCIe 3.0, two devices a switch: half of a direction's 12 GB/s
    "A10": Link(5.0e-5, 1.2e10),  # PCIe 4.0 likewise
    "A10G": Link(5.0e-5, 1.2e10),
    "L4": Link(5.0e-5, 1.2e10),
    "RTX 3090": Link(5.0e-5, 1.2e10),
    "RTX A6000": Link(5.0e-5, 1.2e10),
    "RTX 4090": Link(5.0e-5, 1.2e10),
    "RTX 5090": Link(5.0e-5, 2.4e10),  # PCIe 5.0 likewise
    "L40S": Link(5.0e-5, 1.2e10),
    "MI300X": Link(7.9e-5, 3.0e11),  # Infinity Fabric: 448 GB/s a direction by the data sheet, two thirds of it
    "MI325X": Link(7.9e-5, 3.0e11),
    "MI355X": Link(7.9e-5, 3.6e11),  # 538 GB/s a direction, two thirds of it
    # ICI: of what Google Cloud's documentation states for an all-reduce, two thirds; the latency is that of the H100
    "TPU v5e": Link(5.2e-5, 1.3e11),
    "TPU v5p": Link(5.2e-5, 4.0e11),
    "TPU v6e": Link(5.2e-5, 2.7e11),
}

GENERATIONS = {  # the oldest first
    "TPU": ("TPU v5e", "TPU v5p", "TPU v6e"),
    "Volta": ("V100",),
    "Turing": ("T4",),
    "Ampere": ("A100", "A100 40 GB", "A10", "A10G", "RTX 3090", "RTX A6000"),
    "Ada": ("L4", "RTX 4090", "L40S"),
    "Hopper": ("H100", "H200"),
    "Blackwell": ("B200", "B300", "GB200", "GB300", "RTX 5090"),
    "CDNA": ("MI300X", "MI325X", "MI355X"),
}


def generation(device: str) -> str:
    return next(name for name, devices in GENERATIONS.items() if device in devices)
