"""The contract of backends/base.py as checks that any backend can be put through.

    check_contract(lambda: MyBackend(setting, path), requests)

The requests must be for one setting with temperature 0; the backend is started once and closed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nondet.backends.base import FINISH_REASONS, Backend, Request, Response


def same_bits(a: Response, b: Response) -> bool:
    """Equal in everything but the note."""
    arrays = (
        (a.tokens, b.tokens),
        (a.logprobs, b.logprobs),
        (a.top_ids, b.top_ids),
        (a.top_logprobs, b.top_logprobs),
    )
    words = (a.item_id, a.finish_reason, a.text) == (b.item_id, b.finish_reason, b.text)
    return words and all(x.tobytes() == y.tobytes() for x, y in arrays)


def check_response(response: Response, request: Request, top_k: int, limit: int | None) -> None:
    """Shapes, kinds, order of candidates, length and end of one response.

    limit: most tokens; None where an endpoint gives neither token ids nor an end token.
    """
    length = len(response.tokens)
    assert response.item_id == request.item_id
    assert response.finish_reason in FINISH_REASONS
    assert isinstance(response.text, str)
    kinds = [response.tokens, response.logprobs, response.top_ids, response.top_logprobs]
    assert [part.dtype for part in kinds] == [np.int32, np.float32, np.int32, np.float32]
    table = (length, top_k)
    assert [part.shape for part in kinds] == [(length,), (length,), table, table]
    check_candidates(response)
    if limit is None:
        return
    assert length <= limit
    if response.finish_reason == "length":
        assert length == limit
    if response.finish_reason == "stop":
        assert length >= 1, "the end token is kept, so a stopped response has at least one"


def check_candidates(response: Response) -> None:
    """Candidates by falling log-probability, ties by rising id, none twice, missing ones last."""
    for position in range(len(response.tokens)):
        ids, logprobs = response.top_ids[position], response.top_logprobs[position]
        missing = np.isnan(logprobs)
        assert (ids[missing] == -1).all()
        assert not missing[: int((~missing).sum())].any(), "a missing candidate before a given one"
        given = [(-float(lp), int(i)) for lp, i in zip(logprobs, ids, strict=True) if lp == lp]
        assert given == sorted(given), f"position {position}: candidates out of order"
        assert len({i for _, i in given}) == len(given), f"position {position}: a candidate twice"
        own = [-lp for lp, i in given if i == response.tokens[position]]
        if own and not np.isnan(response.logprobs[position]):
            assert np.float32(own[0]) == response.logprobs[position]


def check_greedy(response: Response) -> None:
    """With temperature 0 the emitted token has the best log-probability."""
    for position, logprob in enumerate(response.logprobs):
        best = response.top_logprobs[position, 0]
        if not (np.isnan(best) or np.isnan(logprob)):
            assert logprob == best, f"position {position}: emitted {logprob}, best {best}"


def check_contract(
    make: Callable[[], Backend],
    requests: Sequence[Request],
    *,
    greedy: bool = True,
    ids: bool = True,
) -> list[Response]:
    """Put a backend through the contract; returns the responses to the whole wave.

    greedy: whether emitted tokens must be the best candidates. ids: whether tokens are the model's
    own, so that they can be counted and end with the end token.
    """
    backend = make()
    backend.start()
    try:
        limit, top_k = backend.setting.max_new_tokens, backend.setting.top_k
        observed = backend.observed()
        assert "logprobs_mode" in observed
        assert backend.generate([]) == [], "an empty wave has no answers"
        first = backend.generate([requests[0]])
        again = backend.generate([requests[0]])
        assert same_bits(first[0], again[0]), "the same request alone, twice, differs"
        wave = backend.generate(list(requests))
        assert [r.item_id for r in wave] == [r.item_id for r in requests], "order is not kept"
        turned = backend.generate(list(reversed(requests)))
        assert [r.item_id for r in turned] == [r.item_id for r in reversed(requests)]
        for request, response in zip(requests, wave, strict=True):
            check_response(response, request, top_k, limit if ids else None)
            if greedy:
                check_greedy(response)
        return wave
    finally:
        backend.close()
