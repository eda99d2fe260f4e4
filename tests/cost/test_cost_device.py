"""One kernel's time: bounds that a roofline has, whole waves of tiles, and figures that can be checked by hand."""

from dataclasses import replace

import pytest

from paceline.cost.device import Device, Efficiency, product, streamed
from paceline.cost.devices import DEVICES, INSIDE

ROUND = Device("round", {"float16": 1e14, "float32": 1e13}, bandwidth=1e12, units=100)
EXACT = Efficiency(best=1.0, streamed=1.0, inner=0.0, ramp=0.0)


def test_a_product_that_fills_the_device_takes_its_flops() -> None:
    m, n, k = 256 * 10, 128 * 10, 4096  # 100 tiles for 100 multiprocessors
    assert product(ROUND, EXACT, "float16", m, n, k) == pytest.approx(2 * m * n * k / 1e14)


def test_one_tile_more_takes_a_whole_wave_more() -> None:
    """101 large tiles would take two waves; three of half the size waste less, and five of a quarter."""
    full = product(ROUND, EXACT, "float16", 256, 128 * 100, 4096)
    assert product(ROUND, EXACT, "float16", 257, 128 * 100, 4096) == pytest.approx(1.5 * 1.06 * full)
    assert product(ROUND, EXACT, "float16", 256 * 101, 128, 4096) == pytest.approx(1.25 * 1.2 * full)


def test_a_thin_product_takes_the_time_of_its_bytes() -> None:
    m, n, k = 1, 65536, 4096
    nbytes = 2 * (m * k + k * n + m * n)
    slow = replace(ROUND, bandwidth=1e9)
    assert product(slow, EXACT, "float16", m, n, k) == pytest.approx(nbytes / 1e9)
    assert product(slow, EXACT, "float32", m, n, k) == pytest.approx(2 * nbytes / 1e9)


def test_shares_ramp_and_short_sums_add_up() -> None:
    fits = Efficiency(best=0.5, streamed=0.5, inner=64.0, ramp=1e-3)
    m, n, k = 2560, 1280, 64
    assert product(ROUND, fits, "float16", m, n, k) == pytest.approx(2 * m * n * k / 0.5e14 * 2 + 1e-3)
    assert streamed(ROUND, fits, 1e6) == pytest.approx(2e-6)


def test_a_level_is_of_computing_and_of_streaming_but_not_of_the_ramp() -> None:
    exact, slow = (replace(EXACT, ramp=1e-3, level=level) for level in (1.0, 1.5))
    for m in (2560, 1):  # bound by flops, and by bytes
        times = [product(ROUND, fits, "float16", m, 1280, 4096) - 1e-3 for fits in (exact, slow)]
        assert times[1] == pytest.approx(1.5 * times[0])
    assert streamed(ROUND, slow, 1e6) == pytest.approx(1.5e-6)


def test_a_device_s_own_share_of_its_peak_comes_first() -> None:
    own = replace(ROUND, best={"float16": 0.25})
    usual = product(ROUND, EXACT, "float16", 2560, 1280, 4096)
    assert product(own, EXACT, "float16", 2560, 1280, 4096) == pytest.approx(4 * usual)


def test_many_small_products_in_one_kernel_share_waves() -> None:
    one, many = (product(ROUND, EXACT, "float16", 256, 128, 4096, count) for count in (1, 25))
    assert one == many  # 4 or 100 small tiles


def test_the_best_measured_product_of_an_a100_is_predicted() -> None:
    """mamf-finder: 271.2 Tflop/s at 1024 x 10240 x 5120."""
    exact = replace(Efficiency(), inner=0.0, ramp=0.0)
    flops = 2 * 1024 * 10240 * 5120
    reached = flops / product(DEVICES["A100"], exact, "bfloat16", 1024, 10240, 5120)
    assert 0.95 * 271.2e12 < reached <= 271.2e12  # 320 tiles in three waves of 108: 324


@pytest.mark.parametrize("name", DEVICES)
def test_every_device_has_links_and_plausible_figures(name: str) -> None:
    device = DEVICES[name]
    assert name in INSIDE
    assert device.peak.get("float16", device.peak["bfloat16"]) == device.peak["bfloat16"]
    assert all(1e12 < peak < 2e16 for peak in device.peak.values())
    assert set(device.best) <= set(device.peak)
    assert all(0.3 < share < 1 for share in device.best.values())
    assert INSIDE[name].bandwidth < device.bandwidth
