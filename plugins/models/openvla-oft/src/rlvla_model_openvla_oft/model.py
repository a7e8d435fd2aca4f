"""OpenVLA-OFT as rlvla's model: pictures and instruction to a chunk of actions, with log-probs that training repeats.

Letters: N rows, M cameras, H actions in a chunk, A action dimensions, T = H * A tokens, B bins, V values, D features.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
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
from rlvla.networks.gaussian import HALF_LOG_2_PI_E, normal_logp
from rlvla.networks.graphs import Graphs
from rlvla.networks.initial import fresh_, randomise_
from rlvla.networks.linear import without_adapters
from rlvla.noise import Noise
from rlvla.specs import AlgorithmSpec, SimulatorSpec
from rlvla.weight_files import copy_weights
from rlvla.weights import own_precision
from rlvla_model_openvla_oft import OpenVlaOftConfig, adaptable, camera_misfits, files, spec_of, tokens
from rlvla_model_openvla_oft.actions import ActionCodec, value_of
from rlvla_model_openvla_oft.header import HEADS, Header, Statistics, read_header
from rlvla_model_openvla_oft.network import Layout, Network, Words
from rlvla_model_openvla_oft.pictures import Pictures
from rlvla_model_openvla_oft.prompts import Prompts

log = logging.getLogger(__name__)

_BESIDE = ("value_head.", "action_head.", "proprio_projector.", "action_log_std")
"""First part of names that are not in the model's shards, and that get no adapters."""
_VISION = ("vision_backbone", "projector")
"""Of layers that get one only with ``tune_vision``."""


