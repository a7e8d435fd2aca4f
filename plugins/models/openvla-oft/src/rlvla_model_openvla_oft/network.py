"""The vision-language-action network: one sequence of pictures, prompt and action slots, read out at the slots.

``[begin of text][pictures][state?][padding][prompt, ends in a lone blank][slots, zero][end of text?]``: all tokens see all
others (OFT's attention is not causal, text included), padding apart. Slot i is read one position earlier, so the last
prompt token predicts the first action token; its features are also what the value head sees. The autoregressive mode is
plain OpenVLA: causal, no slots, each token put in after it was chosen; training puts all of them in at once, whose products
have other shapes and round otherwise.

Letters: N rows, M cameras, I tokens of all pictures, P prompt tokens, S tokens, T action tokens, D features, B bins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from rlvla.networks import fp8, kernels
from rlvla.networks.linear import project
from rlvla_model_openvla_oft.header import BINS, Colours, Header
from rlvla_model_openvla_oft.heads import L1Head, ProprioProjector, ValueHead
from rlvla_model_openvla_oft.llama import LanguageModel, Past
from rlvla_model_openvla_oft.prompts import STOP
from rlvla_model_openvla_oft.towers import Projector, VisionBackbone

Words = tuple[Tensor, Tensor, Tensor | None, Tensor | None]
"""Tokens of pictures, ids of the prompt, which of them are there, and the state."""


@cache
def _on(device: torch.device, colours: tuple[Colours, Colours]) -> tuple[Tensor, Tensor]:
    """Return means and standard deviations on a device, once: nothing may come from the host while a graph is captured."""
    means, stds = (torch.tensor(one, device=device)[:, :, None, None] for one in colours)
    return means, stds


@dataclass(frozen=True)
class Layout:
    """What the sequence of one call is made of."""

    action_dim: int
    horizon: int
    causal: bool = False
    stop_token: bool = True
    values: int = 0
    """Values a chunk; 0: no value head."""
    l1: bool = False
    state_dim: int = 0
    """0: no state token."""

    @property
    def slots(self) -> int:
        return self.action_dim * self.horizon


class Network(nn.Module):
    """All weights under their public names.

    Args:
        header: sizes.
        layout: the sequence.
    """

    def __init__(self, header: Header, layout: Layout) -> None:
        super().__init__()
        width = header.llama.hidden_size
        self.layout = layout
        self.vision_backbone = VisionBackbone(header.dino, header.siglip, header.image_size)
        self.projector = Projector(self.vision_backbone.width, width)
        self.language_model = LanguageModel(header.llama)
        if layout.values:
            self.value_head = ValueHead(width, layout.values)
        if layout.l1:
            self.action_head = L1Head(width, layout.action_dim)
        if layout.state_dim:
            self.proprio_projector = ProprioProjector(layout.state_dim, width)
        self._colours = header.colours
        self._rows = slice(header.last_action_id - BINS, header.last_action_id)
        self.dtype = torch.float32
        """Of all products."""
        self.fuse = True
        """Compile element-wise parts where this is a GPU."""

    def dead(self) -> list[nn.Parameter]:
        """Return parameters that nothing computed depends on: stored in every checkpoint, never trained."""
        head = [self.language_model.lm_head] if self.layout.l1 else []
        return [one for module in (*self.vision_backbone.dead(), *head) for one in module.parameters()]

    def units(self) -> list[nn.Module]:
        """Return blocks that compute by themselves when they are called."""
        towers = (self.vision_backbone.featurizer, self.vision_backbone.fused_featurizer)
        blocks = [block for tower in towers for block in tower.blocks]
        heads = [getattr(self, name) for name in ("value_head", "action_head") if hasattr(self, name)]
        return [*blocks, self.projector, *self.language_model.model.layers, *heads]

    def pack(self) -> bool:
        """Put weights that are multiplied together beside each other in memory; says whether any moved."""
        return self.language_model.model.pack()

    def shrink(self) -> bool:
        """Hold weights of an acting copy, which training has in fp32, in the dtype of all products; says whether any moved.

        Products round them so anyway. Adapters and heads stay in fp32.
        """
        parts = (self.vision_backbone, self.projector, self.language_model)
        wide = [
            one
            for part in parts
            for name, one in part.named_parameters()
            if one.ndim > 1 and one.dtype != self.dtype and not one.requires_grad and ".lora_" not in name
        ]
        for parameter in wide:
            parameter.data = parameter.data.to(self.dtype)
        return bool(wide)

    def quantise(self) -> None:
        """Give Llama's layers quantised copies of their weights, which acting then multiplies by; or refresh them."""
        for layer in self.language_model.model.layers:
            for stack in layer.stacks():  # type: ignore[operator]
                fp8.quantise_(stack)

    def run(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return an element-wise function as it is, or compiled."""
        return kernels.fused(function) if self.fuse and self.language_model.model.norm.weight.is_cuda else function

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.pack()  # moving gave each weight memory of its own
        return self

    # ---- what goes in -------------------------------------------------------------------------------------------

    def see(self, pictures_NM3HW: Tensor) -> Tensor:
        """Return the tokens of uint8 pictures, ``[N, I, D]``: all cameras and rows in one batch."""
        means, stds = _on(pictures_NM3HW.device, self._colours)
        features = self.vision_backbone(pictures_NM3HW.flatten(0, 1), self.dtype, means, stds, self.run)
        return self.projector(features).unflatten(0, pictures_NM3HW.shape[:2]).flatten(1, 2)  # type: ignore[no-any-return]

    def _prefix(self, seen_NID: Tensor, ids_NP: Tensor, state_NS: Tensor | None) -> Tensor:
        words_NPD = self._words(ids_NP)
        parts = [words_NPD[:, :1], seen_NID, words_NPD[:, 1:]]
        if state_NS is not None:
            parts.insert(2, self.proprio_projector(state_NS).to(self.dtype))
        return torch.cat(parts, 1)

    def _words(self, ids: Tensor) -> Tensor:
        return self.language_model.model.embed_tokens(ids).to(self.dtype)  # type: ignore[no-any-return]

    @staticmethod
    def _there(there_NP: Tensor | None, between: int, after: int) -> Tensor | None:
        """Return which of all tokens are there, ``[N, S]``."""
        if there_NP is None:
            return None
        ones = there_NP.new_ones(len(there_NP), between + after)
        return torch.cat([there_NP[:, :1], ones[:, :between], there_NP[:, 1:], ones[:, between:]], 1)

    @staticmethod
    def _positions(there_NS: Tensor | None, length: int, device: torch.device) -> Tensor:
        if there_NS is None:
            return torch.arange(length, device=device)[None]
        return (there_NS.long().cumsum(1) - 1).clamp_min(0)

    # ---- forward ------------------------------------------------------------------------------------------------

    def forward(self, seen_NID: Tensor, ids_NP: Tensor, there_NP: Tensor | None, state_NS: Tensor | None) -> Tensor:
        """Return the features that each action token is read from, all at once, ``[N, T, D]``."""
        prefix = self._prefix(seen_NID, ids_NP, state_NS)
        rows, slots, stop = len(prefix), self.layout.slots, int(self.layout.stop_token)
        parts = [prefix, prefix.new_zeros(rows, slots, prefix.shape[-1])]
        if stop:
            parts.append(self._words(ids_NP.new_full((rows, 1), STOP)))
        x = torch.cat(parts, 1)
        there_NS = self._there(there_NP, prefix.shape[1] - ids_NP.shape[1], slots + stop)
        mask = there_NS[:, None, None] if there_NS is not None else None
        first = prefix.shape[1] - 1
        positions = self._positions(there_NS, x.shape[1], x.device)
        features, _ = self.language_model.model(x, positions, mask, slice(first, first + slots), self.run)
        return features  # type: ignore[no-any-return]

    def follow(
        self, seen_NID: Tensor, ids_NP: Tensor, there_NP: Tensor | None, state_NS: Tensor | None, token_NT: Tensor
    ) -> Tensor:
        """Return the features that each action token is read from where those before it are given, ``[N, T, D]``; causal.

        Args:
            token_NT: tokens' places among the 256.
        """
        return self._causal(seen_NID, ids_NP, there_NP, state_NS, token_NT[:, :-1], keep=False)[0]

    def roll(
        self,
        seen_NID: Tensor,
        ids_NP: Tensor,
        there_NP: Tensor | None,
        state_NS: Tensor | None,
        choose: Callable[[Tensor, int], Tensor],
    ) -> Tensor:
        """Let ``choose`` take one token after another; returns the first one's features, ``[N, 1, D]``.

        Args:
            choose: of features ``[N, 1, D]`` and the token's number, its place among the 256 ``[N]``.
        """
        none = ids_NP[:, :0]
        first, past, position, there_NS = self._causal(seen_NID, ids_NP, there_NP, state_NS, none, keep=True)
        features = first
        for number in range(self.layout.slots):
            token_N = choose(features, number)
            if number == self.layout.slots - 1:
                break
            position = position + 1
            if there_NS is not None:
                there_NS = torch.cat([there_NS, there_NS.new_ones(len(there_NS), 1)], 1)
            mask = there_NS[:, None, None] if there_NS is not None else None
            x = self._words(token_N[:, None] + self._rows.start)
            features, past = self.language_model.model(x, position, mask, slice(0, 1), self.run, past, keep=True)
        return first

    def _causal(
        self,
        seen_NID: Tensor,
        ids_NP: Tensor,
        there_NP: Tensor | None,
        state_NS: Tensor | None,
        token_NT: Tensor,
        keep: bool,
    ) -> tuple[Tensor, Past, Tensor, Tensor | None]:
        """Return features from the last prompt token on, keys and values, the last position, and which tokens are there."""
        prefix = self._prefix(seen_NID, ids_NP, state_NS)
        x = torch.cat([prefix, self._words(token_NT + self._rows.start)], 1)
        there_NS = self._there(there_NP, prefix.shape[1] - ids_NP.shape[1], token_NT.shape[1])
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()[None, None]
        if there_NS is not None:
            mask = mask & there_NS[:, None, None]
        positions = self._positions(there_NS, x.shape[1], x.device)
        wanted = slice(prefix.shape[1] - 1, x.shape[1])
        features, past = self.language_model.model(x, positions, mask, wanted, self.run, keep=keep)
        return features, past, positions[:, -1:], there_NS

    # ---- what comes out -----------------------------------------------------------------------------------------

    def logits(self, features: Tensor) -> Tensor:
        """Return fp32 ``[N, T, B]``: the action tokens' rows of the vocabulary alone, adapter included."""
        return project(features.float(), self.language_model.lm_head, rows=self._rows)

    def values(self, features_NTD: Tensor) -> Tensor:
        """Return fp32 ``[N, V]`` from the last prompt token, which is where the first action token is read."""
        if not self.layout.values:
            return features_NTD.new_zeros(len(features_NTD), 0, dtype=torch.float32)
        return self.value_head(features_NTD[:, 0])  # type: ignore[no-any-return]

    def continuous(self, features_NTD: Tensor) -> Tensor:
        """Return the L1 head's normalised actions, fp32 ``[N, H, A]``."""
        grouped = features_NTD.unflatten(1, (self.layout.horizon, self.layout.action_dim)).flatten(2)
        return self.action_head(grouped)  # type: ignore[no-any-return]
