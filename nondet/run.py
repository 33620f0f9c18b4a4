"""Run one setting, or a sweep over settings, and write the report.

    python -m nondet.run                          one setting
    python -m nondet.run +sweep=batchsize         a study: all its settings, then the report
    python -m nondet.run batch_size=1,4 dtype=bf16,fp32 task.limit=8 -m

Exit codes: 0 done, 1 a run failed (recorded, the sweep went on), 2 a mistake in the command.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from nondet import sweep
from nondet.data import data_folder
from nondet.settings import one_line


@hydra.main(version_base="1.3", config_path=str(data_folder("configs")), config_name="config")
def job(config: DictConfig) -> str:
    """One job of Hydra's: the composed setting, and its repeats if it is the reference."""
    hydra_config = HydraConfig.get()
    number = 0 if OmegaConf.is_missing(hydra_config.job, "num") else int(hydra_config.job.num)
    multirun = hydra_config.mode is RunMode.MULTIRUN
    folder = Path(hydra_config.sweep.dir if multirun else hydra_config.run.dir)
    return sweep.do_job(config, number, Path(hydra_config.runtime.cwd) / folder)


def in_order(words: Sequence[str]) -> list[str]:
    """The command line as Hydra reads it: -m first, since words after it would be refused.

    A sweep or a launcher is a multirun by itself: a key on the command line may then list values,
    and Hydra gives a launcher jobs of a multirun alone.
    """
    flags = ("-m", "--multirun")
    many = any(word in flags or word.startswith(("+sweep=", "+launcher=")) for word in words)
    return ["--multirun"] * many + [word for word in words if word not in flags]


def _refuse(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    parser.exit(2, f"nondet: {message}; must be KEY=VALUE, or one of the flags that --help lists\n")


def main() -> int:
    """Entry point; turns every mistake of the user's into one line and exit code 2."""
    own_trace = os.environ.get("HYDRA_FULL_ERROR")
    # Hydra would print a mistake over many lines and exit with 1; let it through to us instead.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    sys.argv[1:] = in_order(sys.argv[1:])
    # The parser is Hydra's own and prints its whole usage.
    argparse.ArgumentParser.error = _refuse  # type: ignore[assignment, method-assign]
    try:
        job()
    except sweep.MISTAKES as error:
        if own_trace:
            raise
        print(f"nondet: {one_line(error)}", file=sys.stderr)
        return 2
    except ValueError as error:
        # Of all mistakes in overrides Hydra has no exception of its own for this one.
        if own_trace or not str(error).startswith("Config group override"):
            raise
        print(f"nondet: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("nondet: stopped; the same command goes on where this one ended", file=sys.stderr)
        return 130
    finally:
        sweep.close_display()
    return 0


if __name__ == "__main__":
    sys.exit(main())