class OpenVlaOftModel(CheckpointModel):
    """See the module's docstring."""

    config: OpenVlaOftConfig
    header: Header

    state_low: Tensor
    state_high: Tensor
    state_scaled: Tensor

    def __init__(
        self,
        config: OpenVlaOftConfig,
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
        self.statistics = self.header.statistics(config.unnorm_key, config.normalisation, state=config.proprio)
        _check_simulator(self.header, self.statistics, config, simulator)
        log.info(
            "actions are scaled by the statistics of %s in %s, from -1 to 1 to %s",
            self.statistics.key,
            self.header.statistics_file,
            self.statistics.ranges(),
        )
        self.prompts = Prompts(self.header, config.prompt_tokens)
        self.prompts.check(task.instruction for task in simulator.tasks)
        self.pictures = _pictures(config, simulator, self.header)
        self.codec = ActionCodec(config, self.statistics, simulator.action)
        self.register_buffer("state_low", torch.tensor(self.statistics.state_low), persistent=False)
        self.register_buffer("state_high", torch.tensor(self.statistics.state_high), persistent=False)
        self.register_buffer("state_scaled", torch.tensor(self.statistics.state_scaled), persistent=False)
        values = 0
        if algorithm is not None and algorithm.values:
            values = {"chunk": 1, "action": config.horizon}[algorithm.credit_level]
        layout = Layout(
            action_dim=len(self.statistics.low),
            horizon=config.horizon,
            causal=config.decoding == "autoregressive",
            stop_token=config.decoding == "parallel"
            and (config.preset != "rlinf" if config.stop_token is None else config.stop_token),
            values=values,
            l1=config.head == "l1",
            state_dim=simulator.state_dim if config.proprio else 0,
        )
        default = 1.0 if config.preset == "openvla-oft" else 1.6
        self._temperature = default if config.temperature is None else config.temperature
        with torch.device("meta"):
            self.network = Network(self.header.whole, layout)
        self._read_base()
        self._read_heads(generator)
        self._tune(generator)
        if algorithm is not None and not self.trainable():
            raise ConfigError(
                "model.tune: 'heads' trains nothing here: no value head is asked for, and no L1 head is used"
            )
        self.quantised = False
        """Acting multiplies by quantised copies of Llama's weights."""
        self._graphs = Graphs(self._forward)
        self._keeps_vision = config.keep_vision and not any(
            one.requires_grad for part in self._vision() for one in part.parameters()
        )

    # ---- weights ------------------------------------------------------------------------------------------------

    def _vision(self) -> tuple[nn.Module, nn.Module]:
        return self.network.vision_backbone, self.network.projector

    def _read_base(self) -> None:
        """Take the vision-language model's weights, in ``config.dtype``."""
        header, network = self.header.whole, self.network
        dtype = weight_files.DTYPES[self.config.dtype]
        self._stored_values: dict[str, Tensor] = {}
        if header.random_seed is not None:
            draw_(network, dtype, header.random_seed)
            self._stored = dict.fromkeys(self._below_heads(network.state_dict()), torch.bfloat16)
        else:
            found = weight_files.read_shards(header.folder, header.shards)
            self._stored = {name: one.dtype for name, one in found.items()}
            """Of weights in the public files."""
            self._stored_values = {name: found.pop(name) for name in list(found) if name.startswith("value_head.")}
            weight_files.compare(header.folder, self._below_heads(network.state_dict()), found)
            network.load_state_dict({name: one.to(dtype) for name, one in found.items()}, strict=False, assign=True)
        self.check_base(self.header)
        network.dtype = dtype
        self.network.fuse = self.config.fuse
        network.language_model.model.recompute(self.config.recompute)

    def _read_heads(self, generator: torch.Generator) -> None:
        """Take, or draw, the weights of what stands beside the vision-language model; always fp32."""
        network, layout = self.network, self.network.layout
        if layout.l1:
            self._fill(network.action_head, files.read_head(self.header, "action_head"), "action_head")
        if layout.state_dim:
            self._fill(
                network.proprio_projector, files.read_head(self.header, "proprio_projector"), "proprio_projector"
            )
        stored = dict(self._stored_values)
        if (self.header.folder / HEADS).is_file():
            stored |= weight_files.read_tensors(self.header.folder / HEADS)
        del self._stored_values
        if layout.values:
            wanted = {f"value_head.{name}": one for name, one in network.value_head.state_dict().items()}
            there = {name: one for name, one in stored.items() if name.startswith("value_head.")}
            network.value_head.to_empty(device="cpu")
            if {name: one.shape for name, one in there.items()} == {name: one.shape for name, one in wanted.items()}:
                self._fill(network.value_head, _below(there, "value_head."), "value_head")
            else:
                if there:
                    log.warning("%s has no value head of this width: it starts fresh", self.header.folder)
                fresh_(network.value_head, generator)
        self.action_log_std: nn.Parameter | None = None
        if layout.l1 and self.config.gaussian == "learned":
            start = {"action_log_std": torch.full((layout.action_dim,), self.config.gaussian_std).log()}
            there = {name: one for name, one in stored.items() if name in start}
            weight_files.compare(self.header.folder / HEADS, start, there or start)
            self.action_log_std = nn.Parameter({**start, **there}["action_log_std"].float())

    def _fill(self, module: nn.Module, found: Mapping[str, Tensor], what: str) -> None:
        weight_files.compare(f"{what} in {self.header.folder}", module.state_dict(), found)
        # Copies: tensors of a file lie where they do in it, and products of such memory differ in their last bits.
        module.load_state_dict({name: one.float().clone() for name, one in found.items()}, assign=True)

    def _tune(self, generator: torch.Generator) -> None:
        """Say what is trained: adapters, all weights that anything depends on, or heads alone."""
        config, network = self.config, self.network
        network.requires_grad_(False)
        self._lora: LoraConfig | None = None
        if config.tune == "lora":
            adapter, layers = self.header.adapter, adaptable(self.header)
            self._lora = adapters.start(network, config, adapter, layers, generator, never=_BESIDE, vision=_VISION)
        elif config.tune == "full":
            network.language_model.requires_grad_(True)
            for part in self._vision():
                part.requires_grad_(config.tune_vision)
        for name in ("value_head", "action_head"):
            if hasattr(network, name):
                getattr(network, name).requires_grad_(True)
        if config.tune == "full" and hasattr(network, "proprio_projector"):
            network.proprio_projector.requires_grad_(True)
        for parameter in network.dead():
            parameter.requires_grad_(False)
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()

    # ---- acting and training --------------------------------------------------------------------------------------

    def preprocess(self, observation: ObservationBatch) -> TensorDict:
        device = self.codec.low.device
        ids_NP, there_NP = self.prompts.batch(observation.instructions())
        with own_precision(device):
            inputs = {"pictures": self.pictures(observation), "ids": ids_NP.to(device)}
        if there_NP is not None:
            inputs["there"] = there_NP.to(device)
        if self.network.layout.state_dim:
            state, wide = observation.state.to(device), self.state_high - self.state_low + 1e-8
            scaled = torch.where(self.state_scaled, 2 * (state - self.state_low) / wide - 1, state)
            inputs["state"] = scaled.clamp(-1, 1)
        return TensorDict(inputs, batch_size=[len(ids_NP)])

    def act(self, inputs: TensorDict, noise: Noise, greedy: bool = False) -> Action:
        layout = self.network.layout
        with own_precision(self.codec.low.device):
            if layout.causal:
                chosen, seen, value = self._one_by_one(inputs, noise, greedy)
            else:
                words = (inputs["pictures"], inputs["ids"], inputs.get("there", None), inputs.get("state", None))
                by_graph = self.config.graphs and inputs["ids"].is_cuda and not torch.is_grad_enabled()
                seen, read, value = (self._graphs if by_graph else self._forward)(*words)
                chosen = (self._gaussian if layout.l1 else self._tokens)(read, noise, greedy)
            if self._keeps_vision:
                chosen["replay"]["vision"] = seen
            return Action(
                actions=self.codec(chosen["normalised"]),
                logp=chosen["logp"],
                value=value,
                replay=TensorDict(chosen["replay"], batch_size=[len(seen)]),
                batch_size=[len(seen)],
            )

    def _forward(
        self, pictures: Tensor, ids_NP: Tensor, there_NP: Tensor | None, state: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens of the pictures, what the chunk is chosen from (logits, or the L1 head's actions), and values."""
        seen = self.network.see(pictures)
        features_NTD = self.network(seen, ids_NP, there_NP, state)
        read = self.network.continuous if self.network.layout.l1 else self.network.logits
        return seen, read(features_NTD), self.network.values(features_NTD)

    def _tokens(self, logits_NTB: Tensor, noise: Noise, greedy: bool) -> dict[str, Any]:
        """Choose all tokens of a chunk."""
        shape = (self.network.layout.horizon, self.network.layout.action_dim)
        uniform_NT = None if greedy else noise.uniform(*shape).flatten(1)
        return self._of_tokens(*self._draw(logits_NTB, uniform_NT))

    def _draw(self, logits: Tensor, uniform: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return tokens (the likeliest without noise), their log-probs, and which could be chosen."""
        top_k = self.config.top_k
        support = tokens.likeliest(logits, top_k) if top_k is not None else None
        logp = tokens.log_probs(logits, self._temperature, support)
        token = logp.argmax(-1) if uniform is None else tokens.drawn(logp, uniform)
        return token, tokens.of_tokens(logp, token), support

    def _of_tokens(self, token_NT: Tensor, logp_NT: Tensor, support: Tensor | None) -> dict[str, Any]:
        shape = (self.network.layout.horizon, self.network.layout.action_dim)
        token_NHA = token_NT.unflatten(1, shape)
        replay = {"tokens": token_NHA}
        if support is not None:
            replay["support"] = support
        return {"normalised": value_of(token_NHA), "logp": logp_NT.unflatten(1, shape), "replay": replay}

    def _one_by_one(self, inputs: TensorDict, noise: Noise, greedy: bool) -> tuple[dict[str, Any], Tensor, Tensor]:
        """Choose the tokens of one action, each after those before it; returns them, tokens of the pictures, and values."""
        uniform_NT = None if greedy else noise.uniform(1, self.network.layout.action_dim).flatten(1)
        drawn: list[tuple[Tensor, Tensor, Tensor | None]] = []

        def choose(features: Tensor, number: int) -> Tensor:
            uniform = uniform_NT[:, number : number + 1] if uniform_NT is not None else None
            drawn.append(self._draw(self.network.logits(features), uniform))
            return drawn[-1][0][:, 0]

        words = self._words(inputs, self.network.see(inputs["pictures"]))
        features = self.network.roll(*words, choose)
        token_NT, logp_NT = torch.cat([one[0] for one in drawn], 1), torch.cat([one[1] for one in drawn], 1)
        supports = [one[2] for one in drawn if one[2] is not None]
        chosen = self._of_tokens(token_NT, logp_NT, torch.cat(supports, 1) if supports else None)
        return chosen, words[0], self.network.values(features)

    @staticmethod
    def _words(inputs: TensorDict, seen: Tensor) -> Words:
        return seen, inputs["ids"], inputs.get("there", None), inputs.get("state", None)

    def _gaussian(self, mean_NHA: Tensor, noise: Noise, greedy: bool) -> dict[str, Any]:
        """Choose a chunk around the L1 head's."""
        std_A = self._std()
        normal_NHA = torch.zeros_like(mean_NHA) if greedy else noise.normal(*mean_NHA.shape[1:])
        chosen_NHA = mean_NHA + std_A * normal_NHA
        logp_NHA = normal_logp(chosen_NHA, mean_NHA, std_A)
        return {"normalised": chosen_NHA, "logp": logp_NHA, "replay": {"chosen": chosen_NHA}}

    def _std(self) -> Tensor:
        if self.action_log_std is not None:
            return self.action_log_std.exp()
        return torch.full((self.network.layout.action_dim,), self.config.gaussian_std, device=self.codec.low.device)

    def evaluate(self, inputs: TensorDict, replay: TensorDict) -> Evaluation:
        with own_precision(self.codec.low.device):
            features = self._features(inputs, replay)
            if self.network.layout.l1:
                mean_NHA, std_A = self.network.continuous(features), self._std()
                logp = normal_logp(replay["chosen"], mean_NHA, std_A)
                entropy = (std_A.log() + HALF_LOG_2_PI_E).expand_as(logp)
            else:
                all_NTB = tokens.log_probs(
                    self.network.logits(features), self._temperature, replay.get("support", None)
                )
                shape = replay["tokens"].shape[1:]
                logp = tokens.of_tokens(all_NTB, replay["tokens"].flatten(1)).unflatten(1, shape)
                entropy = tokens.entropy(all_NTB).unflatten(1, shape)
            value = self.network.values(features)
            return Evaluation(logp=logp, entropy=entropy, value=value, batch_size=[len(logp)])

    def _features(self, inputs: TensorDict, replay: TensorDict) -> Tensor:
        seen = replay.get("vision", None)
        words = self._words(inputs, self.network.see(inputs["pictures"]) if seen is None else seen)
        if self.network.layout.causal:
            return self.network.follow(*words, replay["tokens"].flatten(1))
        return self.network(*words)  # type: ignore[no-any-return]

    def value(self, inputs: TensorDict) -> Tensor:
        with own_precision(self.codec.low.device):
            none = TensorDict({"tokens": inputs["ids"][:, :1]}, batch_size=inputs.batch_size)
            return self.network.values(self._features(inputs, none))

    def weights_changed(self, version: int) -> None:
        moved = self.network.shrink()
        if self.network.pack() or moved:
            self._graphs.clear()
        if self.config.rollout == "fp8" and (not self.quantised or self.config.tune == "full"):
            self.network.quantise()  # in place, except the first time
            if not self.quantised:
                self._graphs.clear()
            self.quantised = True

    def reference(self) -> AbstractContextManager[None] | None:
        started_without = self._lora is not None and self.header.adapter is None
        return without_adapters() if started_without else None

    def value_head(self) -> Iterable[nn.Parameter]:
        return self.network.value_head.parameters() if self.network.layout.values else ()

    def wrap_units(self) -> Iterable[nn.Module]:
        return self.network.units()

    def count_tokens(self, observation: ObservationBatch) -> Tensor:
        layout = self.network.layout
        pictures = self.network.vision_backbone.patches * len(self.config.cameras)
        slots = layout.slots - int(layout.causal)  # of tokens that are put in, the last is only read out
        others = pictures + slots + int(layout.stop_token) + (1 if layout.state_dim else 0)
        return torch.tensor([others + len(self.prompts.ids(text)) for text in observation.instructions()])

    # ---- files ----------------------------------------------------------------------------------------------------

    def save(self, directory: Path) -> None:
        """Write what training changed: all weights, or adapters or nothing with the name of their base; and the heads."""
        base = None if self.config.tune == "full" else self.base_name()
        files.write_headers(directory, self.header, self._notes(base), whole=base is None)
        if self._lora is not None:
            adapters.save(self.network, self._lora, base, directory)
        elif base is None:
            weight_files.write_shards(directory, self._below_heads(self.network.state_dict()))
        for kind, head in self._public_heads().items():
            files.write_head(directory, kind, head.state_dict())
        files.write_heads(directory, self._own_heads())

    def export(self, directory: Path, dtype: Literal["bf16", "fp32"] | None = None) -> None:
        """Write a whole public checkpoint, adapters merged, for whoever knows nothing of LoRA or rlvla; L1 head and proprio
        projector in fp32 unless ``dtype`` says otherwise."""
        files.write_headers(directory, self.header, self._notes(None), whole=True)
        weights = self._below_heads(adapters.merged(self.network))
        weight_files.write_shards(directory, weight_files.as_stored(weights, self._stored, dtype))
        for kind, head in self._public_heads().items():
            files.export_head(directory, kind, weight_files.as_stored(head.state_dict(), {}, dtype))
        files.write_heads(directory, self._own_heads())

    def _notes(self, base: str | None) -> dict[str, Any]:
        """Return what rlvla adds to ``config.json``."""
        notes: dict[str, Any] = {"rlvla_cameras": list(self.config.cameras)}
        return notes if base is None else {**notes, "rlvla_base": base, "rlvla_base_files": dict(self.base_weights)}

    @staticmethod
    def _below_heads(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the vision-language model's weights, which the public shards hold."""
        return {name: one for name, one in weights.items() if not name.startswith(_BESIDE)}

    def _public_heads(self) -> dict[str, nn.Module]:
        """Return what stands beside the vision-language model in files of its own."""
        kinds = ("action_head", "proprio_projector")
        return {kind: getattr(self.network, kind) for kind in kinds if hasattr(self.network, kind)}

    def _own_heads(self) -> dict[str, Tensor]:
        """Return what no public file holds."""
        own: dict[str, Tensor] = {}
        if self.network.layout.values:
            own |= {
                f"value_head.{name}": one for name, one in self.network.value_head.state_dict(keep_vars=True).items()
            }
        if self.action_log_std is not None:
            own["action_log_std"] = self.action_log_std
        return own

    def load(self, directory: Path) -> None:
        if not (directory / "config.json").is_file():
            raise CheckpointError(
                f"{directory} lacks config.json, which says what its weights were trained on: put back the file that was written "
                "with them, or go on from another checkpoint of the run"
            )
        header = read_header(directory)
        if problems := camera_misfits(self.config, header):
            raise CheckpointError("\n".join(problems))
        self.check_base(header)
        stored = weight_files.read_tensors(directory / HEADS) if (directory / HEADS).is_file() else {}
        if self._lora is not None:
            if header.adapter is None:
                raise CheckpointError(f"{directory} holds no LoRA adapter, wanted one (model.tune is 'lora')")
            adapters.read(self.network, self._lora, header.adapter)
        elif self.config.tune == "full":
            found, mine = (
                weight_files.read_shards(header.folder, header.shards),
                self._below_heads(self.network.state_dict(keep_vars=True)),
            )
            weight_files.compare(directory, mine, found)
            copy_weights(mine, found)
        weight_files.compare(directory / HEADS, self._own_heads(), stored)
        copy_weights(self._own_heads(), stored)
        for kind, module in self._public_heads().items():
            found, head = files.read_head(header, kind), module.state_dict(keep_vars=True)
            weight_files.compare(f"{kind} in {directory}", head, found)
            copy_weights(head, found)

    def manifest(self) -> Mapping[str, Any]:
        return {**super().manifest(), "statistics": self.statistics.key}


def draw_(network: Network, dtype: torch.dtype, seed: int) -> None:
    """Make weights up, on a GPU where there is one: what speed and memory are measured with."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    parts = (*network.vision_backbone.children(), network.projector, network.language_model)
    for part in parts:
        part.to(dtype).to_empty(device=device)
        randomise_(part, torch.Generator(device).manual_seed(seed))


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): one for name, one in tensors.items() if name.startswith(prefix)}


def _pictures(config: OpenVlaOftConfig, simulator: SimulatorSpec, header: Header) -> Pictures:
    by_role = {camera.role: camera for camera in simulator.cameras}
    rlinf = config.preset == "rlinf"
    return Pictures(
        [by_role[role] for role in config.cameras],
        header.image_size,
        ("bicubic" if rlinf else "lanczos") if config.resize is None else config.resize,
        not rlinf if config.jpeg is None else config.jpeg,
        not rlinf if config.center_crop is None else config.center_crop,
        config.mirrored,
    )


def _check_simulator(
    header: Header, statistics: Statistics, config: OpenVlaOftConfig, simulator: SimulatorSpec
) -> None:
    """Make sure that the checkpoint fits the simulator, before anything of it is read."""
    problems = fp8.problem("model.rollout", config.rollout == "fp8")
    if missing := [role for role in config.cameras if role not in {one.role for one in simulator.cameras}]:
        problems.append(f"model.cameras: the simulator offers no {', '.join(missing)}: name cameras that it has")
    if len(statistics.low) != simulator.action_dim:
        problems.append(
            f"model.unnorm_key: the statistics of {statistics.key} have {len(statistics.low)} action dimensions, the "
            f"simulator takes {simulator.action_dim} ({header.folder}): name a data set of this robot, or take a checkpoint "
            "of it"
        )
    if config.proprio and len(statistics.state_low) != simulator.state_dim:
        problems.append(
            f"model.proprio: the statistics of {statistics.key} have {len(statistics.state_low)} state dimensions, the "
            f"simulator gives {simulator.state_dim} ({header.folder}): set model.proprio to False, or take a checkpoint of "
            "this robot"
        )
    if problems:
        raise ConfigError(problems)
