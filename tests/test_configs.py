"""Every file in configs/ composes into a valid setting and starts with the command that uses it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser

from nondet.backends.base import backend_class
from nondet.data import data_folder
from nondet.sweep import setting_of

CONFIGS = data_folder("configs")
FILES = sorted(
    path.relative_to(CONFIGS).with_suffix("")
    for path in CONFIGS.rglob("*.yaml")
    if path.name != "config.yaml" and path.parent.name != "local"
)
# What a file needs besides its own name.
WITH = {
    "hub": ["model.path=ORG/NAME"],
    "local": ["model.path=FOLDER"],
    "endpoint": ["model.path=x"],
}


@pytest.mark.parametrize("file", FILES, ids=str)
def test_it_composes(file: Path) -> None:
    group, name = str(file.parent), file.name
    plus = "+" if group in ("sweep", "experiment", "launcher") else ""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        words = [f"{plus}{group}={name}", *WITH.get(name, [])]
        config = compose("config", words, return_hydra_config=True)
        setting = setting_of(config)
        backend_class(setting.backend.name)
        params = config.hydra.sweeper.params or {}
        # Swept values are Hydra's own grammar, and each key exists.
        for override in OverridesParser.create().parse_overrides(
            [f"{key}={value}" for key, value in params.items()]
        ):
            assert override.is_sweep_override() or override.value() is not None


@pytest.mark.parametrize("file", FILES, ids=str)
def test_it_starts_with_the_command_that_uses_it(file: Path) -> None:
    lines = (CONFIGS / file).with_suffix(".yaml").read_text().splitlines()
    words = [line for line in lines[:2] if line.startswith("# python -m nondet")]
    assert words, f"{file}: first comment must be the command"
