"""The whole network: pictures and words to a context, and from noise to actions, one step after another.

Letters: N rows, M cameras, S tokens of a sequence, K denoising steps, E steps that log-probs are of, H actions that are
denoised, A action dimensions of the network, C features of the context.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlvla.networks import fp8, kernels
from rlvla.networks.gaussian import normal_logp
from rlvla.networks.linear import project
from rlvla_model_gr00t import flow
from rlvla_model_gr00t.head import ActionHead, Times
from rlvla_model_gr00t.header import Header
from rlvla_model_gr00t.qwen import Qwen
from rlvla_model_gr00t.siglip import Siglip


@dataclass(frozen=True)
class Layout:
    """How the network is run."""

    kind: flow.Kind = "flow_sde"
    steps: int = 4
    """K."""
    random_steps: int = 4
    """The first of them that may be random."""
    all_random: bool = False
    """All of those are, or one."""
    masked: bool = False
    """The head does not look at padding."""
    values: int = 0
    """Values a chunk; 0: no value head."""
    detach_critic: bool = False
    """The value head's gradient ends at what it reads."""

    @property
    def recorded(self) -> int:
        """E."""
        return self.random_steps if self.all_random else 1


class Eagle(nn.Module):
    """The vision-language model."""

    def __init__(self, header: Header) -> None:
        super().__init__()
        self.vision_model = Siglip(header.siglip)
        self.mlp1 = nn.Sequential(nn.Linear(header.siglip.hidden_size, header.qwen.hidden_size))
        self.language_model = Qwen(header.qwen)


class Backbone(nn.Module):
    """The vision-language model, one level down, as the public names have it."""

    def __init__(self, header: Header) -> None:
        super().__init__()
        self.eagle_model = Eagle(header)


@dataclass(frozen=True)
class Seen:
    """What an observation became, before any action."""

    context: Tensor
    """``[N, S, C]``."""
    state: Tensor
    """``[N, 1, D]``."""
    there: Tensor | None
    """bool ``[N, S]``, tokens that the head looks at; None: all."""

    @property
    def mask(self) -> Tensor | None:
        """``there``, as attention takes it."""
        return self.there[:, None, None] if self.there is not None else None


@dataclass(frozen=True)
class Denoised:
    """A chunk, and how it came about; all fp32."""

    actions: Tensor
    """``[N, H, A]``, normalised."""
    chain: Tensor
    """``[N, P, H, A]``: before and after the recorded step, or the start and the end of every recorded one (P = E + 1)."""
    logp: Tensor
    """``[N, E, H, A]``."""


