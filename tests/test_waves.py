"""Waves: every request once, in task order, as the paper cuts them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nondet.waves import CONTINUOUS_SHARE, plan_waves

lengths = st.lists(st.integers(1, 5), max_size=40)


BATCHINGS = st.sampled_from(["wave", "varied", "continuous"])


@given(lengths, st.integers(1, 9), BATCHINGS, st.booleans(), st.integers(0, 9))
def test_every_request_is_in_one_wave(
    prompts: list[int], size: int, batching: str, unpadded: bool, seed: int
) -> None:
    padding = "none" if unpadded else "wave"
    waves = plan_waves(prompts, size, batching, padding, seed)
    assert sorted(position for wave in waves for position in wave) == list(range(len(prompts)))
    limit = size * (CONTINUOUS_SHARE if batching == "continuous" else 1)
    assert all(0 < len(wave) <= limit for wave in waves)


@given(lengths, st.integers(1, 9))
def test_without_padding_a_wave_has_one_length(prompts: list[int], size: int) -> None:
    for wave in plan_waves(prompts, size, "wave", "none"):
        assert len({prompts[position] for position in wave}) == 1
        assert wave == sorted(wave)


def test_varied_waves_have_every_size_and_follow_the_seed() -> None:
    waves = plan_waves([1] * 400, 8, "varied", "wave", seed=42)
    assert {len(wave) for wave in waves[:-1]} == set(range(1, 9))
    assert waves == plan_waves([1] * 400, 8, "varied", "wave", seed=42)
    assert waves != plan_waves([1] * 400, 8, "varied", "wave", seed=43)
    assert plan_waves([1] * 3, 1, "varied", "wave", seed=42) == [[0], [1], [2]]


def test_the_waves_of_aime_at_batch_size_8() -> None:
    # 30 problems: 8, 8, 8, 6 (Yuan et al., as their code cuts them).
    assert [len(wave) for wave in plan_waves([1] * 30, 8, "wave", "wave")] == [8, 8, 8, 6]
