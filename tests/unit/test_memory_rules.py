"""What fits into memory, and what is advised where it doesn't, on amounts that are easy to add up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.core.memory import (
    RAM,
    Amount,
    DeviceNeed,
    MemoryEstimate,
    MemoryPart,
    ModelMemory,
    Room,
    advise,
    by_device,
    largest_context,
    warning,
    weigh,
)

GB = 1_000_000_000
# 1 GB of weights, 0.4 GB of them copied, 0.1 GB of buffers, and 0.1 MB a token.
TARGET = ModelMemory(
    "target",
    (
        Amount("weights", RAM, GB),
        Amount("repacked", RAM, 0.4 * GB),
        Amount("cache", RAM, 0, 100_000),
        Amount("compute", RAM, 0.1 * GB),
    ),
    gpu_layers=0,
)
DRAFT = ModelMemory(
    "draft",
    (Amount("weights", RAM, 0.5 * GB), Amount("cache", RAM, 0, 50_000)),
    gpu_layers=0,
    n_ctx_most=2048,
)
SMALL_CACHE = ModelMemory("target", (*TARGET.amounts[:2], Amount("cache", RAM, 0, 50_000)), gpu_layers=0)


def ram(free_gb: float) -> Room:
    return Room(RAM, round(free_gb * GB), 16 * GB)


def test_a_context_counts_as_llama_cpp_rounds_it() -> None:
    cache = Amount("cache", RAM, 1000, 10)
    assert [cache.at(n) for n in (1, 256, 257, 1000)] == [3560, 3560, 6120, 11240]


def test_parts_and_devices_add_up() -> None:
    found = weigh([TARGET, DRAFT], 4096, [ram(4)])
    assert found == MemoryEstimate(
        parts=(
            MemoryPart("target", "weights", RAM, GB),
            MemoryPart("target", "repacked", RAM, 400_000_000),
            MemoryPart("target", "cache", RAM, 409_600_000),
            MemoryPart("target", "compute", RAM, 100_000_000),
            MemoryPart("draft", "weights", RAM, 500_000_000),
            MemoryPart("draft", "cache", RAM, 102_400_000),  # its own context is shorter
        ),
        devices=(DeviceNeed(RAM, 2_512_000_000, 4 * GB, 16 * GB),),
        fits=True,
    )
    assert by_device(found.parts) == {RAM: 2_512_000_000}
    assert not found.is_tight
    assert warning(found) is None


def test_originals_of_repacked_weights_may_leave() -> None:
    # 1.9096 GB in all, 1.5096 without the copies' originals.
    tight = weigh([TARGET], 4096, [ram(1.6)])
    assert tight.fits and tight.is_tight
    assert warning(tight) is None
    assert not weigh([TARGET], 4096, [ram(1.5)]).fits


def test_devices_that_are_not_used_are_left_out() -> None:
    rooms = [ram(4), Room("CUDA0", GB, GB)]
    assert [device.device for device in weigh([TARGET], 4096, rooms).devices] == [RAM]


def test_a_graphics_device_without_memory_of_its_own_uses_the_ram() -> None:
    half = ModelMemory("target", (Amount("weights", RAM, GB), Amount("weights", "MTL0", GB)), gpu_layers=10)
    rooms = [Room(RAM, round(1.5 * GB), 8 * GB, lends_to=("MTL0",)), Room("MTL0", 5 * GB, 5 * GB)]
    found = weigh([half], 4096, rooms)
    assert [device.need for device in found.devices] == [2 * GB, GB]
    assert not found.fits


@given(st.integers(300, 200_000), st.floats(1.2, 30))
def test_the_largest_context_fits_and_the_next_does_not(n_ctx: int, free_gb: float) -> None:
    found = largest_context([TARGET, DRAFT], n_ctx, [ram(free_gb)])
    assert found % 256 == 0 and 0 <= found < n_ctx
    if found:
        assert weigh([TARGET, DRAFT], found, [ram(free_gb)]).fits
    if found + 256 < n_ctx:
        assert not weigh([TARGET, DRAFT], found + 256, [ram(free_gb)]).fits


def test_each_way_out_is_named_with_what_it_gives() -> None:
    # Without copies: 1.1 GB + 0.5 GB + 0.1 GB for the draft's context leave 0.3 GB for 100,000 bytes a token.
    assert advise([TARGET, DRAFT], [SMALL_CACHE, DRAFT], 8192, [ram(2)]) == (
        "a context of at most 2816 tokens fits",
        "without the draft model it fits",
        "with a cache of type q8_0 a context of at most 7936 tokens fits",
    )


def test_no_advice_that_gives_nothing() -> None:
    assert advise([TARGET], [], 8192, [ram(1.3)]) == ("a context of at most 1792 tokens fits",)
    assert advise([TARGET], [TARGET], 8192, [ram(1.3)]) == ("a context of at most 1792 tokens fits",)
    assert advise([TARGET], [SMALL_CACHE], 8192, [ram(0.9)]) == ("no context fits, choose a smaller model",)


def test_fewer_layers_on_the_gpu() -> None:
    on_gpu = ModelMemory(
        "target",
        (
            Amount("weights", RAM, 0.2 * GB),
            Amount("weights", "CUDA0", 8 * GB),
            Amount("compute", "CUDA0", GB),
        ),
        gpu_layers=40,
    )
    rooms = [ram(10), Room("CUDA0", 6 * GB, 8 * GB)]
    # 0.2 GB a layer into the 5 GB that the buffers leave.
    assert advise([on_gpu], [], 4096, rooms) == ("of the target's layers, 25 in place of 40 fit on the GPU",)
    beside = ModelMemory("draft", (Amount("weights", "CUDA0", GB),), gpu_layers=10)
    assert advise([on_gpu, beside], [], 4096, rooms) == (
        "of the target's layers, 20 in place of 40 fit on the GPU",
    )


def test_the_warning_has_both_figures_and_what_fits() -> None:
    found = MemoryEstimate(
        parts=(),
        devices=(
            DeviceNeed(RAM, 2 * GB, 9 * GB, 16 * GB),
            DeviceNeed("CUDA0", 12_340_000_000, 8 * GB, 8 * GB),
        ),
        fits=False,
        advice=("without the draft model it fits", "a context of at most 256 tokens fits"),
    )
    assert warning(found) == (
        "the models need 12.3 GB of CUDA0 and 8.0 GB are free: "
        "without the draft model it fits; a context of at most 256 tokens fits"
    )
