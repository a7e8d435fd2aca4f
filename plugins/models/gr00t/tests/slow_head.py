"""The action head once more, slowly: weights gathered for each sample, keys and values in every step, nothing fused.

Works on the weights of a file (all embodiments' rows), by their public names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from rlvla_model_gr00t.header import HeadShape


class SlowHead:
    """See the module.

    Args:
        weights: of a whole file, fp32.
        shape: sizes.
        rows: embodiment of each sample.
    """

    def __init__(self, weights: Mapping[str, Tensor], shape: HeadShape, rows: Tensor) -> None:
        self.w = {name.removeprefix("action_head."): one for name, one in weights.items()}
        self.shape, self.rows = shape, rows

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.w[f"{name}.weight"], self.w[f"{name}.bias"])

    def norm(self, x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.w[f"{name}.weight"], self.w[f"{name}.bias"], 1e-5)

    def own(self, x: Tensor, name: str) -> Tensor:
        return torch.einsum("nti,nio->nto", x, self.w[f"{name}.W"][self.rows]) + self.w[f"{name}.b"][self.rows][:, None]

    def attend(self, x: Tensor, seen: Tensor, name: str, heads: int) -> Tensor:
        q, k, v = (
            self.linear(one, f"{name}.attn1.{layer}").unflatten(-1, (heads, -1)).transpose(1, 2)
            for one, layer in ((x, "to_q"), (seen, "to_k"), (seen, "to_v"))
        )
        weight = (q @ k.transpose(2, 3) / q.shape[-1] ** 0.5).softmax(-1)
        return self.linear((weight @ v).transpose(1, 2).flatten(2), f"{name}.attn1.to_out.0")

    def feed(self, x: Tensor, name: str) -> Tensor:
        return self.linear(F.gelu(self.linear(x, f"{name}.ff.net.0.proj"), approximate="tanh"), f"{name}.ff.net.2")

    def context(self, features: Tensor) -> Tensor:
        x, heads = self.norm(features, "vlln"), self.shape.context.num_attention_heads
        for number in range(self.shape.context.num_layers):
            name = f"vl_self_attention.transformer_blocks.{number}"
            normed = self.norm(x, f"{name}.norm1")
            x = x + self.attend(normed, normed, name, heads)
            x = x + self.feed(self.norm(x, f"{name}.norm3"), name)
        return x

    def state(self, state: Tensor) -> Tensor:
        return self.own(F.relu(self.own(state[:, None], "state_encoder.layer1")), "state_encoder.layer2")

    def velocity(self, x: Tensor, t: float, state: Tensor, context: Tensor) -> Tensor:
        bucket, width = int(t * self.shape.num_timestep_buckets), self.shape.input_embedding_dim
        angle = bucket * torch.tensor([math.exp(-i * math.log(1e4) / (width // 2)) for i in range(width // 2)])
        tau = torch.cat([angle.sin(), angle.cos()]).expand(*x.shape[:2], -1)
        inner = torch.cat([self.own(x, "action_encoder.W1"), tau], -1)
        actions = self.own(F.silu(self.own(inner, "action_encoder.W2")), "action_encoder.W3")
        actions = actions + self.w["position_embedding.weight"][: x.shape[1]]
        tokens = torch.cat([state, self.w["future_tokens.weight"].expand(len(x), -1, -1), actions], 1)
        angle = bucket * torch.tensor([math.exp(-i * math.log(1e4) / 127) for i in range(128)])
        name = "model.timestep_encoder.timestep_embedder"
        time = self.linear(torch.cat([angle.cos(), angle.sin()])[None], f"{name}.linear_1")
        time = F.silu(self.linear(F.silu(time), f"{name}.linear_2"))
        heads = self.shape.diffusion.num_attention_heads
        for number in range(self.shape.diffusion.num_layers):
            name = f"model.transformer_blocks.{number}"
            scale, shift = self.linear(time, f"{name}.norm1.linear").chunk(2, -1)
            normed = F.layer_norm(tokens, tokens.shape[-1:], eps=1e-5) * (1 + scale) + shift
            tokens = tokens + self.attend(normed, normed if number % 2 else context, name, heads)
            tokens = tokens + self.feed(F.layer_norm(tokens, tokens.shape[-1:], eps=1e-5), name)
        shift, scale = self.linear(time, "model.proj_out_1").chunk(2, -1)
        tokens = F.layer_norm(tokens, tokens.shape[-1:], eps=1e-6) * (1 + scale) + shift
        features = self.linear(tokens[:, -x.shape[1] :], "model.proj_out_2")
        return self.own(F.relu(self.own(features, "action_decoder.layer1")), "action_decoder.layer2")
