"""A sweep from its first check to its report: what happens around Hydra's jobs.

Hydra calls ``StudyCallback`` (configs/config.yaml names it) before anything is written and after
the last job. Jobs may run in other processes or on other machines (submitit, ray): a job needs
nothing but its config and the study folder.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra import compose
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

import nondet
from nondet.execute import execute
from nondet.marking.repeat import check_study
from nondet.plan import Plan, plan_run, repeats_of
from nondet.progress import Lines, Live
from nondet.runs import DECODING, write_json
from nondet.settings import Setting, SettingError, one_line, setting_from
from nondet.study import label_of, load_study

# Keys of config.yaml that steer a study and are no factors of a run.
STEERING = ("study", "repeats", "outputs", "report")
LOCAL_LAUNCHER = "basic"

# What a user can get wrong, as exceptions.
MISTAKES = (SettingError, HydraException, OmegaConfBaseException)

_display: Live | Lines | None = None
_varying: tuple[str, ...] = ()


class StudyCallback(Callback):
    """Checks every setting first, and writes the report last."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        _or_exit(lambda: begin(config, [config], Path(config.hydra.run.dir)))

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        def start() -> None:
            name = str(config.hydra.job.config_name)
            path = [w for w in config.hydra.overrides.hydra if w.startswith("hydra.searchpath=")]
            jobs = [compose(name, [*path, *words]) for words in job_overrides(config)]
            begin(config, jobs, Path(config.hydra.sweep.dir))

        _or_exit(start)

    def on_run_end(self, config: DictConfig, **kwargs: Any) -> None:
        _or_exit(lambda: end(config, Path(config.hydra.run.dir)))

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        _or_exit(lambda: end(config, Path(config.hydra.sweep.dir)))


def _or_exit(work: Callable[[], None]) -> None:
    # Hydra turns what a callback raises into a warning and goes on; an exit gets through.
    try:
        work()
    except MISTAKES as error:
        close_display()
        print(f"nondet: {one_line(error)}", file=sys.stderr)
        raise SystemExit(2) from error
    except Exception as error:
        close_display()
        traceback.print_exc()
        raise SystemExit(1) from error


def job_overrides(config: DictConfig) -> list[list[str]]:
    """The overrides of every job of a multirun. A key on the command line replaces the sweep's."""
    words = list(OmegaConf.to_container(config.hydra.overrides.task, resolve=False) or [])
    parser = OverridesParser.create()
    given = parser.parse_overrides([str(word) for word in words])
    asked = {override.key_or_group for override in given}
    params = dict(config.hydra.sweeper.params or {})
    with open_dict(config):
        config.hydra.sweeper.params = {k: v for k, v in params.items() if k not in asked}
    swept = [f"{key}={value}" for key, value in config.hydra.sweeper.params.items()]
    overrides = [*parser.parse_overrides(swept), *given]
    return [list(job) for batch in BasicSweeper.split_arguments(overrides, None) for job in batch]


def setting_of(config: DictConfig) -> Setting:
    """The checked setting in a composed config. Raises SettingError."""
    factors = [str(key) for key in config if key not in (*STEERING, "hydra")]
    values = OmegaConf.to_container(OmegaConf.masked_copy(config, factors), resolve=True)
    assert isinstance(values, dict)
    return setting_from({str(key): value for key, value in values.items()})


def begin(config: DictConfig, jobs: Sequence[DictConfig], folder: Path) -> None:
    """Check all settings of a study; only then make its folder. Raises SettingError."""
    global _display, _varying
    repeats = config.repeats
    if not isinstance(repeats, int) or isinstance(repeats, bool) or repeats < 0:
        raise SettingError("repeats", repeats, "a whole number of at least 0")
    _steering(config)
    settings = [setting_of(job) for job in jobs]
    if launcher_of(config) == LOCAL_LAUNCHER:
        # Elsewhere the jobs' machines decide (a login node has no GPU); they check again anyway.
        _comparable([plan_run(setting) for setting in settings])
    _writable(Path(config.outputs))
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    record = {
        "name": str(config.study),
        "seed": settings[0].seed,
        "planned": len(settings) + repeats,
        "command": sys.argv[1:],
        "nondet": nondet.__version__,
    }
    write_json(folder / "study.json", record)
    _point_latest(Path(config.outputs), folder)
    runs = len(settings) + repeats
    values = {
        name: {str(s.factors().get(name)) for s in settings} for name in settings[0].factors()
    }
    _varying = tuple(name for name, found in values.items() if len(found) > 1)
    _display = Live(runs).__enter__() if sys.stderr.isatty() else Lines(runs)


