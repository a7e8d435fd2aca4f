"""Every option of the core is read by some code: one that nothing reads changes nothing, silently (#30)."""

import dataclasses
from contextlib import ExitStack

import rlvla
from rlvla.configs import EvalConfig, RunOptions, TrainConfig
from rlvla.demonstrations import record
from rlvla.testing import recorded_reads

PPO = {"use": "ppo", "window": 2, "minibatch_size": 4, "passes": 1}


def test_every_core_option_is_read(tmp_path):
    kinds = (TrainConfig, EvalConfig, RunOptions)
    with ExitStack() as stack:
        reads = [stack.enter_context(recorded_reads(kind, ("rlvla",))) for kind in kinds]
        demonstrations = str(tmp_path / "demonstrations")
        record(sim={"use": "fake", "num_envs": 2}, episodes=2, path=demonstrations)
        averaged = {"ema_decay": 0.5, "micro_batch_tokens": 3}
        for number, train in enumerate((averaged, {"schedule": "cosine", "demonstrations": demonstrations})):
            run = rlvla.build(
                sim={"use": "fake", "num_envs": 3},
                model="fake",
                algo=PPO,
                train=train,
                eval={"every": 1, "episodes": 2, "weights": "ema" if number == 0 else "latest"},
                run={"directory": str(tmp_path), "name": str(number), "steps": 2, "save_every": 1, "video_every": 3},
            )
            with run:
                run.plan()
                run.train()
        unread = {
            kind.__name__: sorted({one.name for one in dataclasses.fields(kind)} - read)
            for kind, read in zip(kinds, reads, strict=True)
        }
    assert unread == {"TrainConfig": [], "EvalConfig": [], "RunOptions": []}
