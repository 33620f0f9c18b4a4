"""What every part of the report needs: names and looks of the settings, and the standing facts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nondet.report.style import Look, looks
from nondet.report.view import View
from nondet.runs import Run
from nondet.study import Study


@dataclass(frozen=True)
class Context:
    """A study as the report names it.

    labels: every run's name, by run id. looks: how a run is drawn, by its name, and how a slice
    is, by its own. facts: one line that every caption ends with: items,
    repeats, hardware, versions.
    """

    view: View
    labels: dict[str, str]
    looks: dict[str, Look]
    facts: str

    @property
    def study(self) -> Study:
        return self.view.study


def make_context(view: View) -> Context:
    """Names, looks and facts of a study with at least one run."""
    study = view.study
    labels = {str(k): str(v) for k, v in view.summary.set_index("run_id")["label"].items()}
    firsts: dict[str, Run] = {}
    for run in study.runs:
        firsts.setdefault(repr(study.setting_key(run)), run)
    drawn = dict(zip(firsts, looks([run.factors for run in firsts.values()]), strict=True))
    named = {labels[run.id]: drawn[repr(study.setting_key(run))] for run in study.runs}
    parts = [part for part in view.slices if part.study.complete]
    kinds = looks([part.study.complete[0].factors for part in parts])
    named.update({part.name: look for part, look in zip(parts, kinds, strict=True)})
    named["all settings"] = looks([{}])[0]
    return Context(view, labels, named, facts(study))


def facts(study: Study) -> str:
    """Items, repeats, hardware and versions in one line."""
    runs = study.complete
    if not runs:
        return "No run finished."
    items = len(set(runs[0].item_ids))
    settings = len({study.setting_key(run) for run in runs})
    repeats = len(runs) - settings
    parts = [
        _count(items, "item") + _samples(len(runs[0].item_ids), items),
        _count(settings, "setting"),
        _count(repeats, "repeat") if repeats else "no repeats",
        " and ".join(hardware(runs)) or "hardware not recorded",
        ", ".join(software(runs)) or "versions not recorded",
    ]
    if any((run.record.get("observed") or {}).get("token_unit") == "characters" for run in runs):
        parts.append("imported texts, so positions and lengths count characters, not tokens")
    return "; ".join(parts) + "."


def _samples(rows: int, items: int) -> str:
    if rows <= items:
        return ""
    return f", {rows / items:g} responses each, counted one by one (intervals count items)"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def hardware(runs: Iterable[Run]) -> list[str]:
    """What the runs were made on: each kind of machine once."""
    names: dict[str, None] = {}
    for run in runs:
        environment = run.record.get("environment") or {}
        gpus = list(environment.get("gpus") or [])
        device = str((run.record.get("observed") or {}).get("device", ""))
        if gpus and not device.startswith("cpu"):
            kinds = dict.fromkeys(gpus)
            names[", ".join(f"{gpus.count(kind)} × {kind}" for kind in kinds)] = None
        elif environment.get("cpu"):
            cores = environment.get("cpus")
            names[f"{environment['cpu']}" + (f", {cores} cores" if cores else "")] = None
    return list(names)


def software(runs: Iterable[Run]) -> list[str]:
    """Versions that take part in generation; each name with all the versions there were."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        versions: dict[str, Any] = (run.record.get("environment") or {}).get("versions") or {}
        for name in ("torch", "transformers", "vllm", "sglang"):
            if versions.get(name):
                found.setdefault(name, {})[str(versions[name])] = None
    return [f"{name} {' and '.join(values)}" for name, values in found.items()]
