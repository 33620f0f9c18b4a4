"""Rows of a benchmark, from local files or from the Hub, both through ``datasets``.

``task.path`` is a parquet, JSONL, JSON or CSV file (or a folder of parquet files) with the data
set's own columns; then no network is touched. Without it the rows come from the Hub at
``task.revision``; what that resolves to, a commit, stands in the task's source.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nondet.settings import Scalar, SettingError, TaskSetting
from nondet.tasks.source import read_lines

_BUILDERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".csv": "csv"}
_TIMEOUT_S = 10
HUB_OPTIONS = {"hub": str, "revision": str}


@dataclass(frozen=True)
class HubData:
    """Where a benchmark is on the Hub, and what its rows must have."""

    id: str
    split: str
    columns: tuple[str, ...]
    config: str | None = None


def load_rows(
    setting: TaskSetting, data: HubData, check: bool = True
) -> tuple[list[dict[str, Any]], str]:
    """All rows in their order and where they came from. Raises SettingError, one line."""
    if setting.path is not None:
        path = Path(setting.path)
        rows, source = local_rows(path), f"{path.name}"
    else:
        rows, source = hub_rows(setting.options, data)
    if check:
        check_columns(rows, data.columns, setting.path or source)
    return rows, source


def check_columns(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], place: object) -> None:
    """Every row has every column, as a text that is not empty. Raises SettingError."""
    for number, row in enumerate(rows, 1):
        for name in columns:
            if row.get(name) is None or not str(row[name]).strip():
                wanted = f"rows with the columns {', '.join(columns)}; row {number} has no {name!r}"
                raise SettingError("task.path", place, wanted)
    if not rows:
        raise SettingError("task.path", place, "a file with at least one row; it has none")


def local_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a local file, or of all parquet files of a folder in the order of their names."""
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files or not files[0].is_file() or files[0].suffix not in _BUILDERS:
        kinds = ", ".join(_BUILDERS)
        raise SettingError("task.path", path, f"an existing {kinds} file or a folder of parquet")
    if files[0].suffix == ".jsonl":
        for _number, _row in read_lines(path):  # names the line that does not parse
            continue
    import datasets

    names = [str(file) for file in files]
    # A cache of its own: files may change under the same name, and processes run side by side.
    with tempfile.TemporaryDirectory(prefix="nondet-") as cache, _quiet():
        try:
            loaded = datasets.load_dataset(
                _BUILDERS[files[0].suffix], data_files=names, split="train", cache_dir=cache
            )
            rows: list[dict[str, Any]] = loaded.to_list()
        except (datasets.exceptions.DatasetGenerationError, ValueError, OSError) as error:
            reason = str(error.__cause__ or error).splitlines()[0][:150]
            raise SettingError("task.path", path, f"readable rows ({reason})") from error
    return rows


def hub_rows(options: Mapping[str, Scalar], data: HubData) -> tuple[list[dict[str, Any]], str]:
    """Rows from the Hub, or from its local cache when it cannot be reached."""
    import datasets

    name, revision = str(options.get("hub") or data.id), options.get("revision")
    commit, online = resolve(name, str(revision) if revision else None, data)
    with _quiet(), _offline(not online):
        try:
            loaded = datasets.load_dataset(name, data.config, split=data.split, revision=commit)
        except Exception as error:  # datasets raises what its readers, the network and disk raise
            raise unreachable(name, data, error) from error
    return loaded.to_list(), f"{name}@{commit}:{data.split}"


def resolve(name: str, revision: str | None, data: HubData) -> tuple[str, bool]:
    """The commit that a revision means now, and whether the Hub was there to say so.

    A commit needs no Hub: its cache may hold it. Raises SettingError for anything else that the
    Hub does not resolve.
    """
    from huggingface_hub import HfApi

    try:
        info = HfApi().dataset_info(name, revision=revision, timeout=_TIMEOUT_S)
    except Exception as error:  # network, authorisation, no such id: the user acts alike
        if revision is not None and len(revision) == 40:
            return revision, False
        raise unreachable(name, data, error) from error
    return str(info.sha), True


def unreachable(name: str, data: HubData, error: Exception) -> SettingError:
    """One line: what to give instead and how."""
    kind = type(error).__name__
    valid = (
        f"given as a local parquet or JSONL file of {name} ({data.config or 'default'}, split "
        f"{data.split}; columns {', '.join(data.columns)}), since {name} could not be loaded from "
        f"the Hub ({kind}); for a copy in the Hub's cache give task.revision= its 40-digit commit"
    )
    return SettingError("task.path", None, valid)


@contextlib.contextmanager
def _offline(wanted: bool) -> Iterator[None]:
    """Inside, datasets looks into its cache alone, without trying the network again and again."""
    import datasets

    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = before or wanted
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


class _quiet:
    """No progress bars and no warnings of datasets inside."""

    def __enter__(self) -> None:
        import datasets

        self._bars = datasets.utils.logging.is_progress_bar_enabled()
        datasets.disable_progress_bars()

    def __exit__(self, *_: object) -> None:
        import datasets

        if self._bars:
            datasets.enable_progress_bars()
