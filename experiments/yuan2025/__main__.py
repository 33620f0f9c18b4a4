"""The tables of Yuan et al. (NeurIPS 2025) on this machine or a cluster: make reproduce-paper.

    python -m experiments.yuan2025 run [SCALE]             mini (default), gpu, full
    python -m experiments.yuan2025 run full --dry-run      all runs, the estimate, what is missing
    python -m experiments.yuan2025 run full --launcher slurm --hardware A100 --yes
    python -m experiments.yuan2025 report SCALE FOLDER     the report again, from stored runs

Further KEY=VALUE words are overrides of every run. The same command goes on where it was stopped.
Exit codes: 0 done (also when cells could not run: the report names them), 2 a mistake, 130 stopped.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.yuan2025 import estimate, missing
from experiments.yuan2025.matrix import Scale, load_scale
from experiments.yuan2025.results import remember_elsewhere
from nondet.report.tables import markdown
from nondet.settings import SettingError, one_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = _parser()
    given, rest = parser.parse_known_args(arguments)
    given.words = rest
    wrong = [word for word in rest if word.startswith("--") or "=" not in word]
    if wrong or (rest and given.action == "report"):
        parser.error(f"unrecognized arguments: {' '.join(wrong or rest)}")
    try:
        if given.action == "report":
            return _report(load_scale(given.scale), given.folder, given.out)
        return _run(given)
    except SettingError as error:
        print(f"yuan2025: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("yuan2025: stopped; the same command goes on where this one ended", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m experiments.yuan2025", description=__doc__, formatter_class=formatter
    )
    actions = parser.add_subparsers(dest="action", required=True)
    run = actions.add_parser("run", help="run a scale and write its report")
    run.add_argument("scale", nargs="?", default="mini")
    run.add_argument("--dry-run", action="store_true", help="list, estimate, touch nothing")
    run.add_argument("--launcher", default="", help="slurm, ray, submitit_local; none: here")
    run.add_argument("--hardware", help="only the runs of this GPU type (A100, L40S)")
    run.add_argument("--model", help="a model folder, for scales with one model")
    run.add_argument("--outputs", type=Path, default=Path("outputs"))
    run.add_argument("--minutes", type=float, default=math.inf, help="begin no run after that")
    run.add_argument("--yes", action="store_true", help="do not ask before a launched run")
    report = actions.add_parser("report", help="the report again")
    report.add_argument("scale")
    report.add_argument("folder", type=Path)
    report.add_argument("--out", type=Path, help="default: FOLDER/report")
    return parser


def _run(given: argparse.Namespace) -> int:
    from experiments.yuan2025 import launch

    scale = load_scale(given.scale, given.model)
    if given.launcher and given.launcher not in launch.LAUNCHERS:
        valid = "one of " + ", ".join(launch.LAUNCHERS)
        raise SettingError("LAUNCHER", given.launcher, valid)
    if given.hardware and given.hardware not in {cell.hardware for cell in scale.cells}:
        kinds = ", ".join(sorted({cell.hardware for cell in scale.cells}))
        raise SettingError("HARDWARE", given.hardware, f"one of {kinds}")
    _say_first(scale, bool(given.launcher), given.dry_run)
    if given.dry_run:
        return 0
    if scale.launcher and not given.launcher:
        valid = f"one of {', '.join(launch.LAUNCHERS)} with SCALE={scale.name}"
        raise SettingError("LAUNCHER", "", valid)
    if given.launcher:
        _agree(given.yes)
        folder = launch.run_launched(
            scale, given.outputs, given.launcher, given.hardware, given.words
        )
    else:
        folder = launch.run_here(scale, given.outputs, given.words, given.minutes)
    remember_elsewhere(folder, missing.elsewhere(load_scale("full")))
    return _report(scale, folder, None)


def _say_first(scale: Scale, launcher: bool, every: bool) -> None:
    """The estimate and what is missing, and with ``every`` each run by its name."""
    if every:
        for cell in scale.cells:
            print(cell.name)
        print()
    print(scale.about)
    print(markdown(estimate.table(scale)))
    print(estimate.words())
    held = missing.summary(scale, launcher)
    if held:
        print("\nMissing, with the number of runs that need it:")
        for reason, count in held.items():
            print(f"  {count:5d}  {reason}")
    print(flush=True)


def _agree(yes: bool) -> None:
    """Ask before jobs are submitted. Raises SettingError without a yes."""
    if yes:
        return
    if sys.stdin.isatty() and input("Start? [y/N] ").strip().lower() in ("y", "yes"):
        return
    raise SettingError("YES", "", "1 to start jobs without being asked")


def _report(scale: Scale, folder: Path, out: Path | None) -> int:
    from experiments.yuan2025.page import write_report

    if not (folder / "cells.json").exists():
        raise SettingError("FOLDER", folder, "a folder with cells.json, made by a run")
    written = write_report(scale, folder, out or folder / "report")
    print(written.text)
    print(f"report: {written.page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
