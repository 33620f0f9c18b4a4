"""The published matrix: its counts, its Hydra files, the estimate, and the command line."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from experiments.yuan2025 import estimate, missing
from experiments.yuan2025.__main__ import main
from experiments.yuan2025.launch import commands
from experiments.yuan2025.matrix import Cell, load_scale, scale_names
from experiments.yuan2025.tables import specs, wanted
from nondet.data import data_folder
from nondet.settings import Setting, SettingError
from nondet.sweep import job_overrides, setting_of

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "experiments" / "yuan2025"
FULL = load_scale("full")
# Runs that each part of the paper needs: 720 greedy, 216 sampling, and the appendix.
ARMS = {"greedy": 720, "sampling": 216, "larger_model": 21, "gpqa": 24, "transformers": 48}
ARMS |= {"layercast": 30, "layercast_llama": 12}
# And ours: a repeat of each of the four models, dtype and GPU type.
CONTROLS = 4 * 3 * 2


def test_the_arms_have_the_published_counts() -> None:
    roles = Counter(cell.roles for cell in FULL.cells)
    assert {role: count for (role,), count in roles.items()} == {**ARMS, "repeats": CONTROLS}
    assert len(FULL.cells) == sum(ARMS.values()) + CONTROLS == 1071 + 24


def test_every_scale_repeats_a_setting_of_each_dtype() -> None:
    """Without it nobody can tell what the settings move from what moves by itself."""
    for name in scale_names():
        cells = load_scale(name).cells
        every, greedy, again = (
            {
                (cell.model, cell.hardware, cell.asked("dtype", "bf16"))
                for cell in cells
                if role in cell.roles and not (without & set(cell.roles))
            }
            for role, without in (("greedy", set()), ("greedy", {"layercast"}), ("repeats", set()))
        )
        # LayerCast may go without: its matrix is an appendix of the paper's.
        assert greedy <= again <= every, name


def test_no_run_is_there_twice() -> None:
    for name in scale_names():
        cells = load_scale(name).cells
        assert len({cell.name for cell in cells}) == len(cells)
        settings = [(cell.hardware, repr(cell.setting())) for cell in cells]
        assert len(set(settings)) == len(cells), name


def test_tables_and_figures_need_what_they_say() -> None:
    new: set[str] = set()
    for kind in ("tables", "figures"):
        for name, spec in specs(kind).items():
            needed = [cell for cell in FULL.cells if wanted(cell, spec, FULL)]
            assert len(needed) == spec["runs"], name
            new |= {cell.name for cell in needed}
    # Re-slicing counts nothing twice, and every run enters somewhere.
    assert new == {cell.name for cell in FULL.cells if "repeats" not in cell.roles}


def test_two_l40s_never_hold_the_large_model_in_fp32() -> None:
    large = [cell for cell in FULL.cells if cell.model == "Qwen3-32B"]
    assert Counter(cell.asked("dtype", "") for cell in large) == {"bf16": 12, "fp32": 9}
    small = {"hardware": "L40S", "gpus": 2, "dtype": "fp32"}
    assert not [c for c in large if {**c.values, "hardware": c.hardware}.items() >= small.items()]


def known(setting: Setting) -> dict[str, object]:
    """A setting without options left at null, which take the engine's default."""
    plain = setting.to_dict()
    for group in ("backend", "task"):
        options = plain[group]["options"]
        plain[group]["options"] = {k: v for k, v in options.items() if v is not None}
    return plain


def first_studies(name: str) -> list[tuple[Cell, list[Cell], list[str]]]:
    """The first study of each arm: its first cell, all its cells, its Hydra words."""
    scale = load_scale(name)
    words = scale.commands()
    found = {}
    for cell in scale.cells:
        members = [other for other in scale.cells if other.study == cell.study]
        found.setdefault(cell.arm, (cell, members, words[cell.study]))
    return list(found.values())


@pytest.mark.parametrize("scale", scale_names())
def test_hydra_makes_the_same_settings(scale: str) -> None:
    """One multirun of every arm expands to exactly the arm's cells."""
    with initialize_config_dir(str(data_folder("configs")), version_base="1.3"):
        for _, members, words in first_studies(scale):
            # Only a multirun's command line may list values.
            single = [word for word in words if "," not in word]
            config = compose("config", single, return_hydra_config=True)
            config.hydra.overrides.task = list(words)
            jobs = job_overrides(config)
            assert len(jobs) == len(members)
            # The two ends of every arm, since composing all would take minutes.
            for job in (jobs[0], jobs[-1]):
                made = known(setting_of(compose("config", job)))
                assert made in [known(cell.setting()) for cell in members]


def test_commands_name_launcher_folder_and_model(tmp_path: Path) -> None:
    found = commands(FULL, tmp_path, "slurm", "A100", ["hydra.launcher.partition=gpu"])
    assert {study[3] for study in found} == {"A100"}
    for words in found.values():
        assert words[1:3] == ["-m", "nondet.run"]
        assert "+launcher=slurm" in words
        assert words[-1] == "hydra.launcher.partition=gpu"
        assert sum(word.startswith("hydra.sweep.dir=") for word in words) == 1
    folders = [w for words in found.values() for w in words if w.startswith("hydra.sweep.dir=")]
    assert len(set(folders)) == len(found)


