"""The trainer: every optimizer step is of the whole minibatch, however it is cut; what cannot be trained on is skipped."""

import dataclasses
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from rlvla import configs, offload, sharding
from rlvla.actors.making import Learner
from rlvla.actors.trainer import TrainerActor, minibatches
from rlvla.assembly import Entry
from rlvla.batch import Action, ObservationBatch, Outcome
from rlvla.checks import check
from rlvla.configs import TrainConfig
from rlvla.errors import ConfigError, NonFiniteError, NothingToLearnError, SimulatorError
from rlvla.noise import Noise
from rlvla.optimizer import Optimizer
from rlvla.plugin import find
from rlvla.weights import acting_copy

ROWS, CHUNKS = 6, 3


def trainer(algo: str = "ppo", *, steps: int = 10, model: str = "fake", algo_options=None, **train) -> TrainerActor:
    plugin = find("algo", algo)
    config = plugin.config(**(algo_options or {"window": CHUNKS, "minibatch_size": None, "passes": 2}))
    spec = plugin.describe(config)
    sim, policy = find("sim", "fake"), find("model", model)
    generator = torch.Generator().manual_seed(0)
    made = policy.load()(policy.config(), sim.describe(sim.config()), spec, generator=generator)
    options = {"learning_rate": 1e-2, **train}
    return TrainerActor(made, plugin.load()(config), TrainConfig(**options), seed=0, steps=steps)


