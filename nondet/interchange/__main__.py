"""Data of other tools in and out.

python -m nondet.interchange import paper FOLDER... --study STUDY [--set gpus=2] [--layercast]
python -m nondet.interchange import lm-eval samples_....jsonl... --study STUDY
python -m nondet.interchange import jsonl FILE... --study STUDY [--set batch_size=4]
python -m nondet.interchange export lm-eval|inspect STUDY --out FOLDER
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from nondet.interchange.base import ForeignRun, InterchangeError, write_foreign
from nondet.interchange.inspect_log import export_inspect
from nondet.interchange.jsonl import read_jsonl
from nondet.interchange.lm_eval import export_lm_eval, read_lm_eval
from nondet.interchange.paper import read_paper
from nondet.settings import Scalar
from nondet.study import StudyError, load_study

FORMATS = {"import": ("paper", "lm-eval", "jsonl"), "export": ("lm-eval", "inspect")}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m nondet.interchange",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    ways = top.add_subparsers(dest="way", required=True)
    read = ways.add_parser("import", help="make run folders from files of another tool")
    read.add_argument("format", choices=FORMATS["import"])
    read.add_argument("paths", nargs="+", type=Path)
    read.add_argument("--study", required=True, type=Path, help="study folder to add the runs to")
    read.add_argument("--set", action="append", default=[], metavar="FACTOR=VALUE", dest="factors")
    read.add_argument("--repeat", type=int, default=0, help="0 for the first of a setting")
    read.add_argument("--model", default="unnamed", help="where the files do not say it")
    read.add_argument("--task", default="unnamed", help="where the files do not say it")
    read.add_argument("--metric", help="lm-eval: the value that is right or wrong")
    read.add_argument("--layercast", action="store_true", help="paper: made by its LayerCast")
    write = ways.add_parser("export", help="write files of another tool from a study")
    write.add_argument("format", choices=FORMATS["export"])
    write.add_argument("study", type=Path)
    write.add_argument("--out", required=True, type=Path)
    return top


def factor(text: str) -> tuple[str, Scalar]:
    """``batch_size=4`` as name and value; numbers, true, false and null as in JSON."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InterchangeError(f"--set {text}: must be FACTOR=VALUE")
    try:
        parsed = json.loads(value)
    except json.JSONDecodeError:
        return name, value
    return name, parsed if not isinstance(parsed, list | dict) else value


def foreign_runs(args: argparse.Namespace) -> Iterator[ForeignRun]:
    """The runs in the files of the command line."""
    given = dict(factor(text) for text in args.factors)
    for path in args.paths:
        # Several files without a word on their factors differ in where they come from.
        own = {"source": path.stem, **given} if len(args.paths) > 1 else given
        if args.format == "paper":
            yield from read_paper(path, given, args.layercast)
        elif args.format == "lm-eval":
            yield read_lm_eval(path, own, args.model, args.metric)
        else:
            yield read_jsonl(path, own, args.model, args.task)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0, or 2 with one line on what cannot be read."""
    args = parser().parse_args(argv)
    try:
        if args.way == "import":
            runs = list(foreign_runs(args))
            for run in runs:
                identity = write_foreign(run, args.study, args.repeat)
                print(f"{run.source}: {len(run.responses)} responses, run {identity}")
            return 0
        export = export_lm_eval if args.format == "lm-eval" else export_inspect
        study = load_study([args.study])
        for complete in study.complete:
            for path in export(complete, args.out / complete.id):
                print(path)
        return 0
    except (InterchangeError, StudyError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