def _steering(config: DictConfig) -> None:
    if not isinstance(config.report, bool):
        raise SettingError("report", config.report, "true or false")
    for key in ("study", "outputs"):
        if not isinstance(config[key], str) or not config[key].strip():
            raise SettingError(key, config[key], "a name: a number stands in quotes, as in '\"7\"'")


def _comparable(plans: Sequence[Plan]) -> None:
    """Refuse a study whose runs could never be put beside each other, before any has started."""
    valid = "the same in all settings of a study, or their answers cannot be compared"
    first = plans[0]
    for plan in plans[1:]:
        for key in DECODING:
            value = getattr(plan.setting, key)
            if value != getattr(first.setting, key):
                raise SettingError(key, value, valid)
        if plan.model.fingerprint != first.model.fingerprint:
            raise SettingError("model", plan.setting.factors()["model"], valid)
        if plan.workload.fingerprint != first.workload.fingerprint:
            raise SettingError("task", plan.task.name, f"of prompts that are {valid}")


def launcher_of(config: DictConfig) -> str:
    """Name of Hydra's launcher: basic, submitit_local, submitit_slurm, ray."""
    return str(OmegaConf.select(config, "hydra.runtime.choices.hydra/launcher", default="basic"))


def do_job(config: DictConfig, number: int, folder: Path) -> str:
    """Run a job's setting and, for the first job, its repeats. Returns the worst status."""
    setting = setting_of(config)
    store = Path(config.outputs).absolute() / "runs"
    statuses = []
    for one in repeats_of(setting, config.repeats if number == 0 else 0):
        plan = plan_run(one)
        again = one.repeat - setting.repeat
        label = label_of(one, _varying) + (f", repeat {again}" if again else "")
        statuses.append(execute(plan, store, _display or Lines(), label))
        suffix = f".{again}" if again else ""
        _link(folder / "runs" / f"{number:03d}{suffix}-{plan.run_id}", store / plan.run_id)
    return "failed" if "failed" in statuses else statuses[0]


def end(config: DictConfig, folder: Path) -> None:
    """Write and print the report; exit with 1 when a run failed."""
    close_display()
    study = load_study([folder])
    marker = check_study(folder, study.complete)
    if marker and marker["differ"]:
        print(f"nondet: the marker contradicts itself: {marker}", file=sys.stderr)
    if config.report:
        from nondet.report import write_report
        from nondet.report.terminal import print_report

        print_report(write_report([folder], folder / "report", seed=int(config.seed)))
    for run in study.failed:
        print(f"nondet: run {run.id} {run.status}: {run.record['reason']}", file=sys.stderr)
    if study.failed:
        raise SystemExit(1)


def close_display() -> None:
    """Put the terminal back; harmless when there is no display."""
    global _display
    if isinstance(_display, Live):
        _display.__exit__(None, None, None)
    _display = None


def _writable(outputs: Path) -> None:
    try:
        outputs.mkdir(parents=True, exist_ok=True)
        probe = outputs / f".probe.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        valid = f"a folder that can be written ({error.strerror})"
        raise SettingError("outputs", outputs, valid) from error


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        link.symlink_to(os.path.relpath(target, link.parent))


def _point_latest(outputs: Path, folder: Path) -> None:
    """Make outputs/latest point to a study, in one step."""
    new = outputs / f".latest.{os.getpid()}"
    new.unlink(missing_ok=True)
    new.symlink_to(os.path.relpath(folder, outputs))
    new.replace(outputs / "latest")