def feed(
    actor: TrainerActor,
    rows=range(ROWS),
    *,
    version: int = 0,
    finite: bool = True,
    groups_of: int = 1,
    same_start: bool = True,
) -> list[int]:
    """Record one window for each row, or groups of some rows each: random observations, actions of the model itself,
    episodes that end anywhere. Returns the tickets."""
    rows = list(rows)
    generator = torch.Generator().manual_seed(3)
    state = torch.randn(CHUNKS + 1, ROWS, 2, generator=generator)
    if same_start:
        state[0] = state[0, torch.arange(ROWS) // groups_of * groups_of]
    reward = torch.randn(CHUNKS, ROWS, 3, generator=generator)
    ends = torch.rand(CHUNKS, ROWS, 3, generator=generator) < 0.15
    for chunk in range(CHUNKS):
        before, after = seen(state[chunk, rows]), seen(state[chunk + 1, rows])
        keys = torch.tensor([100 * chunk + row for row in rows])
        with torch.no_grad(), actor._weights.here(), sharding.gathered(actor.model):
            action: Action = actor.model.act(actor.model.preprocess(before), Noise(keys))
        valid = torch.cumsum(ends[chunk, rows].int(), 1) - ends[chunk, rows].int() == 0
        terminated = ends[chunk, rows] & valid
        outcome = Outcome(
            reward=torch.where(valid, reward[chunk, rows], 0.0) * (1.0 if finite else math.nan),
            terminated=terminated,
            truncated=torch.zeros_like(terminated),
            valid=valid,
            success=terminated.any(1),
            batch_size=[len(rows)],
        )
        entries = [
            Entry(row // groups_of, row % groups_of, chunk, place, chunk == CHUNKS - 1)
            for place, row in enumerate(rows)
        ]
        actor.record(before, action, outcome, after, version, entries)
    return sorted({row // groups_of for row in rows})


def seen(state: torch.Tensor) -> ObservationBatch:
    return ObservationBatch(
        images=TensorDict({}, batch_size=[len(state)]),
        state=state,
        instruction=torch.ones(len(state), 4, dtype=torch.uint8),
        batch_size=[len(state)],
    )


def weights(actor: TrainerActor) -> dict[str, torch.Tensor]:
    return {name: one.detach().clone() for name, one in actor.model.named_parameters()}


def published(actor: TrainerActor) -> dict[str, torch.Tensor]:
    """Return the weights, and their average if one is kept, as generators get them; where they are cut, of all ranks."""
    found = dict(actor.publish()[1])
    if actor.config.ema_decay is not None:
        found |= {f"average {name}": one for name, one in actor.publish("ema")[1].items()}
    return found


def near(one: dict, other: dict, relative: float = 1e-6) -> None:
    for name, tensor in one.items():
        scale = tensor.abs().max()
        difference = (tensor - other[name]).abs().max()
        assert difference <= relative * scale, f"{name}: {float(difference / scale):.2g} relative"


@pytest.mark.parametrize(
    ("shares", "wanted", "sizes", "count"),
    [
        ([10], 4, [4], 3),
        ([8, 8], 4, [2, 2], 4),
        ([9, 9], 8, [4, 4], 3),  # as one rank: 8, 8, 2
        ([344, 336, 344], 1024, [344, 336, 344], 1),  # 1024 // 3 would leave a step of six
        ([9, 6], 15, [9, 6], 1),
        ([3, 0], None, [3, 1], 1),
        ([0, 0], 4, [2, 2], 0),
    ],
)
def test_ranks_take_as_many_optimizer_steps_as_one(shares, wanted, sizes, count):
    assert minibatches(shares, wanted) == (sizes, count)
    assert count == minibatches([sum(shares)], wanted)[1]
    assert all(size * count >= share for size, share in zip(sizes, shares, strict=True)), "every sample has its step"


@pytest.mark.parametrize("cut", [{"micro_batch": 1}, {"micro_batch": 5}, {"micro_batch_tokens": 4}], ids=str)
def test_micro_batches_add_up_to_the_minibatch(cut):
    """#65, #66, #67: policy and value gradients alike, also where the last part is smaller."""
    trained = []
    for options in ({}, cut):
        actor = trainer(**options)
        receipt = actor.train(feed(actor), 0)
        trained.append((weights(actor), receipt.metrics))
    near(trained[0][0], trained[1][0])
    for name, value in trained[0][1].items():
        assert trained[1][1][name] == pytest.approx(value, rel=1e-5, abs=1e-7), name


def test_the_ratio_is_one_on_the_first_pass():
    """#76: lr 0 changes nothing, and nothing is clipped."""
    actor = trainer(learning_rate=0.0)
    before = weights(actor)
    metrics = actor.train(feed(actor), 0).metrics
    assert metrics["train/approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["train/clip_fraction"] == 0.0
    near(before, weights(actor), 0.0)


def test_a_gradient_that_is_not_finite_is_skipped_counted_and_ends_the_run_if_it_stays():
    """#82."""
    actor = trainer(max_bad_steps=3)
    before = weights(actor)
    metrics = actor.train(feed(actor, finite=False), 0).metrics
    assert metrics["train/bad_steps"] == 2
    near(before, weights(actor), 0.0)
    metrics = actor.train(feed(actor), 1).metrics  # a good one in between
    assert "train/bad_steps" not in metrics
    actor.train(feed(actor, finite=False), 2)
    tickets = feed(actor, finite=False)
    with pytest.raises(NonFiniteError, match="3 optimizer steps in a row"):
        actor.train(tickets, 3)


def test_a_batch_with_nothing_to_learn_says_so_and_ends_the_run_if_told_to(caplog, tmp_path):
    """A group of one says nothing."""
    options = {"group_size": 2, "passes": 2, "entropy_weight": 0.0}
    actor = trainer("grpo", algo_options=options, max_empty_steps=3)
    learned = actor.train(feed(actor, groups_of=2), 0)
    assert "train/empty_steps" not in learned.metrics
    assert not caplog.messages
    metrics = actor.train(feed(actor, version=1), 1).metrics
    assert metrics["train/empty_steps"] == 2
    assert metrics["train/grad_norm"] == 0
    assert "training step 1: 2 optimizer steps had nothing to learn from" in caplog.text
    resumed = trainer("grpo", algo_options=options, max_empty_steps=3)
    resumed.load(tmp_path, actor.save(tmp_path))
    for one in (actor, resumed):
        tickets = feed(one, version=2)
        with pytest.raises(NothingToLearnError, match=r"3 optimizer steps in a row.*max_empty_steps 3.*Widen the filt"):
            one.train(tickets, 2)


def test_a_run_with_nothing_to_learn_goes_on_unless_told_otherwise(caplog):
    actor = trainer("grpo", algo_options={"group_size": 2})
    before = weights(actor)
    for step in range(8):
        assert actor.train(feed(actor, version=step), step).metrics["train/empty_steps"] == 1
    near(before, weights(actor), 0.0)
    assert len(caplog.messages) == 1  # one in a row of eight


def test_a_group_of_mixed_starts_is_refused():
    actor = trainer("grpo", algo_options={"group_size": 2})
    tickets = feed(actor, groups_of=2, same_start=False)
    with pytest.raises(SimulatorError, match=r"group 0: its 2 rollouts start from different scenes.*up to \d"):
        actor.train(tickets, 0)


def test_adams_decays_are_those_of_the_config():
    actor = trainer(adam_beta1=0.8, adam_beta2=0.95)
    assert {group["betas"] for group in actor._optimizer.adam.param_groups} == {(0.8, 0.95)}


def test_a_step_without_units_is_a_step():
    actor = trainer()
    before = weights(actor)
    assert actor.train([], 0).version == 1
    near(before, weights(actor), 0.0)


def test_units_of_which_something_was_lost_are_left_out_and_counted():
    """The others train as if they were alone; none left is a step without units."""
    whole, part = trainer(), trainer()
    wanted = part.train(feed(part, range(1, ROWS)), 0)
    tickets = feed(whole)
    whole.miss([Entry(tickets[0], 0, CHUNKS - 1, 0, True), None])
    found = whole.train(tickets, 0)
    assert (found.lost, wanted.lost) == (1, 0)
    assert found.metrics["train/samples"] == wanted.metrics["train/samples"] == (ROWS - 1) * CHUNKS
    for one, other in zip(whole.model.parameters(), part.model.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    whole.miss([Entry(ticket, 0, 0, 0, False) for ticket in tickets])
    found = whole.train(tickets, 1)
    assert (found.lost, found.version, found.metrics) == (ROWS, 2, {})


def test_stale_chunks_keep_their_behaviour_log_probs():
    """#77: with data two versions old, the ratio differs from 1 on the first minibatch."""
    options = {"window": CHUNKS, "minibatch_size": None, "passes": 1, "max_staleness": 2, "proximal": "behaviour"}
    actor = trainer(algo_options=options)
    tickets = feed(actor, version=0)
    with torch.no_grad():
        for parameter in actor.model.parameters():
            parameter.mul_(1.3)
    actor.version = 2
    metrics = actor.train(tickets, 2).metrics
    assert metrics["train/staleness_max"] == 2
    assert metrics["train/approx_kl"] > 1e-3


def test_the_reference_is_the_policy_that_training_started_from():
    """#78: with a large KL weight and no advantage, a policy that was pushed away comes back."""
    options = {"window": CHUNKS, "minibatch_size": None, "passes": 1, "kl_weight": 100.0, "value_weight": 1e-6}
    actor = trainer(algo_options=options, learning_rate=2e-2, steps=1000)
    with torch.no_grad():
        actor.model.policy.add_(0.5 * torch.randn(actor.model.policy.shape, generator=torch.Generator().manual_seed(1)))
    distances = []
    for step in range(40):
        metrics = actor.train(feed(actor), step).metrics
        distances.append(next(value for name, value in metrics.items() if name.startswith("train/kl")))
    assert distances[-1] < 0.3 * distances[0]


def test_proximal_log_probs_are_recomputed_before_the_first_update():
    options = {"window": CHUNKS, "minibatch_size": None, "passes": 1, "proximal": "recompute"}
    actor = trainer(algo_options=options)
    assert actor.train(feed(actor), 0).metrics["train/clip_fraction"] == 0.0


def watched(actor: TrainerActor) -> tuple[list[int], list]:
    """Return where a trainer notes how many samples it evaluates at a time, and the trajectories of each step."""
    seen: list[int] = []
    kept: list = []
    evaluate, prepare = actor._evaluate, actor.algorithm.prepare
    actor._evaluate = lambda model, observations, replay: (
        seen.append(len(observations)) or evaluate(model, observations, replay)
    )
    actor.algorithm.prepare = lambda trajectories: kept.append(trajectories.clone()) or prepare(trajectories)
    return seen, kept


def test_only_stale_chunks_are_evaluated_again():
    """Fresh ones keep what was acted; where none is stale nothing is evaluated."""
    actor = trainer(algo_options={"window": CHUNKS, "minibatch_size": None, "passes": 2})
    seen, kept = watched(actor)
    actor.train(feed(actor), 0)
    everything = int(kept[0].exists.sum())
    assert kept[0].proximal_logp is None
    assert seen == [everything] * 2, "something was evaluated beside the two passes"
    seen.clear()
    half = ROWS // 2
    actor.train(feed(actor, range(half), version=0) + feed(actor, range(half, ROWS), version=1), 1)
    stale = kept[1].exists & (kept[1].version < 1)
    assert seen == [int(stale.sum()), everything, everything]
    moved = kept[1].proximal_logp != kept[1].logp
    assert moved[stale].any()
    assert not moved[~stale].any()


@pytest.mark.parametrize("proximal", ["stale", "recompute"])
def test_one_optimizer_step_needs_no_pass_before_it_and_gives_the_same_bits(proximal):
    """The first evaluation is by the weights that the step starts from; a minibatch more, or a pass, is another matter."""

    def trained(at_first_visit: bool, **options):
        made = {"window": CHUNKS, "minibatch_size": None, "passes": 1, "proximal": proximal, **options}
        actor = trainer(algo_options=made)
        actor.algorithm.spec = dataclasses.replace(actor.algorithm.spec, proximal_at_first_visit=at_first_visit)
        seen, kept = watched(actor)
        actor.version = 1
        tickets = feed(actor, version=0)
        with torch.no_grad():
            for parameter in actor.model.parameters():
                parameter.mul_(1.3)
        metrics = actor.train(tickets, 1).metrics
        return weights(actor), metrics, seen, kept[0]

    plain, metrics, seen, kept = trained(False)
    samples = int(kept.exists.sum())
    assert seen == [samples, samples]
    assert metrics["train/behaviour_weight"] != 1.0
    quick, its_metrics, its_seen, _ = trained(True)
    assert its_seen == [samples]
    assert its_metrics == metrics
    assert all(torch.equal(quick[name], one) for name, one in plain.items())
    for options in ({"minibatch_size": samples - 1}, {"passes": 2}):
        assert trained(True, **options)[2][0] == samples
        assert len(trained(True, **options)[2]) == 3


def test_a_mask_by_proximal_weights_is_known_before_the_first_evaluation():
    options = {"window": CHUNKS, "minibatch_size": None, "passes": 1, "behaviour_weight_max": 1.1}
    actor = trainer(algo_options={**options, "behaviour_weight_over": "mask"})
    assert not actor.algorithm.spec.proximal_at_first_visit
    assert trainer(algo_options=options).algorithm.spec.proximal_at_first_visit


def test_the_value_head_may_learn_faster():
    actor = trainer(algo_options={"window": CHUNKS, "value_learning_rate_scale": 3.0})
    assert [group["lr"] for group in actor._optimizer.adam.param_groups] == [1e-2, pytest.approx(3e-2)]


def test_the_learning_rate_follows_its_schedule():
    model = trainer().model

    def factors(**options) -> list[float]:
        made = Optimizer(model, TrainConfig(**options))
        return [round(made.factor(step, 5), 4) for step in range(5)]

    assert factors(final_learning_rate=0.0) == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert factors(final_learning_rate=0.0, schedule="cosine") == [1.0, 0.8536, 0.5, 0.1464, 0.0]
    assert factors(warmup_steps=2) == [0.5, 1.0, 1.0, 1.0, 1.0]
    assert factors() == [1.0] * 5


def test_the_running_average_lags_and_is_published_on_request():
    actor = trainer(ema_decay=0.5, algo_options={"window": CHUNKS, "minibatch_size": None, "passes": 1})
    start = weights(actor)
    actor.train(feed(actor), 0)
    _, average = actor.publish("ema")
    _, latest = actor.publish()
    for name, one in start.items():
        torch.testing.assert_close(average[name], (one + latest[name]) / 2)
    with pytest.raises(ConfigError, match=r"train\.ema_decay is not set"):
        trainer().publish("ema")


def test_bf16_products_keep_log_probs_in_fp32():
    actor = trainer(precision="bf16")
    metrics = actor.train(feed(actor), 0).metrics
    assert math.isfinite(metrics["train/policy_loss"])
    assert all(one.dtype == torch.float32 for one in actor.model.parameters())


RANK = """
import sys, traceback, torch, torch.distributed as dist
sys.path.insert(0, {folder!r})
import test_trainer as t
rank = int(sys.argv[1])
for name, case in t.CASES.items():
    store = {place!r} + "/" + name
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    try:
        torch.save(case(rank), store + "." + str(rank))
    except Exception:
        traceback.print_exc()
    dist.destroy_process_group()
"""
OPTIONS = {
    "ddp": {"offload": "parameters"},
    # 12 and 6 samples in parts of 5: one rank makes a pass more, in each of three kinds
    "fsdp": {
        "shard": "fsdp",
        "micro_batch": 5,
        "ema_decay": 0.5,
        "offload": "all",
        "algo_options": {"window": 3, "minibatch_size": None, "passes": 2, "proximal": "recompute", "kl_weight": 0.1},
    },
}
GROUPS = {"grpo": ({"group_size": 2}, 2), "ppo": ({"window": CHUNKS, "minibatch_size": None, "passes": 2}, 1)}


def uneven(rank: int) -> list[int]:
    return [0, 1, 2, 3] if rank == 0 else [4, 5]


def of_rank(actor: TrainerActor, receipt) -> dict:
    return {"weights": published(actor), "metrics": receipt.metrics}


def shared(rank: int, **options) -> dict:
    actor = trainer(**options)
    return of_rank(actor, actor.train(feed(actor, uneven(rank)), 0))


def without_units(rank: int, algo: str) -> dict:
    options, groups_of = GROUPS[algo]
    actor = trainer(algo, algo_options=options, shard="fsdp", micro_batch=4)
    return of_rank(actor, actor.train(feed(actor, groups_of=groups_of)[: 6 * rank], 0, 6))


def warmed_up(rows) -> dict:
    """Train the value head alone in one step, everything in the next."""
    options = {"window": CHUNKS, "minibatch_size": None, "passes": 1, "critic_warmup": 1}
    actor = trainer(weight_decay=0.1, algo_options=options)
    first = actor.train(feed(actor, rows), 0)
    return {"first": of_rank(actor, first)["weights"], **of_rank(actor, actor.train(feed(actor, rows), 1))}


def other_things(rank: int) -> dict:
    actor = trainer()
    return of_rank(actor, actor.train(feed(actor, uneven(rank), version=-rank, finite=False), 0))


CASES = {
    "ddp": lambda rank: shared(rank, **OPTIONS["ddp"]),
    "fsdp": lambda rank: shared(rank, **OPTIONS["fsdp"]),
    "ddp, nothing away": lambda rank: shared(rank, **{**OPTIONS["ddp"], "offload": "none"}),
    "fsdp, nothing away": lambda rank: shared(rank, **{**OPTIONS["fsdp"], "offload": "none"}),
    "grpo": lambda rank: without_units(rank, "grpo"),
    "ppo": lambda rank: without_units(rank, "ppo"),
    "warm-up": lambda rank: warmed_up(uneven(rank)),
    "other things": other_things,
}
"""What two ranks do one after the other, in two processes for all of it: starting them takes longer than what they do."""


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> Callable[[str], list[dict]]:
    """Return what both ranks have to say of a case."""
    place, words = tmp_path_factory.mktemp("ranks"), tmp_path_factory.mktemp("words") / "said"
    code = RANK.format(folder=str(Path(__file__).parent), place=str(place))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with words.open("w") as said:
        ranks = [
            subprocess.Popen([sys.executable, "-c", code, str(rank)], env=environment, stderr=said) for rank in (0, 1)
        ]
        assert [process.wait(250) for process in ranks] == [0, 0]

    def found(name: str) -> list[dict]:
        files = [place / f"{name}.{rank}" for rank in (0, 1)]
        assert all(file.exists() for file in files), words.read_text()
        return [torch.load(file, weights_only=True) for file in files]

    return found


@pytest.mark.parametrize("how", list(OPTIONS))
def test_two_ranks_are_one(both, how: str):
    """Weights and metrics to 1e-6 relative, with unequal numbers of samples."""
    alone = trainer(**OPTIONS[how])
    metrics = alone.train(feed(alone), 0).metrics
    for one in both(how):
        near(published(alone), one["weights"])
        assert sorted(one["metrics"]) == sorted(metrics)
        for name, wanted in metrics.items():
            assert one["metrics"][name] == pytest.approx(wanted, rel=1e-5, abs=1e-7), name


def test_what_no_rank_trains_stays_as_it_is(both):
    """The policy while its critic warms up: no decay, and no count of steps, on two ranks as on one."""
    alone, before = warmed_up(range(ROWS)), published(trainer())
    still = [name for name, one in alone["first"].items() if torch.equal(one, before[name])]
    assert 0 < len(still) < len(before)
    for one in both("warm-up"):
        near({name: before[name] for name in still}, one["first"], 0.0)
        near(alone["weights"], one["weights"])


@pytest.mark.parametrize("how", list(OPTIONS))
def test_what_waits_in_host_memory_changes_no_bit_of_two_ranks(both, how: str):
    for away, here in zip(both(how), both(f"{how}, nothing away"), strict=True):
        near(away["weights"], here["weights"], 0.0)
        assert away["metrics"] == here["metrics"]


@pytest.mark.parametrize("algo", list(GROUPS))
def test_a_rank_without_units_takes_part(both, algo: str):
    """All survivors of a step may belong to one rank; parameters are cut among both."""
    options, groups_of = GROUPS[algo]
    alone = trainer(algo, algo_options=options)
    alone.train(feed(alone, groups_of=groups_of), 0)
    for one in both(algo):
        near(published(alone), one["weights"])


def test_ranks_that_saw_other_things_still_add_up(both):
    """One rank's chunks are all stale, so it has no generator gap to tell; a skipped step is one, not one a rank."""
    for one in both("other things"):
        metrics = one["metrics"]
        assert metrics["train/bad_steps"] == 2
        assert metrics["train/staleness_max"] == 1
        assert metrics["train/samples"] == ROWS * CHUNKS
        assert metrics["train/generator_gap"] < 1e-6


@pytest.mark.parametrize("what", ["optimizer", "parameters", "all"])
def test_what_waits_in_host_memory_changes_no_bit(tmp_path: Path, what: str):
    """Weights, moments, running average, files and what resumes from them; in between their own memory is free."""
    options = {"window": CHUNKS, "minibatch_size": None, "passes": 2, "kl_weight": 0.1}  # with a frozen reference
    made = {"ema_decay": 0.5, "offload": what, "algo_options": options}
    away, here = trainer(**made), trainer(**{**made, "offload": "none"})
    for step in (0, 1):
        for one in (away, here):
            one.train(feed(one, version=step), step)
    moments = [one for state in away._optimizer.adam.state.values() for one in state.values() if one.dim()]
    parameters = [*away.model.parameters(), *away._reference.parameters()]
    assert room(moments) == ({0} if what != "parameters" else room(moments) - {0})
    assert room(parameters) == ({0} if what != "optimizer" else room(parameters) - {0})
    assert all(one.grad is None for one in away.model.parameters())
    near(published(away), published(here), 0.0)
    numbers = away.save(tmp_path)
    assert room(parameters) == ({0} if what != "optimizer" else room(parameters) - {0})
    again = trainer(**made)
    again.load(tmp_path, numbers)
    for one in (again, here):
        one.train(feed(one, version=2), 2)
    near(published(again), published(here), 0.0)


def room(tensors: list[torch.Tensor]) -> set[int]:
    """Return the bytes of what tensors lie in."""
    return {one.untyped_storage().nbytes() for one in tensors}


class Mixed(torch.nn.Module):
    """Two frozen matrices in one storage, and a trained one."""

    def __init__(self):
        super().__init__()
        both = torch.arange(12.0).view(4, 3)
        self.frozen = torch.nn.ParameterList(torch.nn.Parameter(one, requires_grad=False) for one in both.split(2))
        self.trained = torch.nn.Parameter(torch.ones(5))


@pytest.mark.parametrize("shared", [False, True])
def test_weights_that_others_share_stay_and_each_is_copied_once(shared: bool, monkeypatch):
    model, copies = Mixed(), []
    copied = offload._copied
    monkeypatch.setattr(offload, "_copied", lambda storage: copies.append(storage.nbytes()) or copied(storage))
    weights = offload.OnDemand(model, True, shared)
    for write in (True, False, True):
        with weights.here(write), weights.here():
            assert model.frozen[1].tolist() == [[6, 7, 8], [9, 10, 11]]
            model.trained.data.add_(float(write))
        assert room([model.trained]) == {0}
        assert room(list(model.frozen)) == ({48} if shared else {0})
    with weights.here():
        assert acting_copy(model).trained.tolist() == [3.0] * 5
    assert copies == [20, 20] if shared else [48, 20, 20]


def test_a_copy_that_acts_is_made_of_weights_that_are_there():
    """Evaluations beside training start one while the trainer's weights are away."""
    four = {"sim": "fake", "model": "fake", "algo": "ppo", "scheduler": "sync"}
    config = configs.read({**four, "train": {"offload": "all"}, "run": {"device": "cpu"}})
    learner = Learner(config, check(config))
    actor = learner.trainer()
    assert room(list(actor.model.parameters())) == {0}
    acting = learner.generator().model
    assert room(list(actor.model.parameters())) == {0}
    near(dict(acting.named_parameters()), published(actor), 0.0)


def test_an_optimizer_state_in_one_file_is_still_read(tmp_path: Path):
    """Checkpoints from before it was one file a rank."""
    actor = trainer()
    actor.train(feed(actor), 0)
    numbers = actor.save(tmp_path)
    (tmp_path / "optimizer" / "model.safetensors").rename(tmp_path / "optimizer.safetensors")
    (tmp_path / "optimizer").rmdir()
    again = trainer()
    again.load(tmp_path, numbers)
    for one in (actor, again):
        one.train(feed(one, version=1), 1)
    near(weights(actor), weights(again), 0.0)


def test_generator_and_trainer_are_compared_at_equal_weights(caplog):
    actor = trainer()
    assert actor.train(feed(actor), 0).metrics["train/generator_gap"] < 1e-6
    tickets = feed(actor, version=1)
    with torch.no_grad():
        actor.model.policy.mul_(2.0)  # as if the generator computed something else
    assert actor.train(tickets, 1).metrics["train/generator_gap"] > 0.1
    assert "generator and trainer differ" in caplog.text
