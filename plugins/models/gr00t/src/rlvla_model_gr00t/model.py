"""GR00T N1.5 as rlvla's model: pictures, state and instruction to a chunk of actions, with log-probs that training repeats.

Letters: N rows, M cameras, S tokens, H actions of a chunk that are executed, A action dimensions of the robot, K log-prob
entries an action, E denoising steps that they are of, V values.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from peft import LoraConfig
from tensordict import TensorDict
from torch import Tensor, nn

from rlvla import weight_files
from rlvla.batch import Action, Evaluation, ObservationBatch
from rlvla.checkpoint_model import CheckpointModel
from rlvla.errors import CheckpointError, ConfigError
from rlvla.hub import located
from rlvla.networks import adapters, fp8
from rlvla.networks.gaussian import HALF_LOG_2_PI_E
from rlvla.networks.graphs import Graphs
from rlvla.networks.initial import fresh_, randomise_
from rlvla.noise import Noise
from rlvla.specs import AlgorithmSpec, SimulatorSpec
from rlvla.weight_files import copy_weights
from rlvla.weights import own_precision
from rlvla_model_gr00t import Gr00tConfig, adaptable, denoising_of, embodiment_of, files, flow, spec_of
from rlvla_model_gr00t.embodiments import Embodiment, row_of
from rlvla_model_gr00t.features import FeatureBank
from rlvla_model_gr00t.header import Header, read_header
from rlvla_model_gr00t.network import Layout, Network, Seen
from rlvla_model_gr00t.pictures import Pictures
from rlvla_model_gr00t.prompts import FIXED_WIDTH, Prompts
from rlvla_model_gr00t.robot import ActionCodec, StateCodec

log = logging.getLogger(__name__)

_VISION = ("backbone.eagle_model.vision_model", "backbone.eagle_model.mlp1")
"""First parts of names of layers that get adapters only with ``tune_vision``."""
_NEVER = (files.HEAD, "backbone.eagle_model.vision_model.vision_model.head")
"""Of those that get none: what is trained anyway, and the pool, which nothing depends on."""
_START, _STEPS, _WHICH = 1, 2, 3
"""Streams of noise: where denoising starts, what its steps add, which step is random."""
_GREEDY_KEY = 0
"""Of the noise that a greedy chunk starts from: one typical draw. The likeliest start, zero, is unlike any in training."""


class Gr00tModel(CheckpointModel):
    """See the module's docstring."""

    config: Gr00tConfig
    header: Header

    def __init__(
        self,
        config: Gr00tConfig,
        simulator: SimulatorSpec,
        algorithm: AlgorithmSpec | None,
        *,
        generator: torch.Generator,
    ) -> None:
        super().__init__(config, simulator, algorithm, generator=generator)
        self.config = config
        assert config.path is not None, "describe() asks for a path"
        self.header = read_header(located(config.path), headers_only=False)
        self.spec = spec_of(config, self.header)
        self.embodiment = embodiment_of(config, self.header)
        texts = [text for task in simulator.tasks for text in task.instructions]
        _check_simulator(self.header, self.embodiment, config, simulator, texts)
        self.row = row_of(self.embodiment.tag, config.embodiment_table, config.embodiment_id, self.header.head)
        fixed = FIXED_WIDTH if config.padding == "fixed" else None
        width = fixed if config.pad_to is None else config.pad_to
        tokenizer = self.header.tokenizer(config.tokenizer_path)
        self.prompts = Prompts(self.header, tokenizer, len(config.cameras), config.instruction, width, texts)
        by_role = {camera.role: camera for camera in simulator.cameras}
        cameras = [by_role[role] for role in config.cameras]
        self.pictures = Pictures(cameras, self.header.siglip.image_size, config.mirrored)
        self.states = StateCodec(self.embodiment.state, self.header.head.max_state_dim, config.state == "zeros")
        self.codec = ActionCodec(config, self.embodiment, simulator.action)
        layout = _layout(config, self.header, algorithm)
        with torch.device("meta"):
            self.network = Network(self.header, layout, self.prompts.places, self.prompts.text_from)
        self._read(generator)
        self._tune(generator)
        self._level = self._level_at(0)
        self.quantised = False
        """The language model is multiplied by quantised copies of its weights."""
        self._graphs = Graphs(self._forward)
        self.bank = FeatureBank(config.keep_features)

    # ---- weights ------------------------------------------------------------------------------------------------

    def _read(self, generator: torch.Generator) -> None:
        """Take all weights: the backbone's in ``config.dtype``, the head's in fp32."""
        network, header, base = self.network, self.header, self.header.whole
        dtype = weight_files.DTYPES[self.config.dtype]
        network.dtype, network.fuse = dtype, self.config.fuse
        if base.random_seed is not None:
            draw_(network, dtype, base.random_seed)
            found: dict[str, Tensor] = {}
        else:
            found = weight_files.read_shards(base.folder, base.shards)
        self._stored = {name: one.dtype for name, one in found.items()}
        """Of weights in the public files."""
        if base.random_seed is not None:
            self._stored = dict.fromkeys(self._public(network.state_dict()), torch.bfloat16)
        if header is not base and header.shards:
            found |= weight_files.read_shards(header.folder, header.shards)
        found.pop(files.LM_HEAD, None)
        self._rows = files.OtherRows(files.embodied(found), self.row, header.head.max_num_embodiments)
        stored = {name: found.pop(name) for name in list(found) if name.startswith(files.VALUE)}
        if (header.folder / files.HEADS).is_file():
            stored |= weight_files.read_tensors(header.folder / files.HEADS)
        if found:
            wanted = self._public(network.state_dict())
            if base.random_seed is not None:
                wanted = {name: one for name, one in wanted.items() if name in found}
            weight_files.compare(header.folder, self._rows.shapes(wanted), found)
            mine = self._rows.mine(found)
            network.load_state_dict(
                {name: one.float() if name.startswith(files.HEAD) else one.to(dtype) for name, one in mine.items()},
                strict=False,
                assign=True,
            )
        self.check_base(header)
        for name in (files.VALUE, files.NOISE):
            self._read_own(name, stored, generator)

    def _read_own(self, prefix: str, stored: Mapping[str, Tensor], generator: torch.Generator) -> None:
        """Take the weights of what only RL has, or draw them."""
        module: nn.Module | None = getattr(self.network.action_head, prefix.split(".")[1], None)
        if module is None:
            return
        module.to_empty(device="cpu")
        wanted = {f"{prefix}{name}": one for name, one in module.state_dict().items()}
        there = {name: one for name, one in stored.items() if name.startswith(prefix)}
        if {name: one.shape for name, one in there.items()} == {name: one.shape for name, one in wanted.items()}:
            weight_files.compare(self.header.folder, wanted, there)
            module.load_state_dict({name.removeprefix(prefix): one.float() for name, one in there.items()})
            return
        if there and there.keys() < wanted.keys():
            lost = ", ".join(sorted(wanted.keys() - there.keys()))
            raise CheckpointError(
                f"{self.header.folder} holds a part of {prefix}*, and lacks {lost}: take it whole, or remove it"
            )
        if there:
            log.warning("%s has no %s of this width: it starts fresh", self.header.folder, prefix.split(".")[1])
        fresh_(module, generator)

    def _tune(self, generator: torch.Generator) -> None:
        """Say what is trained: the action head, and adapters in the backbone."""
        config, network = self.config, self.network
        network.requires_grad_(False)
        self._lora: LoraConfig | None = None
        if config.tune == "lora":
            adapter, layers = self.header.adapter, adaptable(self.header)
            self._lora = adapters.start(network, config, adapter, layers, generator, never=_NEVER, vision=_VISION)
        network.action_head.requires_grad_(True)

    # ---- acting and training --------------------------------------------------------------------------------------

    def preprocess(self, observation: ObservationBatch) -> TensorDict:
        device = self.codec.offset.device
        ids_NS, there_NS = self.prompts.batch(observation.instructions())
        inputs: dict[str, Any] = {
            "images": observation.images,  # stay where they are: features that were kept need none of them
            "ids": ids_NS.to(device),
            "there": there_NS.to(device),
            "state": self.states(observation.state),
        }
        return TensorDict(inputs, batch_size=[len(ids_NS)])

    def _pictures(self, inputs: TensorDict) -> Tensor:
        """Return what the vision tower sees, uint8 ``[N, M, 3, O, O]``, on the device."""
        with own_precision(self.codec.offset.device):
            return self.pictures(inputs["images"])  # type: ignore[no-any-return]

    def act(self, inputs: TensorDict, noise: Noise, greedy: bool = False) -> Action:
        device = self.codec.offset.device
        with own_precision(device):
            drawn = self._draw(len(inputs), noise, greedy)
            words = (self._pictures(inputs), inputs["ids"], inputs["there"], inputs["state"], *drawn.values())
            by_graph = self.config.graphs and inputs["ids"].is_cuda and not torch.is_grad_enabled()
            run = self._by_graph if by_graph else self._forward
            features, actions, chain, logp, value = run(*words)
            replay = {"chain": chain, "step": drawn["step"], "level": drawn["level"]}
            if self.config.keep_features and not greedy:
                replay["features"] = self.bank.put(features)
            horizon, size = self.config.horizon, self.codec.size
            return Action(
                actions=self.codec(actions[:, :horizon, :size]),
                logp=self._entries(logp),
                value=value,
                replay=TensorDict(replay, batch_size=[len(inputs)]),
                batch_size=[len(inputs)],
            )

    def _draw(self, rows: int, noise: Noise, greedy: bool) -> dict[str, Tensor]:
        """Return what is random in a call: start, noise of steps, which step, noise level, and whether it is random."""
        head, layout, device = self.header.head, self.network.layout, self.codec.offset.device
        shape = (head.action_horizon, head.action_dim)
        if greedy:
            noise = Noise(torch.full((1,), _GREEDY_KEY, device=device))
        which = noise.uniform(1, stream=_WHICH)[:, 0] * layout.random_steps
        drawn = {
            "start": noise.normal(*shape, stream=_START),
            "noise": noise.normal(layout.recorded, *shape, stream=_STEPS),
            "step": which.long().clamp_max(layout.random_steps - 1),
        }
        drawn = {name: one.expand(rows, *one.shape[1:]).contiguous() for name, one in drawn.items()}
        drawn["level"] = torch.full((rows,), self._level, device=device)
        drawn["random"] = torch.full((rows,), not greedy, device=device)
        return drawn

    def _by_graph(self, *words: Tensor) -> tuple[Tensor, ...]:
        """Return :meth:`_forward`'s outputs by a graph for the next larger batch: few shapes are captured."""
        rows = len(words[0])
        wanted = _bucket(rows)
        if wanted > rows:
            words = tuple(torch.cat([one, one[-1:].expand(wanted - rows, *one.shape[1:])]) for one in words)
        return tuple(one[:rows] for one in self._graphs(*words))

    def _forward(
        self,
        pictures: Tensor,
        ids_NS: Tensor,
        there_NS: Tensor,
        state_NS: Tensor,
        start: Tensor,
        noise: Tensor,
        step_N: Tensor,
        level_N: Tensor,
        random_N: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return features, normalised actions, the recorded chain, log-densities ``[N, E, H, A]``, and values."""
        network = self.network
        features = self._features(pictures, ids_NS, there_NS)
        seen = network.seen(features, there_NS, state_NS)
        made = network.denoise(seen, start, noise, step_N, level_N, random_N)
        return features, made.actions, made.chain, self._executed(made.logp), network.values(seen)

    def _executed(self, x: Tensor) -> Tensor:
        """Return what concerns actions that are executed and dimensions that the robot has."""
        return x[:, :, : self.config.horizon, : self.codec.size]

    def _entries(self, x_NEHA: Tensor) -> Tensor:
        """Return entries of log-prob or entropy, ``[N, H, K]``."""
        if self.config.entries == "step":
            return x_NEHA.sum(-1).transpose(1, 2)
        return x_NEHA.transpose(1, 2).flatten(2)

    def evaluate(self, inputs: TensorDict, replay: TensorDict) -> Evaluation:
        with own_precision(self.codec.offset.device):
            seen = self._seen(inputs, replay.get("features", None))
            logp, std = self.network.evaluate(seen, replay["chain"], replay["step"], replay["level"])
            return Evaluation(
                logp=self._entries(self._executed(logp)),
                entropy=self._entries(self._executed(std.log() + HALF_LOG_2_PI_E)),
                value=self.network.values(seen),
                batch_size=[len(logp)],
            )

    def _seen(self, inputs: TensorDict, handles: Tensor | None) -> Seen:
        """Return what an observation became, from features that were kept where all of them are there."""
        features = self.bank.get(handles) if handles is not None else None
        if features is None:
            features = self._features(self._pictures(inputs), inputs["ids"], inputs["there"])
        return self.network.seen(features, inputs["there"], inputs["state"])

    def _features(self, pictures: Tensor, ids_NS: Tensor, there_NS: Tensor) -> Tensor:
        """Return the backbone's features; without gradients while it is frozen."""
        if self.config.language == "fp8" and not self.quantised:
            self.network.quantise()
            self.quantised = True
        with torch.set_grad_enabled(torch.is_grad_enabled() and self._lora is not None):
            return self.network.features(pictures, ids_NS, there_NS)

    def value(self, inputs: TensorDict) -> Tensor:
        with own_precision(self.codec.offset.device):
            return self.network.values(self._seen(inputs, None))

    def _level_at(self, version: int) -> float:
        config = self.config
        return flow.level_at(version, config.noise_level, config.noise_level_final, config.noise_anneal_steps)

    def weights_changed(self, version: int) -> None:
        self._level = self._level_at(version)
        moved = self.network.shrink()
        if self.network.pack() or moved:
            self._graphs.clear()

    def value_head(self) -> Iterable[nn.Parameter]:
        return self.network.action_head.value_head.parameters() if self.network.layout.values else ()

    def wrap_units(self) -> Iterable[nn.Module]:
        return self.network.units()

    def count_tokens(self, observation: ObservationBatch) -> Tensor:
        return torch.tensor([self.prompts.width([text]) for text in observation.instructions()])

    # ---- files ----------------------------------------------------------------------------------------------------

    def _public(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what every public checkpoint holds."""
        own = (files.VALUE, files.NOISE)
        return {name: one for name, one in weights.items() if ".lora_" not in name and not name.startswith(own)}

    def _head(self, keep_vars: bool = False) -> dict[str, Tensor]:
        """Return the action head's weights, the value head's too, with one embodiment's row."""
        weights = self.network.state_dict(keep_vars=keep_vars)
        return {
            name: one
            for name, one in weights.items()
            if name.startswith(files.HEAD) and not name.startswith(files.NOISE)
        }

    def _own(self, keep_vars: bool = False) -> dict[str, Tensor]:
        """Return what no public file holds."""
        weights = self.network.state_dict(keep_vars=keep_vars)
        return {name: one for name, one in weights.items() if name.startswith(files.NOISE)}

    def save(self, directory: Path) -> None:
        """Write what training changed: the action head with all embodiments' rows, adapters, and the name of their base."""
        base = self.base_name()
        files.write_headers(directory, self.header, base, self.base_weights)
        weight_files.write_shards(directory, self._rows.whole(self._head()))
        if self._lora is not None:
            adapters.save(self.network, self._lora, base, directory)
        files.write_heads(directory, self._own())

    def export(self, directory: Path, dtype: Literal["bf16", "fp32"] | None = None) -> None:
        """Write a whole public checkpoint, adapters merged, for whoever knows nothing of LoRA or rlvla."""
        files.write_headers(directory, self.header)
        merged = adapters.merged(self.network)
        public = {name: one for name, one in merged.items() if not name.startswith(files.NOISE)}
        weight_files.write_shards(directory, weight_files.as_stored(self._rows.whole(public), self._stored, dtype))
        files.write_heads(directory, self._own())

    def load(self, directory: Path) -> None:
        header = read_header(directory)
        self.check_base(header)
        mine = self._head(keep_vars=True)
        found = weight_files.read_shards(directory, header.shards)
        found = {name: one for name, one in found.items() if name.startswith(files.HEAD)}
        weight_files.compare(directory, self._rows.shapes(mine), found)
        stored = weight_files.read_tensors(directory / files.HEADS) if (directory / files.HEADS).is_file() else {}
        weight_files.compare(directory / files.HEADS, self._own(), stored)
        if self._lora is not None:
            if header.adapter is None:
                raise CheckpointError(f"{directory} holds no LoRA adapter, wanted one (model.tune is 'lora')")
            adapters.read(self.network, self._lora, header.adapter)
        copy_weights(mine, self._rows.mine(found))
        copy_weights(self._own(keep_vars=True), stored)

    def manifest(self) -> Mapping[str, Any]:
        return {**super().manifest(), "embodiment": {"tag": self.embodiment.tag, "row": self.row}}


def _bucket(rows: int) -> int:
    """Return the rows of the graph that a batch runs in: 1, 2, 4, or a multiple of 8."""
    return next((size for size in (1, 2, 4) if rows <= size), -(-rows // 8) * 8)


def draw_(network: Network, dtype: torch.dtype, seed: int) -> None:
    """Make weights up, on a GPU where there is one: what speed and memory are measured with."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for part, kind in ((network.backbone, dtype), (network.action_head, torch.float32)):
        part.to(kind).to_empty(device=device)
        randomise_(part, torch.Generator(device).manual_seed(seed))


def _layout(config: Gr00tConfig, header: Header, algorithm: AlgorithmSpec | None) -> Layout:
    values, (steps, random_steps) = 0, denoising_of(config, header)
    if algorithm is not None and algorithm.values:
        values = {"chunk": 1, "action": config.horizon}[algorithm.credit_level]
    return Layout(
        kind=config.noise,
        steps=steps,
        random_steps=random_steps,
        all_random=config.stochastic_steps == "all",
        masked=config.padding == "masked",
        values=values,
        detach_critic=config.detach_critic,
    )


def _check_simulator(
    header: Header, embodiment: Embodiment, config: Gr00tConfig, simulator: SimulatorSpec, texts: Sequence[str]
) -> None:
    """Make sure that the checkpoint fits the simulator, before anything of it is read."""
    problems = fp8.problem("model.language", config.language == "fp8")
    if config.padding == "masked" and config.pad_to is None and not all(texts):
        problems.append(
            "model.pad_to: None, but the simulator does not tell its instructions beforehand, so sequences would be as long as "
            "their batch asks for, and log-probs of acting and training differ: give the tokens of the longest"
        )
    if missing := [role for role in config.cameras if role not in {one.role for one in simulator.cameras}]:
        problems.append(f"model.cameras: the simulator offers no {', '.join(missing)}")
    states, actions = len(embodiment.state.offset), len(embodiment.action.offset)
    if config.state == "given" and states != simulator.state_dim:
        parts = ", ".join(f"{part.name}: {part.size}" for part in simulator.state)
        problems.append(
            f"model.state_keys: {embodiment.tag} has {states} state dimensions, the simulator gives {simulator.state_dim} "
            f"({parts}) ({header.folder})"
        )
    if actions != simulator.action_dim:
        problems.append(
            f"model.action_keys: {embodiment.tag} has {actions} action dimensions, the simulator takes "
            f"{simulator.action_dim} ({header.folder})"
        )
    if states > header.head.max_state_dim:
        problems.append(f"model.state_keys: {states} dimensions, the network reads {header.head.max_state_dim} at most")
    if problems:
        raise ConfigError(problems)
