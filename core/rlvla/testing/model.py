"""Conformance of models: what generator and trainer rely on.

Letters: N rows, H actions in a chunk, A action dimensions, K log-prob entries an action, V values a chunk.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from tensordict import TensorDict

from rlvla import ranks, sharding
from rlvla.batch import Action, ObservationBatch
from rlvla.errors import CheckpointError
from rlvla.model import Model
from rlvla.noise import Noise
from rlvla.offload import OnDemand
from rlvla.simulator import Observation
from rlvla.specs import ActionPart, AlgorithmSpec, Camera, Role, SimulatorSpec, StatePart, TaskSpec
from rlvla.testing.suite import Conformance, check, skip
from rlvla.weights import acting_copy, copy_into, snapshot


class ModelConformance(Conformance):
    """Checks of a model plugin, on a simulator spec made to its needs and random pictures."""

    kind = "model"
    rows: ClassVar[int] = 5
    tolerance: ClassVar[float] = 1e-5
    """Largest difference of log-probs and values between ``act`` and ``evaluate``, and between batches (fp32)."""
    action: ClassVar[tuple[ActionPart, ...]] = (
        ActionPart("move", 2, low=-2.0, high=1.0),
        ActionPart("grip", 1, "gripper"),
    )
    state: ClassVar[tuple[StatePart, ...]] = (StatePart("place", 4, "m"),)
    picture: ClassVar[int] = 64
    texts: ClassVar[tuple[str, ...]] = (
        "push the red block",
        "open the drawer and put the cup in it",
        "Lift Ünïcode 🤖 'quoted'",
    )

    # --- how a model is run ---

    def simulator_spec(self) -> SimulatorSpec:
        """Return a simulator that offers what the model asks for."""
        roles: tuple[Role, ...] = self.plugin().describe(self.made()).cameras or ("primary",)
        return SimulatorSpec(
            cameras=tuple(Camera(f"camera_{role}", self.picture, self.picture, role) for role in roles),
            state=self.state,
            action=self.action,
            control_hz=10.0,
            max_episode_steps=20,
            tasks=(TaskSpec("task", self.texts[0], wordings=self.texts),),
            max_instruction_bytes=64,
        )

    def algorithm_spec(self, values: str | None = "chunk") -> AlgorithmSpec:
        """Return an algorithm that needs a value head at a level, or none."""
        level: Any = values or "chunk"
        return AlgorithmSpec("window", credit_level=level, ratio_level="action", values=values is not None)

    def model(self, values: str | None = "chunk", seed: int = 0, config: Any | None = None) -> Model:
        """Return a fresh model."""
        generator = torch.Generator().manual_seed(seed)
        made: Model = self.plugin().load()(
            config if config is not None else self.made(),
            self.simulator_spec(),
            self.algorithm_spec(values),
            generator=generator,
        )
        return self.roughened(made)

    def roughened(self, model: Model) -> Model:
        """Move every trainable weight a little, so that heads that start at zero take part."""
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.trainable().values():
                noise = torch.randn(parameter.shape, generator=generator).to(parameter)
                parameter.add_(0.02 * noise)
        return model

    def observation(self, rows: int | None = None, seed: int = 0) -> ObservationBatch:
        """Return random pictures, states and a few instructions."""
        rows, spec = rows or self.rows, self.simulator_spec()
        generator = torch.Generator().manual_seed(seed)
        images = {
            one.name: torch.randint(0, 256, (rows, one.height, one.width, 3), generator=generator).to(torch.uint8)
            for one in spec.cameras
        }
        observation = Observation(
            {name: one.numpy() for name, one in images.items()},
            torch.randn(rows, spec.state_dim, generator=generator).numpy(),
            [self.texts[row % len(self.texts)] for row in range(rows)],
        )
        return ObservationBatch.of(observation, spec.max_instruction_bytes)

    def noise(self, rows: int | None = None, first: int = 0) -> Noise:
        return Noise(torch.arange(first, first + (rows or self.rows)))

    def acted(self, model: Model, observation: ObservationBatch, noise: Noise, greedy: bool = False) -> Action:
        with torch.no_grad():
            return model.act(model.preprocess(observation), noise, greedy)

    def exercise(self, config: Any) -> None:
        """Act, evaluate, save and load once."""
        for values in self.value_levels():
            model = self.model(values, config=config)
            observation = self.observation()
            action = self.acted(model, observation, self.noise())
            self.acted(model, observation, self.noise(), greedy=True)
            model.evaluate(model.preprocess(observation), action.replay)
        with tempfile.TemporaryDirectory() as folder:
            model.save(Path(folder) / "model")
            options = {field.name for field in dataclasses.fields(type(config))}
            if "path" in options:
                changed = dataclasses.replace(config, path=str(Path(folder) / "model"))
                self.plugin().load()(
                    changed, self.simulator_spec(), self.algorithm_spec(values), generator=torch.Generator()
                )

    def value_levels(self) -> tuple[str | None, ...]:
        return (None, *self.plugin().describe(self.made()).value_levels)

    # --- checks ---

    def test_shapes(self) -> None:
        """Actions are [N, H, A], log-probs [N, H, K], values [N, V] with V = 0, 1 or H as the algorithm needs; for one row too."""
        spec, sim = self.plugin().describe(self.made()), self.simulator_spec()
        horizon, tokens = spec.horizon, spec.tokens_per_action or sim.action_dim
        for values in self.value_levels():
            model = self.model(values)
            width = {None: 0, "chunk": 1, "action": horizon}[values]
            for rows in (1, self.rows):
                action = self.acted(model, self.observation(rows), self.noise(rows))
                wanted = {
                    "actions": (rows, horizon, sim.action_dim),
                    "logp": (rows, horizon, tokens),
                    "value": (rows, width),
                }
                for name, shape in wanted.items():
                    got = tuple(getattr(action, name).shape)
                    assert got == shape, f"act: {name} has shape {got}, wanted {shape} (values: {values})"
                assert action.replay.batch_size[0] == rows, "replay must have one entry a row"

    def test_actions_are_within_the_spec(self) -> None:
        """Actions are in the simulator's units and bounds, sampled and greedy."""
        low = torch.tensor([part.low for part in self.action for _ in range(part.size)])
        high = torch.tensor([part.high for part in self.action for _ in range(part.size)])
        for greedy in (False, True):
            actions = self.acted(self.model(), self.observation(), self.noise(), greedy).actions
            assert torch.isfinite(actions).all(), "an action is not finite"
            assert ((actions >= low - 1e-4) & (actions <= high + 1e-4)).all(), (
                "an action lies outside the spec's bounds"
            )

    def test_evaluate_repeats_act(self) -> None:
        """At equal weights ``evaluate`` gives the log-probs and values of ``act``: the ratio is 1 on the first pass."""
        for values in self.value_levels():
            model, observation = self.model(values), self.observation()
            action = self.acted(model, observation, self.noise())
            with torch.no_grad():
                evaluation = model.evaluate(model.preprocess(observation), action.replay)
            near(evaluation.logp, action.logp, self.tolerance, "log-probs of evaluate differ from those of act")
            near(evaluation.value, action.value, self.tolerance, "values of evaluate differ from those of act")
            if values is not None:
                with torch.no_grad():
                    near(
                        model.value(model.preprocess(observation)),
                        action.value,
                        self.tolerance,
                        "value() differs from act",
                    )

    def test_own_actions_can_be_imitated(self) -> None:
        """``replay_of`` of a chunk that the model chose gives the log-probs that it was chosen with."""
        model, observation = self.model(), self.observation()
        inputs, action = model.preprocess(observation), self.acted(model, observation, self.noise())
        if not model.spec.imitation:
            try:
                model.replay_of(inputs, action.actions)
            except TypeError:
                return
            raise AssertionError("replay_of() answers though the spec says imitation=False")
        with torch.no_grad():
            evaluation = model.evaluate(inputs, model.replay_of(inputs, action.actions))
        near(evaluation.logp, action.logp, self.tolerance, "the model's own actions come back as other ones")
        outside = 10 * torch.ones_like(action.actions)
        with torch.no_grad():
            logp = model.evaluate(inputs, model.replay_of(inputs, outside)).logp
        assert torch.isfinite(logp).all(), "actions out of bounds have log-probs that are not finite: take the nearest"

    def test_log_probs_are_log_probs(self) -> None:
        """Log-probs are finite fp32, and entropies are finite."""
        model, observation = self.model(), self.observation()
        action = self.acted(model, observation, self.noise())
        evaluation = model.evaluate(model.preprocess(observation), action.replay)
        for name, tensor in (("logp", action.logp), ("logp", evaluation.logp), ("entropy", evaluation.entropy)):
            assert tensor.dtype == torch.float32, f"{name} is {tensor.dtype}, wanted float32 (bf16 steps by 0.06 at 8)"
            assert torch.isfinite(tensor).all(), f"{name} is not finite"

    def test_noise_decides(self) -> None:
        """The same noise gives the same chunk, other noise another one; greedy does not look at it; torch's generator is not used."""
        model, observation = self.model(), self.observation()
        state = torch.get_rng_state()
        one = self.acted(model, observation, self.noise())
        assert torch.equal(torch.get_rng_state(), state), "act draws from torch's global generator: take all from noise"
        assert torch.equal(one.actions, self.acted(model, observation, self.noise()).actions), (
            "equal noise, other actions"
        )
        other = self.acted(model, observation, self.noise(first=100))
        assert not torch.equal(one.actions, other.actions), "other noise gives the same actions: is it used?"
        greedy = [self.acted(model, observation, self.noise(first=first), greedy=True).actions for first in (0, 100)]
        assert torch.equal(*greedy), "a greedy action depends on the noise"

    def test_rows_do_not_mix(self) -> None:
        """A row's result does not depend on what else is in the batch."""
        model, observation = self.model(), self.observation()
        whole = self.acted(model, observation, self.noise())
        for row in range(self.rows):
            alone = self.acted(model, observation[row : row + 1], Noise(torch.tensor([row])))
            near(alone.logp, whole.logp[row : row + 1], self.tolerance, f"row {row} alone has other log-probs")
        changed = observation.clone()
        changed.images.apply_(lambda picture: torch.cat([picture[:1], 255 - picture[1:]]))
        near(
            self.acted(model, changed, self.noise()).logp[:1],
            whole.logp[:1],
            self.tolerance,
            "row 0 sees other rows' pictures",
        )

    def test_inputs_matter(self) -> None:
        """Other pictures, and another instruction, lead to other log-probs."""
        model, observation = self.model(), self.observation()
        replay = self.acted(model, observation, self.noise()).replay
        before = self._logp(model, observation, replay)
        if self.plugin().describe(self.made()).cameras:
            other = observation.clone()
            other.images.apply_(lambda picture: 255 - picture)
            assert not torch.equal(self._logp(model, other, replay), before), "inverted pictures change nothing"
            other = observation.clone()
            other.instruction = observation.instruction.roll(1, 0)
            assert not torch.equal(self._logp(model, other, replay), before), "other instructions change nothing"

    def _logp(self, model: Model, observation: ObservationBatch, replay: TensorDict) -> torch.Tensor:
        with torch.no_grad():
            return model.evaluate(model.preprocess(observation), replay).logp

    def test_every_trainable_parameter_gets_a_gradient(self) -> None:
        """A parameter without gradient wastes optimizer memory and breaks sharded training: freeze it."""
        for values in self.value_levels():
            model, observation = self.model(values), self.observation()
            action = self.acted(model, observation, self.noise())
            evaluation = model.evaluate(model.preprocess(observation), action.replay)
            (evaluation.logp.sum() + (evaluation.value**2).sum()).backward()
            without = [name for name, one in model.trainable().items() if one.grad is None or not one.grad.any()]
            assert not without, f"no gradient reaches {', '.join(without)}: set requires_grad=False, or use them"

    def test_wrap_units_are_whole_while_they_compute(self) -> None:
        """Where all that is trained is cut (``train.shard: fsdp``) and each unit gathered for itself, nothing else changes: log-probs,
        values, gradients. A matrix of a unit that somebody else reads is not there then."""
        whole, cut = self.model(), self.model()
        observation = self.observation()
        replay = self.acted(whole, observation, self.noise()).replay
        units = [one for one in cut.wrap_units() if any(p.requires_grad and p.dim() > 1 for p in one.parameters())]
        inside = [id(part) for one in units for part in one.modules()]
        assert len(set(inside)) == len(inside), "a wrap unit lies in another, or is named twice"
        with ranks.alone():
            sharding.shard(cut)
            count = sharding.Gathered(cut)
            for model in (whole, cut):
                evaluation = model.evaluate(model.preprocess(observation), replay)
                value = model.value(model.preprocess(observation))
                most = count.most  # a backward pass gathers the next unit, too, while one computes
                (evaluation.logp.sum() + (evaluation.value**2).sum() + value.sum()).backward()
            found, wanted = gradients(cut), gradients(whole)
        for name, one in wanted.items():
            near(found[name], one, self.tolerance * float(one.abs().max()), f"{name} gets another gradient")
        there = sum(one.numel() for one in whole.trainable().values())
        if len(units) > 1:
            assert most < there, f"{most} of {there} trained numbers were gathered at once, in spite of wrap_units()"

    def test_weights_may_wait_in_host_memory(self) -> None:
        """What went away between two training steps (``train.offload``) comes back to where it was: the same log-probs; copies too."""
        model, observation = self.model(), self.observation()
        replay = self.acted(model, observation, self.noise()).replay
        before = self._logp(model, observation, replay)
        weights = OnDemand(model, True, shared=False)
        for _ in range(2):
            with weights.here():
                again, copied = self._logp(model, observation, replay), acting_copy(model)
            near(again, before, 0.0, "log-probs are others after the weights were away")
        with weights.here():
            near(self._logp(copied, observation, replay), before, self.tolerance, "a copy made then acts otherwise")

    def test_save_and_load(self) -> None:
        """What ``save`` writes, ``load`` reads: the same bits, no pickle."""
        model = self.model()
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "model"
            model.save(folder)
            pickled = [file.name for file in folder.rglob("*") if file.suffix in (".pt", ".pth", ".pkl", ".bin")]
            assert not pickled, f"{pickled} may hold pickles: write safetensors and JSON"
            other = self.model(seed=5)
            other.load(folder)
        mine, theirs = model.state_dict(), other.state_dict()
        differing = [key for key in mine if not torch.equal(mine[key], theirs[key])]
        assert not differing, f"not the same after save and load: {', '.join(differing)}"

    def test_loading_another_model_is_refused(self) -> None:
        """A folder of another model, or without value head, is an error that names what differs."""
        with tempfile.TemporaryDirectory() as name:
            for what in ("empty", "other"):
                folder = Path(name) / what
                folder.mkdir()
                if what == "other":
                    (folder / "config.json").write_text('{"model_type": "no-such-model"}')
                try:
                    self.model().load(folder)
                except CheckpointError as error:
                    assert str(folder) in str(error) or what == "other", f"the error does not name the folder: {error}"
                else:
                    raise AssertionError(f"an {what} folder was loaded without an error")

    def test_weights_travel(self) -> None:
        """A snapshot copied into an acting copy makes it act alike; the copy does not follow by itself."""
        model, observation = self.model(), self.observation()
        acting = acting_copy(model)
        before = self.acted(acting, observation, self.noise(), greedy=True).logp
        with torch.no_grad():
            for parameter in model.trainable().values():
                parameter.mul_(1.5)
        near(
            self.acted(acting, observation, self.noise(), greedy=True).logp,
            before,
            0.0,
            "the acting copy shares trainables",
        )
        copy_into(acting, snapshot(model))
        acting.weights_changed(1)
        wanted = self.acted(model, observation, self.noise(), greedy=True).logp
        near(
            self.acted(acting, observation, self.noise(), greedy=True).logp,
            wanted,
            self.tolerance,
            "published weights act otherwise",
        )

    def test_fresh_weights_come_from_the_generator(self) -> None:
        """Equal seeds give equal weights, whatever torch's global generator did before."""
        torch.manual_seed(torch.initial_seed())
        one = self.model(seed=3).state_dict()
        torch.rand(7)
        two, other = self.model(seed=3).state_dict(), self.model(seed=4).state_dict()
        assert all(torch.equal(one[name], two[name]) for name in one), "equal generators give other weights"
        if all(torch.equal(one[name], other[name]) for name in one):
            skip("weights do not depend on the generator: they come from a checkpoint")


def gradients(model: Model) -> dict[str, torch.Tensor]:
    """Return what trainable parameters got, whole; where it is nothing, zeros."""
    named = model.trainable().items()
    return {name: sharding.whole(torch.zeros_like(one) if one.grad is None else one.grad) for name, one in named}


def near(got: torch.Tensor, wanted: torch.Tensor, tolerance: float, message: str) -> None:
    """Assert that two tensors differ by at most ``tolerance``."""
    difference = float((got - wanted).abs().max()) if got.numel() else 0.0
    assert difference <= tolerance, f"{message}: by {difference:.3g}, allowed {tolerance:.3g}"


def check_model(name: str, config: Mapping[str, Any] | None = None, **attributes: Any) -> None:
    """Run the suite on an installed model, in a notebook; see :func:`rlvla.testing.check`."""
    check(ModelConformance, name, config, **attributes)
