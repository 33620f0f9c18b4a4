"""The recorder: greedy and sampled choices, raw log-probabilities, ties, NaN."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nondet.backends.recorder import Recorder, halves_added, sample


def one_step(logits: torch.Tensor, k: int = 5) -> tuple[Recorder, torch.Tensor]:
    recorder = Recorder(k, 0.0, 1.0, [0] * len(logits))
    return recorder, recorder(torch.zeros(len(logits), 1, dtype=torch.int64), logits)


def test_logprobs_are_those_of_log_softmax_in_float32() -> None:
    logits = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0)) * 5
    recorder, forced = one_step(logits)
    record = recorder.record()
    exact = torch.log_softmax(logits.double(), -1)
    assert record.tokens[:, 0].tolist() == logits.argmax(-1).tolist()
    assert forced.argmax(-1).tolist() == record.tokens[:, 0].tolist()
    top = exact.topk(5)
    assert record.top_ids[:, 0].tolist() == top.indices.tolist()
    np.testing.assert_allclose(record.top_logprobs[:, 0], top.values, rtol=0, atol=2e-6)
    assert record.top_logprobs.dtype == np.float32
    assert (record.logprobs[:, 0] == record.top_logprobs[:, 0, 0]).all()


def test_ties_go_to_the_lowest_ids_also_across_the_last_place() -> None:
    logits = torch.zeros(1, 50)
    logits[0, 30:] = 1.0
    logits[0, 40] = 2.0
    recorder, _ = one_step(logits)
    assert recorder.record().top_ids[0, 0].tolist()[0] == 40
    flat = torch.zeros(1, 12)
    recorder, _ = one_step(flat)
    assert recorder.record().tokens[0, 0] == 0
    assert recorder.record().top_ids[0, 0].tolist() == [0, 1, 2, 3, 4]


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    logits = torch.randn(3, 200, generator=torch.Generator().manual_seed(1))
    alone, _ = one_step(logits[1:2])
    logits[0] = torch.inf
    logits[2] = torch.nan
    together, _ = one_step(logits)
    for a, b in zip(alone.record(), together.record(), strict=True):
        assert a[0].tobytes() == b[1].tobytes()


def test_the_recorder_adds_no_difference_of_its_own_between_batches() -> None:
    """torch deals a lone row of this length to its threads, and adds in another order."""
    logits = torch.randn(16, 49_152, generator=torch.Generator().manual_seed(3)) * 4
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        together = one_step(logits)[0].record()
        for row in range(len(logits)):
            alone = one_step(logits[row : row + 1].clone())[0].record()
            for a, b in zip(alone, together, strict=True):
                assert a[0].tobytes() == b[row].tobytes()
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("width", [1, 2, 3, 300, 49_152])
def test_halves_add_up_and_rows_stay_apart(width: int) -> None:
    x = torch.rand(5, width, generator=torch.Generator().manual_seed(4))
    found = halves_added(x)
    assert found.shape == (5, 1)
    torch.testing.assert_close(found, x.double().sum(-1, True).float(), rtol=1e-6, atol=0)
    assert halves_added(x[3:4])[0].item() == found[3].item()
    x[1] = torch.nan
    assert halves_added(x).isnan()[:, 0].tolist() == [False, True, False, False, False]


def test_ties_of_more_than_are_looked_at_go_to_the_lowest_ids() -> None:
    logits = torch.randn(3, 50_000, generator=torch.Generator().manual_seed(5)).clamp(max=2.0)
    logits[:, 17] = 3.0  # hundreds of others are 2.0
    record = one_step(logits)[0].record()
    for row in range(3):
        first = (logits[row] == 2.0).nonzero()[:4, 0].tolist()
        assert record.top_ids[row, 0].tolist() == [17, *first]


def test_minus_infinity_stays_minus_infinity() -> None:
    logits = torch.full((1, 20), -torch.inf)
    logits[0, 7] = 0.0
    record = one_step(logits)[0].record()
    assert record.tokens[0, 0] == 7
    assert record.logprobs[0, 0] == 0.0
    assert (record.top_logprobs[0, 0, 1:] == -np.inf).all()


def test_sampling_follows_the_distribution() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2]))
    draws = (np.arange(1000) + 0.5) / 1000
    picks = np.bincount([sample(logits, 1.0, 1.0, draw) for draw in draws], minlength=3)
    assert picks.tolist() == [500, 300, 200]


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.4, {0}), (0.5, {0}), (0.6, {0, 1}), (1.0, {0, 1, 2})]
)
def test_the_nucleus_is_the_shortest_run_that_reaches_top_p(top_p: float, kept: set[int]) -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2]))
    draws = np.linspace(0, 1, 200, endpoint=False)
    assert {sample(logits, 1.0, top_p, draw) for draw in draws} == kept


def test_low_temperature_is_greedy_and_extreme_draws_stay_inside() -> None:
    logits = np.array([0.0, 3.0, 2.9])
    assert {sample(logits, 1e-6, 1.0, draw) for draw in (0.0, 0.5, 1 - 1e-16)} == {1}
    assert sample(logits, 1.0, 1.0, np.nextafter(1.0, 0.0)) in (0, 1, 2)


def test_a_seed_gives_the_same_draws_whatever_the_batch() -> None:
    logits = torch.randn(6, 3, 100, generator=torch.Generator().manual_seed(2))
    whole = Recorder(5, 1.0, 0.9, [11, 12, 13])
    alone = Recorder(5, 1.0, 0.9, [12])
    for step in logits:
        whole(torch.zeros(3, 1), step)
        alone(torch.zeros(1, 1), step[1:2])
    assert whole.record().tokens[1].tolist() == alone.record().tokens[0].tolist()
    assert len({tuple(row) for row in whole.record().tokens.tolist()}) == 3


def test_the_choice_is_by_raw_logits_not_by_their_log_probabilities() -> None:
    """Logits that differ may round to equal log-probabilities (vLLM PR 13312)."""
    logits = torch.zeros(1, 50_000)
    logits[0, 7] = 1.0
    logits[0, 31_000] = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))
    record = one_step(logits, 2)[0].record()
    assert record.top_logprobs[0, 0, 0] == record.top_logprobs[0, 0, 1], "no tie: the test is void"
    assert record.tokens[0, 0] == 31_000
    assert record.top_ids[0, 0].tolist() == [31_000, 7]


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_vocabularies_with_whole_stretches_at_minus_infinity(batch: int) -> None:
    """Ties far apart, and stretches with no candidate at all (vLLM RFC 42259)."""
    logits = torch.full((batch, 40_000), -torch.inf)
    logits[:, [39_999, 12_345, 20_000]] = 3.0
    record = one_step(logits)[0].record()
    assert record.tokens[:, 0].tolist() == [12_345] * batch
    for row in range(batch):
        ids = record.top_ids[row, 0].tolist()
        assert ids[:3] == [12_345, 20_000, 39_999]
        assert len(set(ids)) == len(ids), "a token stands twice"
        assert record.top_logprobs[row, 0, 3:].tolist() == [-np.inf] * 2


def test_more_candidates_than_the_vocabulary_are_told_as_missing() -> None:
    recorder, _ = one_step(torch.tensor([[1.0, 3.0, 2.0]]), k=5)
    record = recorder.record()
    assert record.top_ids[0, 0].tolist() == [1, 2, 0, -1, -1]
    assert np.isnan(record.top_logprobs[0, 0]).tolist() == [False] * 3 + [True] * 2
