"""A run of tiny and GRPO on the true runtime, one of whose workers crashes on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(400)
RUN = """
import json, sys
import rlvla
run = rlvla.build(
    sim={
        "use": "robotwin", "task": "click_bell", "assets": sys.argv[1], "shader": "default", "num_envs": 2,
        "cameras": ["head"], "head_camera": "L515", "max_episode_steps": 6,
    },
    model={"use": "tiny", "horizon": 4},
    algo={"use": "grpo", "group_size": 2, "entropy_weight": 0.01},
    scheduler="sync",
    run={"steps": 3, "device": "cpu", "directory": sys.argv[2], "name": "run"},
)
run.train()
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
run.close()
"""


def workers(pid: int) -> list[int]:
    """Return the worker processes that a process has started."""
    told = [Path(f"/proc/{pid}/task/{one}/children") for one in os.listdir(f"/proc/{pid}/task")]
    children = [int(child) for path in told if path.exists() for child in path.read_text().split()]
    return [one for one in children if b"rlvla.worker" in Path(f"/proc/{one}/cmdline").read_bytes()]


@pytest.fixture(scope="module")
def finished(interpreter: str, toy: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Run, end a worker as a broken driver would once the first step is over, and return the run's folder and its modules."""
    place = tmp_path_factory.mktemp("runs")
    said = (place / "said").open("w+")
    process = subprocess.Popen([sys.executable, "-c", RUN, toy, str(place)], stdout=said, stderr=subprocess.STDOUT)
    try:
        metrics = place / "run" / "metrics.jsonl"
        deadline = time.monotonic() + 200
        while not (metrics.exists() and metrics.read_text().strip()) and process.poll() is None:
            assert time.monotonic() < deadline, "no step within 200 s"
            time.sleep(0.05)
        if process.poll() is None:
            os.kill(workers(process.pid)[0], signal.SIGSEGV)
        assert process.wait(200) == 0, (place / "said").read_text()[-3000:]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        said.close()
    return place / "run", json.loads((place / "said").read_text().strip().splitlines()[-1])


def steps(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_grpo_trains(finished: tuple[Path, list[str]]) -> None:
    lines = steps(finished[0])
    assert len(lines) == 3
    assert all(one["train/grad_norm"] > 0 for one in lines)
    assert (finished[0] / "checkpoints" / "step_000003" / "model" / "model.safetensors").exists()


def test_a_crashed_worker_is_replaced_and_counted(finished: tuple[Path, list[str]]) -> None:
    assert sum(one.get("workers/restarts") or 0 for one in steps(finished[0])) == 1


def test_the_main_process_imports_nothing_of_the_runtime(finished: tuple[Path, list[str]]) -> None:
    assert "torch" in finished[1]
    assert not {"robotwin", "sapien", "mplib", "toppra", "cv2", "open3d", "trimesh", "gymnasium"} & set(finished[1])


def test_results_say_what_drew(finished: tuple[Path, list[str]]) -> None:
    manifest = (finished[0] / "manifest.json").read_text()
    assert '"shader": "default"' in manifest and '"rlinf-robotwin-runtime": "0.1.3"' in manifest
