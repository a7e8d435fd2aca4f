"""Windows without partial reset: one episode each, over when it ends or the window is; nothing beyond is played."""

import numpy as np
import pytest
import torch

import rlvla
from rlvla.rl import advantages
from rlvla.testing.scheduler import Recorder
from rlvla.video import read_video

STEPS, WINDOWS = 4, 7


@pytest.fixture
def collected(monkeypatch):
    """Trajectories of each training step, as PPO gets them."""
    from rlvla_algo_ppo.algorithm import Ppo

    prepare, found = Ppo.prepare, []

    def keep(self, trajectories):
        found.append(trajectories.clone())
        return prepare(self, trajectories)

    monkeypatch.setattr(Ppo, "prepare", keep)
    return found


def build(folder, window=3, listeners=(), sim=None, run=None, **algo):
    options = {"directory": str(folder), "name": "run", "steps": STEPS, "slots": 2, "threads": 1, "device": "cpu"}
    quiet = {"without": ["tensorboard", "display", "report"], "strict_listeners": True}
    chosen = {"use": "ppo", "window": window, "windows_per_step": WINDOWS, "minibatch_size": 8, "passes": 1, **algo}
    return rlvla.build(
        sim={"use": "fake", "num_envs": 5, **(sim or {})},
        model="fake",
        algo={"partial_reset": False, **chosen},
        scheduler="async-rollout",
        run={**options, **quiet, **(run or {})},
        listeners=listeners,
    )


def ended(trajectories):
    return ((trajectories.terminated | trajectories.truncated) & trajectories.valid).any(-1)


def last(trajectories):
    chunks = trajectories.exists.sum(1)
    return torch.arange(trajectories.shape[1]) == chunks[:, None] - 1


def test_a_window_is_one_episode(tmp_path, collected):
    with build(tmp_path) as run:
        run.train()
    assert len(collected) == STEPS
    for one in collected:
        assert len(one) == WINDOWS
        assert not (ended(one) & ~last(one)).any(), "an episode ended and the window went on"
        whole = one.exists.all(1)
        assert (whole | ended(one).any(1)).all(), "a window is over before its episode"
    short = torch.cat([~one.exists.all(1) for one in collected])
    cut = torch.cat([~ended(one).any(1) for one in collected])
    assert short.any()
    assert cut.any()


def test_only_a_window_that_was_cut_is_followed_by_a_value(tmp_path, collected):
    with build(tmp_path) as run:
        run.train()
    for one in collected:
        cut = ~ended(one).any(1)
        truncated = (one.truncated & one.valid).flatten(1).any(1)
        assert torch.equal(one.final_value.ne(0).any(1), cut | truncated)
        assert not one.final_value[~last(one)].any()
        credit = advantages.credit_arrays(one, one.reward, "chunk")
        final, after = advantages.end_values(one, "chunk")
        _, returns = advantages.gae(credit, one.value.flatten(1), final, after, gamma=0.5, gae_lambda=1.0)
        for u in range(len(one)):  # the first return, summed by hand
            chunks = int(one.exists[u].sum())
            paid = torch.where(one.valid[u], one.reward[u], 0.0).sum(-1)[:chunks]
            wanted = sum(0.5**t * float(paid[t]) for t in range(chunks)) + 0.5**chunks * float(after[u]) * bool(
                cut[u] | truncated[u]
            )
            assert float(returns[u, 0]) == pytest.approx(wanted, abs=1e-5)


def test_what_is_not_played_is_not_counted(tmp_path, collected):
    heard = Recorder()
    with build(tmp_path, listeners=[heard]) as run:
        run.train()
    played = np.cumsum([int(one.valid.sum()) for one in collected])
    assert [one["env_steps"] for one in heard.metrics] == played.tolist()
    assert [one["train/samples"] for one in heard.metrics] == [int(one.exists.sum()) for one in collected]
    assert min(one["train/samples"] for one in heard.metrics) < WINDOWS * 3
    mean = [float(one.valid.flatten(1).sum(1).float().mean()) for one in collected]
    assert [one["rollout/episode_length"] for one in heard.metrics] == pytest.approx(mean)


def test_every_window_counts_as_an_episode_solved_or_not(tmp_path, collected):
    """If those that are cut counted for nothing, the success rate would be that of the fast ones."""
    heard = Recorder()
    with build(tmp_path, window=2, listeners=[heard]) as run:  # of at most 4 chunks
        run.train()
    for metrics, one in zip(heard.metrics, collected, strict=True):
        assert metrics["rollout/episodes"] == WINDOWS
        assert metrics["rollout/success_once"] == pytest.approx(float(one.success.any(1).float().mean()))
        assert metrics["rollout/truncated"] == pytest.approx(
            1 - float((one.terminated & one.valid).flatten(1).any(1).float().mean())
        )


def test_a_window_beyond_the_step_limit_ends_with_its_episode(tmp_path, collected):
    with build(tmp_path, window=9) as run:
        assert run.specs.samples_per_step == WINDOWS * 4
        run.train()
    for one in collected:
        assert one.exists.sum(1).max() <= 4
        assert ended(one).any(1).all()


def test_episodes_start_as_their_ticket_says(tmp_path, collected):
    """Whoever plays them: two numbers of environments, the same first observations."""
    from rlvla.actors.trainer import TrainerActor

    firsts = []
    fill = TrainerActor._fill

    def keep(self, data):
        rows = torch.cumsum(data.trajectories.exists.flatten(), 0).view(data.trajectories.exists.shape)[:, 0] - 1
        firsts.append(data.observations.state[rows].clone())
        return fill(self, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainerActor, "_fill", keep)
        for number in (5, 2):
            with build(tmp_path / str(number), sim={"num_envs": number}, run={"slots": 1}) as run:
                run.train()
    for one, other in zip(firsts[:STEPS], firsts[STEPS:], strict=True):
        assert torch.equal(one, other)
    assert len(torch.cat(firsts[:STEPS]).unique(dim=0)) == STEPS * WINDOWS


def test_a_video_ends_where_its_episode_is_given_up(tmp_path):
    videos = []

    class Listener:
        @rlvla.hookimpl
        def on_video(self, path):
            videos.append(path)

    with build(tmp_path, window=1, listeners=[Listener()], run={"video_every": 2}) as run:
        run.train()
    assert videos
    assert all(2 <= len(read_video(path)) <= 4 for path in videos)  # a start and up to 3 actions
    assert len(set(videos)) == len(videos)