def test_the_dry_run_lists_everything_and_touches_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "full", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:1095] == [cell.name for cell in FULL.cells]
    assert lines[1095] == ""
    total = next(line for line in lines if line.startswith("| all "))
    assert re.search(r"\| 1095 \|", total)
    assert any("Assumed:" in line for line in lines)
    assert any("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B" in line for line in lines[1072:])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "huge"], "SCALE=huge: must be one of full, gpu, h200, mini"),
        (["run", "full"], "LAUNCHER=: must be one of slurm, ray, submitit_local with SCALE=full"),
        (["run", "full", "--launcher", "pbs"], "LAUNCHER=pbs: must be one of slurm"),
        (["run", "full", "--launcher", "ray"], "YES=: must be 1 to start jobs"),
        (["run", "full", "--hardware", "H100"], "HARDWARE=H100: must be one of A100, L40S"),
        (["run", "full", "--model", "x"], "MODEL=x: must be left out"),
        (["report", "mini", "nowhere"], "FOLDER=nowhere: must be a folder with cells.json"),
    ],
)
def test_mistakes_are_one_line_and_start_nothing(
    words: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", open("/dev/null"))  # noqa: SIM115, PTH123
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"yuan2025: {said}")
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_overrides_may_stand_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "mini", "--dry-run", "threads=1", "--minutes", "5"]) == 0
    assert "33" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main(["run", "mini", "--dry-run", "--threads"])
    assert "unrecognized arguments: --threads" in capsys.readouterr().err


def test_the_estimate_follows_its_assumptions() -> None:
    def one(**wanted_values: object) -> estimate.Cost:
        known = {"model": "Qwen2.5-7B-Instruct", "task": "math500", "hardware": "A100"}
        known |= {"gpus": 2, "batch_size": 8, "dtype": "bf16", **wanted_values}
        for cell in FULL.cells:
            facts = {"model": cell.model, "task": cell.task, "hardware": cell.hardware}
            if {**facts, **cell.values} == known and cell.arm == "greedy":
                return estimate.cost(cell, FULL)
        raise AssertionError(wanted_values)

    base = one()
    assert base.tokens == 500 * 550
    # 63 waves of at most 1,100 tokens; 15.24 GB of weights over two GPUs.
    step = 7.62e9 * 2 / (2 * 2039e9 * 0.6) + 0.012
    assert base.seconds == pytest.approx(63 * 1100 * step + 150)
    assert one(dtype="fp32").seconds > base.seconds > one(batch_size=32).seconds
    assert one(hardware="L40S").seconds > base.seconds > one(gpus=4).seconds
    assert one(model="DeepSeek-R1-Distill-Qwen-7B").tokens > 5 * base.tokens
    table = estimate.table(FULL)
    assert table["runs"].iloc[-1] == table["runs"].iloc[:-1].sum() == 1095
    hours = table["GPU hours"]
    assert hours.iloc[-1] == pytest.approx(hours.iloc[:-1].sum(), rel=0.01)


def test_what_is_missing_is_named() -> None:
    said = missing.summary(FULL)
    assert said["the model Qwen/Qwen3-32B (not in the Hub cache)"] == 21
    # What a backend refuses is said in its own words.
    cell = next(c for c in load_scale("mini").cells if c.arm == "greedy")
    refused = replace(cell, fixed=(*cell.fixed, "attention=none_such"))
    assert missing.missing(refused, load_scale("mini"))[0].startswith("attention=none_such: must")
    # Through a launcher, this machine's GPUs do not matter.
    launched = missing.summary(FULL, launcher=True)
    assert not any("here:" in reason for reason in launched)
    assert missing.summary(load_scale("mini")) == {}


def test_a_model_folder_stands_in_for_the_model_of_a_scale() -> None:
    cells = load_scale("gpu", "/some/folder").cells
    assert {cell.setting().model.path for cell in cells} == {"/some/folder"}
    with pytest.raises(SettingError, match="several models"):
        load_scale("full", "/some/folder")


def test_every_table_of_the_paper_is_one_click_away() -> None:
    text = (FOLDER / "README.md").read_text()
    links = re.findall(r"\]\(([^)#]+)", text)
    for link in links:
        if not link.startswith("http"):
            assert (FOLDER / link).exists(), link
    linked = " ".join(line for line in text.splitlines() if line.startswith("|") and "](" in line)
    numbers = {
        int(n)
        for part in re.findall(r"Tables? ([\d, and]+)", linked)
        for n in re.findall(r"\d+", part)
    }
    assert numbers >= {*range(3, 27)}
    figures = {
        int(n)
        for part in re.findall(r"Figures? ([\d, and]+)", linked)
        for n in re.findall(r"\d+", part)
    }
    assert figures >= {1, 3, 4, 5, 6, 7, 8, 9}


@pytest.mark.slow  # starts Make
def test_make_has_the_target() -> None:
    words = ["make", "-n", "reproduce-paper", "SCALE=full", "DRY_RUN=1", "LAUNCHER=slurm"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "-m experiments.yuan2025 run full --dry-run" in done.stdout
    assert "--launcher slurm" in done.stdout
    assert sys.executable
