"""Where the files shipped beside the code are: in a wheel, or in a checkout."""

from __future__ import annotations

from pathlib import Path


def data_folder(name: str) -> Path:
    """The folder ``configs`` (or another shipped one), absolute."""
    package = Path(__file__).resolve().parent
    shipped = package / "_data" / name
    return shipped if shipped.is_dir() else package.parent / name
