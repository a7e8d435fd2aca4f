"""The network: patches, instruction-queried attention, an MLP, and action tokens whose logits are sums of cosines.

Letters: N rows, W words, M cameras, P patches of all cameras, C features, Q queries, H actions in a chunk, A action dimensions (one token
each), B bins, V values.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

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
from rlvla_model_tiny import TinyConfig, describe

log = logging.getLogger(__name__)
_WORDS = 512
"""Buckets that words are hashed into; 0 is no word."""
_MAX_WORDS = 32


class TinyModel(Model):
    """See the module's docstring."""

    def __init__(
        self,
        config: TinyConfig,
        simulator: SimulatorSpec,
        algorithm: AlgorithmSpec | None,
        *,
        generator: torch.Generator,
    ) -> None:
        super().__init__(config, simulator, algorithm, generator=generator)
        self.config = config
        self.spec = describe(config)
        roles = {camera.role: camera.name for camera in simulator.cameras}
        self._cameras = [roles[role] for role in config.cameras]
        horizon, actions, width = config.horizon, simulator.action_dim, config.width
        values = (
            0 if algorithm is None or not algorithm.values else {"chunk": 1, "action": horizon}[algorithm.credit_level]
        )
        side = config.image_size // config.patch
        places = config.queries * len(self._cameras)
        self.words = nn.Embedding(_WORDS, width)
        if self._cameras:
            self.patches = nn.Linear(3 * config.patch**2, width)
            self.mixed = nn.Linear(width, width)
            self.key = nn.Linear(width, width)
            self.query = nn.Linear(width, places * width)
        self.trunk = nn.Sequential(
            nn.Linear(places * (2 + width) + simulator.state_dim + width, config.hidden),
            nn.Tanh(),
            nn.Linear(config.hidden, config.hidden),
            nn.Tanh(),
        )
        self.tokens = nn.Linear(config.hidden, horizon * actions * config.basis)
        self.values = nn.Linear(config.hidden, values) if values else None
        line = torch.linspace(-1, 1, side)
        self.register_buffer("_place_P2", torch.cartesian_prod(line, line).flip(1), persistent=False)  # x, y of a patch
        centres_B = (torch.arange(config.bins) + 0.5) / config.bins
        waves = torch.arange(1, config.basis + 1)[:, None] * centres_B
        self.register_buffer("_basis_KB", torch.cos(torch.pi * waves), persistent=False)
        low = torch.tensor([part.low for part in simulator.action for _ in range(part.size)])
        high = torch.tensor([part.high for part in simulator.action for _ in range(part.size)])
        self.register_buffer("_bin_AB", low[:, None] + (high - low)[:, None] * centres_B, persistent=False)
        self._shape = (horizon, actions)
        self._codes: dict[str, list[int]] = {}
        self._initialise(generator)
        if config.path is not None:
            self._load(Path(config.path).expanduser(), fresh_values=True)

    def _initialise(self, generator: torch.Generator) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.kaiming_uniform_(module.weight, a=5**0.5, generator=generator)
                bound = module.in_features**-0.5
                nn.init.uniform_(module.bias, -bound, bound, generator=generator)
        nn.init.normal_(self.words.weight, generator=generator)
        nn.init.normal_(self.tokens.weight, std=0.01, generator=generator)  # nearly uniform at first
        nn.init.zeros_(self.tokens.bias)
        if self.values is not None:
            nn.init.zeros_(self.values.weight)
            nn.init.zeros_(self.values.bias)

    def preprocess(self, observation: ObservationBatch) -> TensorDict:
        device = self.tokens.weight.device
        words = [self._hash(text) for text in observation.instructions()]
        width = max(map(len, words))
        inputs = TensorDict(
            {
                "words": torch.tensor([codes + [0] * (width - len(codes)) for codes in words], device=device),
                "state": observation.state.to(device),
            },
            batch_size=[len(words)],
        )
        if self._cameras:
            inputs["patches"] = torch.stack([self._cut(observation.images[one].to(device)) for one in self._cameras], 1)
        return inputs

    def _cut(self, picture: Tensor) -> Tensor:
        """Return float32 ``[N, P, 3 * patch^2]`` in [-1, 1] of uint8 ``[N, height, width, 3]``."""
        size, patch = self.config.image_size, self.config.patch
        if picture.shape[1:3] != (size, size):
            scaled = F.interpolate(picture.permute(0, 3, 1, 2).float(), size=(size, size), mode="area")
            picture = scaled.permute(0, 2, 3, 1)
        side = size // patch
        cut = (
            picture.reshape(-1, side, patch, side, patch, 3).transpose(2, 3).reshape(-1, side * side, 3 * patch * patch)
        )
        return cut.float().mul_(2 / 255).sub_(1)

    def _hash(self, text: str) -> list[int]:
        """Return a bucket for each word: the same text in any process, any text at all."""
        if text not in self._codes:
            words = text.lower().split()[:_MAX_WORDS] or [text]
            self._codes[text] = [1 + zlib.crc32(word.encode()) % (_WORDS - 1) for word in words]
        return self._codes[text]

    def _features(self, inputs: TensorDict) -> Tensor:
        """Return ``[N, hidden]``."""
        words = inputs["words"]
        there_NW1 = (words > 0)[..., None]
        text_NC = (self.words(words) * there_NW1).sum(1) / there_NW1.sum(1).sqrt()
        if not self._cameras:
            return self.trunk(torch.cat([inputs["state"], text_NC], 1))
        patches_NMPX = inputs["patches"]
        rows, cameras = patches_NMPX.shape[:2]
        width, queries = self.config.width, self.config.queries
        seen_NMPC = F.relu(self.mixed(F.relu(self.patches(patches_NMPX))))
        query_NMQC = self.query(text_NC).view(rows, cameras, queries, width)
        weight_NMQP = torch.softmax(query_NMQC @ self.key(seen_NMPC).transpose(2, 3) * (4.0 / width**0.5), -1)
        where_NMQ2 = weight_NMQP @ self._place_P2 * 2
        what_NMQC = weight_NMQP @ seen_NMPC
        joined = torch.cat([torch.cat([where_NMQ2, what_NMQC], -1).flatten(1), inputs["state"], text_NC], 1)
        return self.trunk(joined)

    def _log_probs(self, features: Tensor) -> Tensor:
        """Return log-probs over the bins, ``[N, H, A, B]``."""
        logits = self.tokens(features).view(-1, *self._shape, self.config.basis) @ self._basis_KB
        return F.log_softmax(logits.float() / self.config.temperature, -1)

    def _value(self, features: Tensor) -> Tensor:
        return self.values(features).float() if self.values is not None else features.new_zeros(len(features), 0)

    def act(self, inputs: TensorDict, noise: Noise, greedy: bool = False) -> Action:
        features = self._features(inputs)
        logp_NHAB = self._log_probs(features)
        if greedy:
            token_NHA = logp_NHAB.argmax(-1)
            actions = (logp_NHAB.exp() * self._bin_AB).sum(-1)  # the mean moves in finer steps than the likeliest bin
        else:
            below = logp_NHAB.exp().cumsum(-1) < noise.uniform(*self._shape)[..., None]
            token_NHA = below.sum(-1).clamp_max(self.config.bins - 1)
            actions = self._bin_AB.expand_as(logp_NHAB).gather(-1, token_NHA[..., None]).squeeze(-1)
        return Action(
            actions=actions,
            logp=logp_NHAB.gather(-1, token_NHA[..., None]).squeeze(-1),
            value=self._value(features),
            replay=TensorDict({"tokens": token_NHA}, batch_size=[len(token_NHA)]),
            batch_size=[len(token_NHA)],
        )

    def evaluate(self, inputs: TensorDict, replay: TensorDict) -> Evaluation:
        features = self._features(inputs)
        logp_NHAB = self._log_probs(features)
        return Evaluation(
            logp=logp_NHAB.gather(-1, replay["tokens"][..., None]).squeeze(-1),
            entropy=-(logp_NHAB.exp() * logp_NHAB).sum(-1),
            value=self._value(features),
            batch_size=[len(features)],
        )

    def replay_of(self, inputs: TensorDict, actions: Tensor) -> TensorDict:
        distance_NHAB = (actions.to(self._bin_AB.device)[..., None] - self._bin_AB).abs()
        return TensorDict({"tokens": distance_NHAB.argmin(-1)}, batch_size=[len(actions)])

    def value(self, inputs: TensorDict) -> Tensor:
        return self._value(self._features(inputs))

    def value_head(self) -> Iterable[nn.Parameter]:
        return self.values.parameters() if self.values is not None else ()

    def wrap_units(self) -> Iterable[nn.Module]:
        return (self.trunk,)

    def count_tokens(self, observation: ObservationBatch) -> Tensor:
        cut = (self.config.image_size // self.config.patch) ** 2 * len(self._cameras)
        return torch.tensor([cut + len(self._hash(text)) for text in observation.instructions()])

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: tensor.contiguous() for name, tensor in self.state_dict().items()}, directory / "model.safetensors"
        )
        (directory / "config.json").write_text(
            json.dumps({"model_type": "rlvla-tiny", "shapes": self._shapes()}, indent=1)
        )

    def _shapes(self) -> dict[str, list[int]]:
        return {name: list(tensor.shape) for name, tensor in self.state_dict().items()}

    def load(self, directory: Path) -> None:
        self._load(directory, fresh_values=False)

    def _load(self, directory: Path, fresh_values: bool) -> None:
        """Read saved weights; ``fresh_values``: a value head that is not there, or of another width, stays as it is."""
        if not (directory / "config.json").is_file():
            raise CheckpointError(
                f"{directory} holds no config.json; wanted a folder that a tiny model was saved in (model.path)"
            )
        header: dict[str, Any] = json.loads((directory / "config.json").read_text())
        if header.get("model_type") != "rlvla-tiny":
            raise CheckpointError(f"{directory} holds a {header.get('model_type')!r} model, wanted 'rlvla-tiny'")
        mine, theirs, weights = self._shapes(), header["shapes"], load_file(directory / "model.safetensors")
        fresh = {name for name in {*mine, *theirs} if name.startswith("values.") and mine.get(name) != theirs.get(name)}
        if fresh and fresh_values:
            if self.values is not None:
                log.warning("%s has no value head of this width: it starts fresh", directory)
            mine, theirs, weights = (
                {name: one for name, one in some.items() if name not in fresh} for some in (mine, theirs, weights)
            )
        if mine != theirs:
            differing = [
                f"{name}: {theirs.get(name, 'missing')} there, {mine.get(name, 'unexpected')} here"
                for name in sorted({*mine, *theirs})
                if mine.get(name) != theirs.get(name)
            ]
            raise CheckpointError(
                f"{directory} was saved with other settings, simulator or value head: {'; '.join(differing)}"
            )
        self.load_state_dict({**self.state_dict(), **weights})