class Network(nn.Module):
    """All weights under their public names.

    Args:
        header: sizes.
        layout: how it is run.
        places: of pictures' tokens in a sequence, in order.
        text_from: place of the first token that differs between instructions.
    """

    times_K: Tensor
    buckets_K: Tensor
    numbers_K: Tensor
    places: Tensor

    def __init__(self, header: Header, layout: Layout, places: Tensor, text_from: int) -> None:
        super().__init__()
        self.layout = layout
        self.backbone = Backbone(header)
        self.action_head = ActionHead(header.head, layout.values, layout.kind == "reinflow")
        with torch.device("cpu"):
            times_K = torch.arange(layout.steps, dtype=torch.float32) / layout.steps
            buckets_K = (times_K.double() * header.head.num_timestep_buckets).long()
            numbers_K = torch.arange(layout.steps)
        constants = {"times_K": times_K, "buckets_K": buckets_K, "numbers_K": numbers_K, "places": places}
        for (
            name,
            tensor,
        ) in constants.items():  # on the device from the start: nothing may come from the host in a capture
            self.register_buffer(name, tensor, persistent=False)
        self._text_from = text_from
        self._horizon, self._actions = header.head.action_horizon, header.head.action_dim
        self.dtype = torch.float32
        """Of all products."""
        self.fuse = True
        """Compile element-wise parts where this is a GPU."""

    # ---- memory -------------------------------------------------------------------------------------------------

    def dead(self) -> list[nn.Parameter]:
        """Return parameters that nothing computed depends on: stored in every checkpoint, never trained."""
        eagle = self.backbone.eagle_model
        return list(eagle.vision_model.vision_model.head.parameters())

    def units(self) -> list[nn.Module]:
        """Return blocks that compute by themselves when they are called."""
        eagle = self.backbone.eagle_model
        layers = (*eagle.vision_model.vision_model.encoder.layers, *eagle.language_model.model.layers)
        return [*layers, *self.action_head.units()]

    def pack(self) -> bool:
        """Put weights that are multiplied together beside each other in memory; says whether any moved."""
        eagle = self.backbone.eagle_model
        moved = [part.pack() for part in (eagle.vision_model, eagle.language_model, self.action_head)]
        return any(moved)

    def shrink(self) -> bool:
        """Hold weights of an acting copy, which training has in fp32, in the dtype of all products; says whether any moved.

        Products round them so anyway. Adapters, and what :meth:`ActionHead.exact` names, stay in fp32.
        """
        exact = {id(one) for one in self.action_head.exact()}
        wide = [
            one
            for name, one in self.named_parameters()
            if one.dtype != self.dtype and not one.requires_grad and ".lora_" not in name and id(one) not in exact
        ]
        for parameter in wide:
            parameter.data = parameter.data.to(self.dtype)
        return bool(wide)

    def quantise(self) -> None:
        """Give the language model's layers quantised copies of their weights, which are then multiplied by."""
        for layer in self.backbone.eagle_model.language_model.model.layers:
            for stack in layer.stacks():  # type: ignore[operator]
                fp8.quantise_(stack)

    def run(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return an element-wise function as it is, or compiled."""
        return kernels.fused(function) if self.fuse and self.places.is_cuda else function

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.pack()  # moving gave each weight memory of its own
        return self

    # ---- what is seen -------------------------------------------------------------------------------------------

    def features(self, pictures_NM3HW: Tensor, ids_NS: Tensor, there_NS: Tensor) -> Tensor:
        """Return the backbone's features of uint8 pictures and words, ``[N, S, C]``: all cameras and rows in one batch."""
        eagle = self.backbone.eagle_model
        scaled = (pictures_NM3HW.flatten(0, 1).float() / 127.5 - 1).to(self.dtype)
        patches = eagle.vision_model(scaled, self.run)
        seen = project(patches, eagle.mlp1[0]).unflatten(0, pictures_NM3HW.shape[:2]).flatten(1, 2)
        stack = eagle.language_model.model
        words = stack.embed_tokens(ids_NS).to(self.dtype)
        return stack(words.index_copy(1, self.places, seen), there_NS, self._text_from, self.run)  # type: ignore[no-any-return]

    def seen(self, features_NSC: Tensor, there_NS: Tensor, state_NS: Tensor) -> Seen:
        """Return what the head makes of features and state."""
        there = there_NS if self.layout.masked else None
        mask = there[:, None, None] if there is not None else None
        context = self.action_head.context(features_NSC.to(self.dtype), mask, self.run)
        return Seen(context, self.action_head.state(state_NS, self.dtype), there)

    def values(self, seen: Seen) -> Tensor:
        """Return fp32 ``[N, V]``; nothing is denoised for them."""
        if not self.layout.values:
            return seen.context.new_zeros(len(seen.context), 0, dtype=torch.float32)
        pooled = self.action_head.pooled(seen.context, seen.there, seen.state)
        return self.action_head.value_head(pooled.detach() if self.layout.detach_critic else pooled)  # type: ignore[no-any-return]

    # ---- what is done -------------------------------------------------------------------------------------------

    def denoise(
        self, seen: Seen, start_NHA: Tensor, noise_NEHA: Tensor, step_N: Tensor, level_N: Tensor, random_N: Tensor
    ) -> Denoised:
        """Return chunks from noise.

        Args:
            seen: of an observation.
            start_NHA: noise to start from.
            noise_NEHA: of the random steps.
            step_N: which step is recorded (and random), where not all are.
            level_N: noise level.
            random_N: bool; False: all steps are Euler's, log-probs are of where they lead.
        """
        both = self.action_head.model.keys_and_values(seen.context)
        times = self.action_head.times(self.buckets_K, self.dtype)
        random, level = random_N[:, None, None], level_N[:, None, None]
        x, everywhere, logps = start_NHA, self.layout.all_random, []
        chain = [x, x]
        logp_NHA = torch.zeros_like(x)
        for number in range(self.layout.steps):
            moved, mean, std = self._step(
                x, seen, both, times.at(self.numbers_K[number, None]), self.times_K[number], level
            )
            if number < self.layout.random_steps:
                here = torch.ones_like(random) if everywhere else (step_N == number)[:, None, None]
                noise_NHA = noise_NEHA[:, number if everywhere else 0]
                moved = torch.where(here & random, mean + std * noise_NHA, moved)
                density = normal_logp(moved, mean, std)
                if everywhere:
                    chain[number:] = [x, moved]
                    logps.append(density)
                else:
                    chain = [torch.where(here, one, kept) for one, kept in zip((x, moved), chain, strict=True)]
                    logp_NHA = torch.where(here, density, logp_NHA)
            x = moved
        logp = torch.stack(logps, 1) if everywhere else logp_NHA[:, None]
        return Denoised(x, torch.stack(chain, 1), logp)

    def _step(
        self, x: Tensor, seen: Seen, both: list[tuple[Tensor, Tensor]], times: Times, t: Tensor, level: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return where a step ends if it is not random, and mean and standard deviation if it is."""
        velocity, features = self.action_head.velocity(x, seen.state, both, times, seen.mask, self.run)
        learned = flow.learned_std(self.action_head.noise_net(features)) if self.layout.kind == "reinflow" else None
        dt = 1.0 / self.layout.steps
        return flow.euler(x, velocity, dt), *flow.distribution(self.layout.kind, x, velocity, t, dt, level, learned)

    def evaluate(self, seen: Seen, chain_NPHA: Tensor, step_N: Tensor, level_N: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-densities of recorded steps, and their standard deviations, both ``[N, E, H, A]``; with gradients."""
        both = self.action_head.model.keys_and_values(seen.context)
        times, level = self.action_head.times(self.buckets_K, self.dtype), level_N[:, None, None]
        logps, stds = [], []
        for number in range(self.layout.recorded):
            numbers = self.numbers_K[number, None] if self.layout.all_random else step_N
            t = self.times_K.index_select(0, numbers)[:, None, None]
            _, mean, std = self._step(chain_NPHA[:, number], seen, both, times.at(numbers), t, level)
            logps.append(normal_logp(chain_NPHA[:, number + 1], mean, std))
            stds.append(std)
        return torch.stack(logps, 1), torch.stack(stds, 1)
