"""The smallest model that meets the contract: linear in (place, goal, 1)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tensordict import TensorDict
from torch import Tensor, nn

from rlvla.batch import Action, Evaluation, ObservationBatch
from rlvla.errors import CheckpointError
from rlvla.model import Model
from rlvla.noise import Noise
from rlvla.specs import AlgorithmSpec, SimulatorSpec
from rlvla.testing.fakes import FakeModelConfig, describe_model


class FakeModel(Model):
    """Action tokens and values as linear functions of the state."""

    def __init__(
        self,
        config: FakeModelConfig,
        simulator: SimulatorSpec,
        algorithm: AlgorithmSpec | None,
        *,
        generator: torch.Generator,
    ) -> None:
        super().__init__(config, simulator, algorithm, generator=generator)
        self.spec = describe_model(config)
        self.shape = (config.horizon, simulator.action_dim, config.bins)
        wants_values = algorithm is not None and algorithm.values
        values = {"chunk": 1, "action": config.horizon}[algorithm.credit_level] if algorithm and wants_values else 0
        inputs = simulator.state_dim + 1
        outputs = config.horizon * simulator.action_dim * config.bins
        self.policy = nn.Parameter(config.scale * torch.randn(inputs, outputs, generator=generator))
        self.critic = nn.Parameter(torch.randn(inputs, values, generator=generator)) if values else None
        centres = (torch.arange(config.bins) + 0.5) / config.bins
        low = torch.tensor([part.low for part in simulator.action for _ in range(part.size)])
        high = torch.tensor([part.high for part in simulator.action for _ in range(part.size)])
        self.register_buffer("centres_AB", low[:, None] + (high - low)[:, None] * centres, persistent=False)

    def preprocess(self, observation: ObservationBatch) -> TensorDict:
        state = observation.state.to(self.policy.device)
        return TensorDict({"x": torch.cat([state, torch.ones_like(state[:, :1])], 1)}, batch_size=[len(state)])

    def _logp(self, inputs: TensorDict) -> Tensor:
        return F.log_softmax((inputs["x"] @ self.policy).view(-1, *self.shape), -1)

    def _value(self, inputs: TensorDict) -> Tensor:
        x: Tensor = inputs["x"]
        return x @ self.critic if self.critic is not None else x.new_zeros(len(x), 0)

    def act(self, inputs: TensorDict, noise: Noise, greedy: bool = False) -> Action:
        logp_NHAB = self._logp(inputs)
        if greedy:
            token_NHA = logp_NHAB.argmax(-1)
        else:
            below = logp_NHAB.exp().cumsum(-1) < noise.uniform(*self.shape[:2])[..., None]
            token_NHA = below.sum(-1).clamp_max(self.shape[2] - 1)
        chosen = token_NHA[..., None]
        return Action(
            actions=self.centres_AB.expand_as(logp_NHAB).gather(-1, chosen).squeeze(-1),  # type: ignore[operator]
            logp=logp_NHAB.gather(-1, chosen).squeeze(-1),
            value=self._value(inputs),
            replay=TensorDict({"tokens": token_NHA}, batch_size=[len(token_NHA)]),
            batch_size=[len(token_NHA)],
        )

    def evaluate(self, inputs: TensorDict, replay: TensorDict) -> Evaluation:
        logp_NHAB = self._logp(inputs)
        return Evaluation(
            logp=logp_NHAB.gather(-1, replay["tokens"][..., None]).squeeze(-1),
            entropy=-(logp_NHAB.exp() * logp_NHAB).sum(-1),
            value=self._value(inputs),
            batch_size=[len(logp_NHAB)],
        )

    def replay_of(self, inputs: TensorDict, actions: Tensor) -> TensorDict:
        distance_NHAB = (actions.to(self.policy.device)[..., None] - self.centres_AB).abs()  # type: ignore[operator]
        return TensorDict({"tokens": distance_NHAB.argmin(-1)}, batch_size=[len(actions)])

    def value(self, inputs: TensorDict) -> Tensor:
        return self._value(inputs)

    def value_head(self) -> Iterable[nn.Parameter]:
        return () if self.critic is None else (self.critic,)

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        save_file({name: one.contiguous() for name, one in self.state_dict().items()}, directory / "model.safetensors")
        (directory / "config.json").write_text(json.dumps({"model_type": "rlvla-fake"}))

    def load(self, directory: Path) -> None:
        header = directory / "config.json"
        if not header.is_file() or json.loads(header.read_text()).get("model_type") != "rlvla-fake":
            raise CheckpointError(f"{directory} holds no fake model")
        weights = load_file(directory / "model.safetensors")
        mine = {name: tuple(one.shape) for name, one in self.state_dict().items()}
        theirs = {name: tuple(one.shape) for name, one in weights.items()}
        if mine != theirs:
            raise CheckpointError(f"{directory}: got {theirs}, wanted {mine}")
        self.load_state_dict(weights)
