"""The command line end to end, on the embedded default: train, evaluate, interrupt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlvla import configs

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[1]
RLVLA = [sys.executable, "-m", "rlvla"]
CHOICE = (
    "--sim tabletop --sim.num-envs 8 --model tiny --algo ppo --algo.window 4 --algo.minibatch-size 16 --scheduler sync"
)
SMALL = [*CHOICE.split(), "--run.name", "small", "--run.device", "cpu"]


def rlvla(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RLVLA, *words], cwd=place, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("trained")
    done = rlvla(place, "train", *SMALL, "--run.steps", "3", "--run.video-every", "5")
    assert done.returncode == 0, done.stderr
    assert "small: done" in done.stderr
    assert "3 of 3" in done.stderr
    return place


def test_a_run_leaves_config_metrics_manifest_and_checkpoint(trained: Path) -> None:
    run = trained / "runs/small"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    again = configs.read(configs.read_file(run / "config.yaml"))
    assert (again.sim.config.num_envs, again.run.steps) == (8, 3)
    assert json.loads((run / "manifest.json").read_text())["versions"]
    assert any((run / "checkpoints").iterdir())
    assert list((run / "tensorboard").glob("events*"))


def test_a_checkpoint_is_evaluated_directly(trained: Path) -> None:
    done = rlvla(trained, "eval", "runs/small/", "--eval.episodes", "6", "--json", "-")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["n"] == 6


def test_an_existing_run_is_not_overwritten(trained: Path) -> None:
    done = rlvla(trained, "train", *SMALL, "--run.steps", "3")
    assert done.returncode == 2
    assert "already holds checkpoints" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_finished_run_goes_on(trained: Path) -> None:
    done = rlvla(trained, "train", "--resume", "runs/small//", "--run.steps", "5")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line)["step"] for line in (trained / "runs/small/metrics.jsonl").read_text().splitlines()]
    assert lines == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_saves_and_leaves_no_process_behind(tmp_path: Path, number: signal.Signals) -> None:
    log = (tmp_path / "log").open("w+")
    process = subprocess.Popen(
        [*RLVLA, "train", *SMALL, "--run.steps", "100000"], cwd=tmp_path, stderr=log, stdin=subprocess.DEVNULL
    )
    metrics = tmp_path / "runs/small/metrics.jsonl"
    deadline = time.monotonic() + 120
    while not metrics.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    workers = children(process.pid)
    assert workers
    process.send_signal(number)
    status = process.wait(60)
    log.seek(0)
    text = log.read()
    log.close()
    assert status == 130, text
    assert "go on with: rlvla train --resume runs/small" in text
    assert "Traceback" not in text
    assert any((tmp_path / "runs/small/checkpoints").iterdir())
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


def children(pid: int) -> list[int]:
    return [int(one) for task in os.listdir(f"/proc/{pid}/task") for one in _read(pid, task).split()]


def _read(pid: int, task: str) -> str:
    return Path(f"/proc/{pid}/task/{task}/children").read_text()


def test_a_wrong_setting_fails_before_torch_is_imported(tmp_path: Path) -> None:
    code = f"""
import sys
from rlvla.cli import main
code = main(["train", *{SMALL!r}, "--algo.window", "0", "--run.stps", "1"])
assert code == 2, code
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "algo.window: got '0', wanted greater than or equal to 1" in done.stderr
    assert "run.stps: no such option. Did you mean 'steps'?" in done.stderr
    assert not (tmp_path / "runs").exists()
