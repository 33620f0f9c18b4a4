"""Data of other tools as run folders, and run folders as files of other tools."""

from nondet.interchange.base import ForeignResponse, ForeignRun, InterchangeError, write_foreign
from nondet.interchange.inspect_log import export_inspect
from nondet.interchange.jsonl import read_jsonl
from nondet.interchange.lm_eval import export_lm_eval, read_lm_eval
from nondet.interchange.paper import read_paper

__all__ = [
    "ForeignResponse",
    "ForeignRun",
    "InterchangeError",
    "export_inspect",
    "export_lm_eval",
    "read_jsonl",
    "read_lm_eval",
    "read_paper",
    "write_foreign",
]
