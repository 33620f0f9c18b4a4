"""The engines' drivers: what they hand on, without an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from experiments.engines import ablate, study
from experiments.together import Outcome
from nondet.settings import Setting

Asked = list[tuple[Sequence[Setting], int, float | None]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What reaches the driver of many runs; every run is out of time."""
    calls: Asked = []

    def run_all(
        studies: Mapping[Path, Sequence[Setting]],
        name: str,
        together: int,
        seconds: float | None = None,
    ) -> dict[Path, list[Outcome]]:
        (settings,) = studies.values()
        calls.append((settings, together, seconds))
        return {folder: [Outcome("not run", "the time was up")] * len(settings)
                for folder in studies}  # fmt: skip

    for module in (study, ablate):
        monkeypatch.setattr(module, "run_all", run_all)
    return calls


@pytest.mark.parametrize(
    ("words", "items", "together", "seconds"),
    [([], 64, 8, 500), (["4"], 4, 8, 500), (["4", "8", "2", "90"], 4, 2, 90)],
)
def test_a_study_ends_while_there_is_time_to_pack_it(
    asked: Asked, words: list[str], items: int, together: int, seconds: int
) -> None:
    assert study.main(["model", "store", "vllm", *words]) == 1
    ((settings, *rest),) = asked
    assert rest == [together, seconds]
    assert {setting.task.limit for setting in settings} == {items}
    alone = [s for s in settings if s.batch_size == 1]
    assert all(s.backend.options["max_seqs"] == 8 for s in alone)


def test_some_batch_sizes_and_one_mode_are_taken(asked: Asked) -> None:
    study.main(["a=b/model", "store", "sglang", "4", "batches=8,1", "kernels=invariant"])
    ((settings, *_),) = asked
    assert {(s.batch_size, s.kernels) for s in settings} == {(8, "invariant"), (1, "invariant")}
    assert {s.model.path for s in settings} == {str(Path("a=b/model"))}


@pytest.mark.parametrize("word", ["batches=5", "batches=8,9", "batches=", "kernels=on"])
def test_a_choice_that_nothing_has_is_refused(asked: Asked, word: str) -> None:
    with pytest.raises(SystemExit, match="no setting has"):
        study.main(["model", "store", "sglang", word])
    assert not asked


def test_an_unknown_choice_is_refused(asked: Asked) -> None:
    with pytest.raises(ValueError, match="batch=8"):
        study.main(["model", "store", "sglang", "batch=8"])
    assert not asked


def test_an_ablation_says_what_did_not_run(asked: Asked, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words: list[Any] = ["model", str(tmp_path), str(out)]
    assert ablate.main(words) == 1
    ((settings, together, seconds),) = asked
    assert len(settings) == together == 2 * len(ablate.VARIANTS)
    assert seconds == ablate.SECONDS
    assert out.read_text().count("the time was up") == len(settings)
