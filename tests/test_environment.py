"""What of the environment is recorded, and what is part of a run's identity."""

from __future__ import annotations

import pytest

from nondet.environment import inherited_switches, switches


def test_a_share_of_a_gpu_is_part_of_a_run_and_where_its_service_lies_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/somewhere")
    found = inherited_switches(())
    assert found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    assert "CUDA_MPS_PIPE_DIRECTORY" not in found
    assert switches()["CUDA_MPS_PIPE_DIRECTORY"] == "/somewhere"
