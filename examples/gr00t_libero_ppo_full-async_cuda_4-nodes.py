"""GR00T N1.5 on LIBERO spatial with PPO, rollouts never stopping, on four machines of 8 GPUs and 128 cores.

RLinf's 512 windows a step. What is trained is cut among the 32 ranks; every GPU's simulators are served by its own
generator. Start Ray on the machines first, and give its address: ``RAY_ADDRESS=10.0.0.1:6379 rlvla train ...``
(``core/docs/clusters.md``).

Not run at this size. In virtual time 512 slots of one environment keep the controller busy all of the time, and a third of the speed
is left; slots of four (``--run.slots 128``) leave it a third of its time, and step the four one after another.
"""

from pathlib import Path
from typing import Any

from rlvla.configs import overridden, read_file


def recipe() -> dict[str, Any]:
    """Return the run's mapping."""
    one = read_file(Path(__file__).with_name("gr00t_libero_ppo_full-async_cuda.py"))
    change = {
        "sim": {"num_envs": 512},
        "algo": {"windows_per_step": 512, "minibatch_size": 8192},
        "train": {"shard": "fsdp"},
        "run": {"runtime": "ray", "devices": 32, "placement": "collocated", "slots": 512},
    }
    return overridden(one, change)
