"""GR00T N1.5: time and memory of acting and training a chunk, against plain code and the arithmetic floor in one run.

    python benchmarks/gr00t.py --out results --machine "one H200"      # full size, random weights made on the GPU
    python benchmarks/gr00t.py --out results --parts inference,training --batches 1 32 --train-batches 64 128   # the targets
    python benchmarks/gr00t.py --out /tmp/gr00t --tiny                 # the same code on a CPU, in a minute

Plain code is what one writes first: transformers' SigLIP and Qwen3 under eager mode, embodiment weights gathered for each
sample, keys and values of the context made again in every denoising step, the backbone computed again in training; it
shares this model's weights in memory. Weights are random, so nothing here says anything about success.
Parts: ``inference``, ``training``, ``numerics``, ``graphs``, ``kernels``; ``--parts`` picks some.
"""

from __future__ import annotations

import argparse
import copy
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import model_parts
import torch
import torch.nn.functional as F
from model_parts import DEVICE, Call, matmul_flops, peak_gib, profiled, replay, timed
from torch import Tensor, nn

from rlvla.batch import ObservationBatch
from rlvla.networks.graphs import Graphs
from rlvla.noise import Noise
from rlvla.simulator import Observation
from rlvla.specs import ActionPart, AlgorithmSpec, Camera, SimulatorSpec, StatePart, TaskSpec
from rlvla.weights import acting_copy, copy_into, snapshot
from rlvla_model_gr00t import Gr00tConfig, tiny
from rlvla_model_gr00t.header import Header, HeadShape, QwenShape, SiglipShape
from rlvla_model_gr00t.model import Gr00tModel

TEXT = "pick up the black bowl between the plate and the ramekin and place it on the plate"


# ---- what is measured -------------------------------------------------------------------------------------------------


def make_model(folder: Path, options: argparse.Namespace, **changes: Any) -> Gr00tModel:
    """Return the model with random weights and a value head, as training holds it: the head in fp32."""
    sizes: dict[str, Any] = {} if options.tiny else {"siglip": SiglipShape(), "qwen": QwenShape(), "head": HeadShape()}
    place = tiny.write(folder / "checkpoint", weights=False, tags=("gr1",), cameras=options.cameras, **sizes)
    roles: tuple[Any, ...] = ("primary", "wrist", "secondary")[: options.cameras]
    width = {"pad_to": 128} if options.tiny else {}
    config = Gr00tConfig(path=str(place), cameras=roles, horizon=10, **{"keep_features": 4096, **width, **changes})
    simulator = SimulatorSpec(
        cameras=tuple(Camera(role, 256, 256, role) for role in roles),
        state=(StatePart("pose", 8),),
        action=(ActionPart("pose", 6), ActionPart("gripper", 1, "gripper", closes_at="high")),
        control_hz=20.0,
        max_episode_steps=240,
        tasks=(TaskSpec("task"),),
    )
    algorithm = AlgorithmSpec("window", credit_level="chunk", ratio_level="chunk", values=True)
    return Gr00tModel(config, simulator, algorithm, generator=torch.Generator().manual_seed(0)).to(DEVICE)


def observation(model: Gr00tModel, rows: int) -> ObservationBatch:
    """Return random pictures and one instruction of a common length."""
    generator = torch.Generator().manual_seed(rows)
    images = {
        role: torch.randint(0, 256, (rows, 256, 256, 3), generator=generator).to(torch.uint8).numpy()
        for role in model.config.cameras
    }
    state = torch.randn(rows, 8, generator=generator).numpy()
    return ObservationBatch.of(Observation(images, state, [TEXT] * rows), 128)


def noise(rows: int) -> Noise:
    return Noise(torch.arange(rows, device=DEVICE))


def prepared(model: Gr00tModel, seen: ObservationBatch) -> Any:
    """Return the model's inputs, and pictures as its tower sees them, on the device."""
    inputs = model.preprocess(seen)
    inputs["pictures"] = model._pictures(inputs)
    return inputs


def words_of(model: Gr00tModel, inputs: Any) -> tuple[Tensor, ...]:
    """Return what the model's forward pass takes, with noise drawn."""
    drawn = model._draw(len(inputs), noise(len(inputs)), greedy=False)
    return (inputs["pictures"], inputs["ids"], inputs["there"], inputs["state"], *drawn.values())


class Plain:
    """The same network, written plainly, on the same weights.

    Args:
        model: in the precision of acting (bf16) or of training (the head in fp32, products by autocast).
    """

    def __init__(self, model: Gr00tModel) -> None:
        self.model, self.head = model, model.network.action_head
        self.shape, self.layout = model.header.head, model.network.layout
        self.vision, self.language = self._backbone(model)
        embodiments = self.shape.max_num_embodiments
        self.tables = {
            name: nn.Parameter(one.detach()[None].repeat(embodiments, *[1] * one.ndim), one.requires_grad)
            for name, one in self.head.named_parameters()
            if name.startswith(("state_encoder", "action_encoder", "action_decoder"))
        }

    @staticmethod
    def _backbone(model: Gr00tModel) -> tuple[Any, Any]:
        from transformers import Qwen3Config, Qwen3Model, SiglipVisionConfig, SiglipVisionModel

        eagle, siglip, qwen = model.network.backbone.eagle_model, model.header.siglip, model.header.qwen
        vision_config = SiglipVisionConfig(**asdict(siglip), hidden_act="gelu_pytorch_tanh")
        text_config = Qwen3Config(**asdict(qwen), tie_word_embeddings=True)
        made = []
        for kind, config, weights in (
            (SiglipVisionModel, vision_config, eagle.vision_model.state_dict()),
            (Qwen3Model, text_config, eagle.language_model.model.state_dict()),
        ):
            config._attn_implementation = "sdpa"
            with torch.device("meta"):
                one = kind(config)
            there = one.state_dict()
            if not set(weights) & set(there):  # releases differ in the first part of the tower's names
                weights = {name.removeprefix("vision_model."): tensor for name, tensor in weights.items()}
            one.load_state_dict({name: weights[name] for name in there}, assign=True)
            made.append(one.eval())
        made[1].rotary_emb = type(made[1].rotary_emb)(text_config).to(DEVICE)  # its buffers are in no checkpoint
        embeddings = made[0].vision_model.embeddings if hasattr(made[0], "vision_model") else made[0].embeddings
        embeddings.position_ids = torch.arange(siglip.tokens, device=DEVICE)[None]
        return made[0], made[1]

    def features(self, inputs: Any) -> Tensor:
        dtype, eagle = self.model.network.dtype, self.model.network.backbone.eagle_model
        pictures = (inputs["pictures"].flatten(0, 1).float() / 255 - 0.5) / 0.5
        seen = eagle.mlp1(self.vision(pixel_values=pictures.to(dtype)).last_hidden_state)
        embedded = self.language.embed_tokens(inputs["ids"])
        pieces = (inputs["ids"] == self.model.header.image_token)[..., None]
        embedded = embedded.masked_scatter(pieces, seen.reshape(-1, seen.shape[-1]))
        mask = inputs["there"].long()
        return self.language(inputs_embeds=embedded, attention_mask=mask, use_cache=False).last_hidden_state  # type: ignore[no-any-return]

    def _embodied(self, x: Tensor, name: str, e_N: Tensor) -> Tensor:
        weight, bias = self.tables[f"{name}.W"][e_N], self.tables[f"{name}.b"][e_N]
        return torch.baddbmm(bias[:, None].to(x.dtype), x, weight.to(x.dtype))

    def _attend(self, block: Any, normed: Tensor, context: Tensor) -> Tensor:
        attention, heads = block.attn1, block.attn1._heads
        q, k, v = (
            layer(one).unflatten(-1, (heads, -1)).transpose(1, 2)
            for layer, one in ((attention.to_q, normed), (attention.to_k, context), (attention.to_v, context))
        )
        return attention.to_out[0](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    @staticmethod
    def _forward_feed(block: Any, x: Tensor) -> Tensor:
        return block.ff.net[2](F.gelu(block.ff.net[0].proj(x), approximate="tanh"))  # type: ignore[no-any-return]

    def context(self, features: Tensor) -> Tensor:
        x = self.head.vlln(features)
        for block in self.head.vl_self_attention.transformer_blocks:
            normed = block.norm1(x)
            x = x + self._attend(block, normed, normed)
            x = x + self._forward_feed(block, block.norm3(x))
        return x

    def velocity(self, x: Tensor, state: Tensor, context: Tensor, bucket_N: Tensor, e_N: Tensor) -> Tensor:
        head, dtype = self.head, context.dtype
        horizon, width = x.shape[1], self.shape.input_embedding_dim
        rate = torch.exp(torch.arange(width // 2, device=DEVICE) * (-math.log(1e4) / (width // 2)))
        angle = bucket_N.float()[:, None, None] * rate
        waves = torch.cat([angle.sin(), angle.cos()], -1).expand(-1, horizon, -1).to(dtype)
        inner = self._embodied(x.to(dtype), "action_encoder.W1", e_N)
        inner = F.silu(self._embodied(torch.cat([inner, waves], -1), "action_encoder.W2", e_N))
        actions = self._embodied(inner, "action_encoder.W3", e_N) + head.position_embedding.weight[:horizon].to(dtype)
        tokens = torch.cat([state, head.future_tokens.weight.to(dtype).expand(len(x), -1, -1), actions], 1)
        rate = torch.exp(torch.arange(128, device=DEVICE) * (-math.log(1e4) / 127))
        angle = bucket_N.float()[:, None] * rate
        steps = head.model.timestep_encoder.timestep_embedder
        time_features = steps.linear_2(F.silu(steps.linear_1(torch.cat([angle.cos(), angle.sin()], -1).to(dtype))))
        for number, block in enumerate(head.model.transformer_blocks):
            scale, shift = block.norm1.linear(F.silu(time_features)).chunk(2, 1)
            normed = F.layer_norm(tokens, tokens.shape[-1:], eps=1e-5) * (1 + scale[:, None]) + shift[:, None]
            tokens = tokens + self._attend(block, normed, normed if number % 2 else context)
            tokens = tokens + self._forward_feed(block, F.layer_norm(tokens, tokens.shape[-1:], eps=1e-5))
        shift, scale = head.model.proj_out_1(F.silu(time_features)).chunk(2, 1)
        tokens = F.layer_norm(tokens, tokens.shape[-1:], eps=1e-6) * (1 + scale[:, None]) + shift[:, None]
        hidden = F.relu(self._embodied(head.model.proj_out_2(tokens)[:, -horizon:], "action_decoder.layer1", e_N))
        return self._embodied(hidden, "action_decoder.layer2", e_N)

    def _step(self, x: Tensor, velocity: Tensor, number: Tensor, level: float) -> tuple[Tensor, Tensor]:
        dt, t = 1 / self.layout.steps, (number.float() / self.layout.steps)[:, None, None]
        sigma = level * torch.sqrt((1 - t) / t.clamp_min(dt))
        start, end = x - velocity * t, x + velocity * (1 - t)
        return start * (1 - t - dt - sigma**2 * dt / (2 * (1 - t))) + end * (t + dt), sigma * dt**0.5

    def chunk(self, inputs: Any, start: Tensor, random: Tensor, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return a chunk, its log-prob, and its value."""
        e_N = torch.full((len(inputs),), 24, device=DEVICE)
        features = self.features(inputs)
        return self.from_features(features, inputs["state"], start, random, step, e_N)

    def _state(self, state_NS: Tensor, dtype: torch.dtype, e_N: Tensor) -> Tensor:
        inner = F.relu(self._embodied(state_NS[:, None].to(dtype), "state_encoder.layer1", e_N))
        return self._embodied(inner, "state_encoder.layer2", e_N)

    def _value(self, context: Tensor, state: Tensor) -> Tensor:
        with torch.autocast(DEVICE.type, enabled=False):
            return self.head.value_head(torch.cat([context.float().mean(1), state[:, 0].float()], -1))  # type: ignore[no-any-return]

    def from_features(
        self, features: Tensor, state_NS: Tensor, start: Tensor, random: Tensor, step: int, e_N: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        context, x = self.context(features), start
        state = self._state(state_NS, context.dtype, e_N)
        logp = None
        for number in range(self.layout.steps):
            numbers = torch.full((len(x),), number, device=DEVICE)
            buckets = (numbers / self.layout.steps * self.shape.num_timestep_buckets).long()
            velocity = self.velocity(x, state, context, buckets, e_N).float()
            if number == step:
                mean, std = self._step(x, velocity, numbers, self.model.config.noise_level)
                x = mean + std * random
                logp = torch.distributions.Normal(mean, std, validate_args=False).log_prob(x)
            else:
                x = x + velocity / self.layout.steps
        assert logp is not None
        return x, logp, self._value(context, state)

    def log_prob(self, inputs: Any, replay: Any) -> tuple[Tensor, Tensor]:
        """Return the recorded step's log-probs, and values, with gradients; the backbone is computed again."""
        e_N, step = torch.full((len(inputs),), 24, device=DEVICE), replay["step"]
        with torch.no_grad():
            features = self.features(inputs)
        context = self.context(features)
        state = self._state(inputs["state"], context.dtype, e_N)
        chain, buckets = replay["chain"], (step / self.layout.steps * self.shape.num_timestep_buckets).long()
        velocity = self.velocity(chain[:, 0], state, context, buckets, e_N).float()
        mean, std = self._step(chain[:, 0], velocity, step, self.model.config.noise_level)
        logp = torch.distributions.Normal(mean, std, validate_args=False).log_prob(chain[:, 1])
        return logp[:, :10, :7], self._value(context, state)


# ---- clocks and floors ------------------------------------------------------------------------------------------------


def flops(header: Header, tokens: int, cameras: int, steps: int) -> dict[str, float]:
    """Return floating-point operations of one chunk's forward pass, by part; attention included.

    Args:
        header: sizes.
        tokens: of a sequence, padding included.
        cameras: pictures of an observation.
        steps: denoising steps.
    """
    siglip, qwen, head = header.siglip, header.qwen, header.head

    def block(length: int, width: int, hidden: int) -> float:
        return 2 * length * (4 * width**2 + 2 * width * hidden) + 4 * length**2 * width

    vision = siglip.num_hidden_layers * block(siglip.tokens, siglip.hidden_size, siglip.intermediate_size)
    vision += 2 * siglip.tokens * (3 * siglip.patch_size**2 + qwen.hidden_size) * siglip.hidden_size
    query, keys = qwen.num_attention_heads * qwen.head_dim, qwen.num_key_value_heads * qwen.head_dim
    layer = 2 * tokens * qwen.hidden_size * (2 * query + 2 * keys + 3 * qwen.intermediate_size)
    layer += 4 * tokens**2 * query / 2  # causal
    width, seen = head.diffusion.width, head.backbone_embedding_dim
    length, layers = 1 + head.num_target_vision_tokens + head.action_horizon, head.diffusion.num_layers
    crossing, own = (layers + 1) // 2, layers // 2
    step = layers * 2 * length * (8 * width**2 + 2 * width**2) + own * (4 * length * width**2 + 4 * length**2 * width)
    step += crossing * 4 * length * tokens * width
    return {
        "vision": cameras * vision,
        "language": qwen.num_hidden_layers * layer,
        "context": head.context.num_layers * block(tokens, seen, 4 * seen),
        "keys_and_values": crossing * 4 * tokens * seen * width,
        "denoising": steps * step,
        "one_step": step,
    }


def floors(model: Gr00tModel, options: argparse.Namespace) -> dict[str, Any]:
    """Return the machine's rates and what they allow at best, milliseconds a chunk."""
    header, width = model.header, model.prompts._width or 0
    parts = flops(header, width, options.cameras, model.network.layout.steps)
    one_step = parts.pop("one_step")
    rows, side = options.batches[-1], 8192 if DEVICE.type == "cuda" else 256
    patches, words = rows * options.cameras * header.siglip.tokens, rows * width
    sizes = {
        "vision qkv": (patches, 3 * header.siglip.hidden_size, header.siglip.hidden_size),
        "vision up": (patches, header.siglip.intermediate_size, header.siglip.hidden_size),
        "language gate+up": (words, 2 * header.qwen.intermediate_size, header.qwen.hidden_size),
        "language down": (words, header.qwen.hidden_size, header.qwen.intermediate_size),
        "context up": (words, 4 * header.head.backbone_embedding_dim, header.head.backbone_embedding_dim),
        "keys and values": (words, 16 * header.head.input_embedding_dim, header.head.backbone_embedding_dim),
        "denoising up": (rows * 49, 4 * header.head.input_embedding_dim, header.head.input_embedding_dim),
    }
    rate = matmul_flops(side, side, side, options.repeats)
    head = parts["context"] + parts["keys_and_values"] + one_step
    return {
        "tokens": width,
        "real_tokens": len(model.prompts.ids(TEXT)),
        "tflop": {name: one / 1e12 for name, one in parts.items()},
        "matmul_tflops": rate / 1e12,
        "shape_tflops": {name: matmul_flops(*size, options.repeats) / 1e12 for name, size in sizes.items()},
        "inference_ms": sum(parts.values()) / rate * 1e3,
        "training_ms": 3 * head / rate * 1e3,
        "training_without_kept_features_ms": (3 * head + parts["vision"] + parts["language"]) / rate * 1e3,
        "gelu_up_ms": gelu_ms(patches, header, options.repeats),
    }


def gelu_ms(rows: int, header: Header, repeats: int) -> dict[str, float]:
    """Return milliseconds of the vision tower's first product with its GELU: apart, and within the product."""
    if DEVICE.type != "cuda":
        return {}
    width, hidden = header.siglip.hidden_size, header.siglip.intermediate_size
    x = torch.randn(rows, width, device=DEVICE, dtype=torch.bfloat16)
    weight, bias = (
        torch.randn(hidden, width, device=DEVICE, dtype=x.dtype),
        torch.zeros(hidden, device=DEVICE, dtype=x.dtype),
    )
    apart = timed(lambda: F.gelu(F.linear(x, weight, bias), approximate="tanh"), repeats)
    within = timed(lambda: torch._addmm_activation(bias, x, weight.T, use_gelu=True), repeats)
    return {"apart": apart * 1e3, "within": within * 1e3}


# ---- parts ------------------------------------------------------------------------------------------------------------


def acting(model: Gr00tModel) -> Gr00tModel:
    """Return a copy as the generator has it: all in bf16 but what stays exact."""
    made: Any = acting_copy(model)
    made.eval().requires_grad_(False)
    made.weights_changed(0)
    return made  # type: ignore[no-any-return]


def inference(model: Gr00tModel, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Time a chunk: plain code, this network eager, compiled, by graph, and all of ``act``."""
    lines, policy = [], acting(model)
    plain, network = Plain(policy), policy.network
    for batch in reversed(options.batches):  # kernels are tuned to the first batch that they see
        seen = observation(policy, batch)
        inputs = prepared(policy, seen)
        words = words_of(policy, inputs)
        start, random = words[4], words[5][:, 0]

        def ms(call: Call, batch: int = batch) -> float:
            return timed(call, options.repeats) / batch * 1e3

        line: dict[str, Any] = {"batch": batch}
        with torch.no_grad():
            line["plain_ms"] = ms(lambda i=inputs, s=start, r=random: plain.chunk(i, s, r, 1))
            policy.network.fuse = False
            line["eager_ms"] = ms(lambda words=words: policy._forward(*words))
            policy.network.fuse = True
            line["fused_ms"] = ms(lambda words=words: policy._forward(*words))
            if DEVICE.type == "cuda":
                by_graph = Graphs(policy._forward)
                for _ in range(3):
                    by_graph(*words)
                (timing,) = by_graph.timings
                line["graph_ms"] = timing.graph_ms / batch
                del by_graph
            line["fp8_language_ms"] = fp8_language_ms(model, words, options.repeats) / batch
            line["act_ms"] = ms(lambda seen=seen, n=batch: policy.act(policy.preprocess(seen), noise(n)))
            line["vision_ms"] = ms(
                lambda i=inputs: network.backbone.eagle_model.vision_model(
                    (i["pictures"].flatten(0, 1).float() / 127.5 - 1).to(network.dtype), network.run
                )
            )
            line["features_ms"] = ms(lambda i=inputs: network.features(i["pictures"], i["ids"], i["there"]))
            features = network.features(inputs["pictures"], inputs["ids"], inputs["there"])
            line["context_ms"] = ms(lambda f=features, i=inputs: network.seen(f, i["there"], i["state"]))
            line["value_ms"] = ms(lambda i=inputs: policy.value(i))
            line["peak_gib"] = peak_gib(lambda words=words: policy._forward(*words))
        policy._graphs.clear()
        lines.insert(0, line)
    return lines


def in_fp8(model: Gr00tModel) -> Gr00tModel:
    """Return an acting copy whose language model multiplies in FP8."""
    made = acting(model)
    made.network.quantise()
    return made


def fp8_language_ms(model: Gr00tModel, words: tuple[Tensor, ...], repeats: int) -> float:
    """Return milliseconds of a call whose language model multiplies in FP8; nan where the GPU cannot."""
    if DEVICE.type == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        return math.nan
    quantised = in_fp8(model)
    return 1e3 * timed(lambda: quantised._forward(*words), repeats)


def training(model: Gr00tModel, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Time a forward and backward pass of the head: plain code, this one with kept features and without."""
    lines, plain = [], Plain(model)
    optimizer = torch.optim.AdamW(model.trainable().values(), lr=0.0)
    for batch in reversed(options.train_batches):
        inputs = prepared(model, observation(model, batch))
        with torch.no_grad():
            replay = model.act(inputs, noise(batch)).replay
        without = replay.exclude("features")
        line: dict[str, Any] = {"batch": batch}

        def plain_step(inputs: Any = inputs, replay: Any = replay) -> None:
            with torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=model.config.dtype == "bf16"):
                logp, value = plain.log_prob(inputs, replay)
            (-logp.mean() + value.square().mean()).backward()

        def step(replay: Any, inputs: Any = inputs) -> None:
            evaluation = model.evaluate(inputs, replay)
            (-evaluation.logp.mean() + evaluation.value.square().mean()).backward()

        variants: dict[str, Call] = {
            "plain": plain_step,
            "ours_without_kept_features": lambda without=without, step=step: step(without),
            "ours": lambda replay=replay, step=step: step(replay),
        }
        for name, call in variants.items():
            try:
                line[f"{name}_ms"] = timed(call, options.repeats) / batch * 1e3
                line[f"{name}_peak_gib"] = peak_gib(call)
            except torch.cuda.OutOfMemoryError:
                line[f"{name}_ms"] = None
            for one in (*model.parameters(), *plain.tables.values()):
                one.grad = None
        lines.insert(0, line)
    variants["ours"]()
    for line in lines:
        line["optimizer_step_ms"] = timed(optimizer.step, options.repeats) * 1e3
        line["peak_with_optimizer_gib"] = peak_gib(optimizer.step)
    model.zero_grad(set_to_none=True)
    return lines


def numerics(model: Gr00tModel, options: argparse.Namespace) -> dict[str, Any]:
    """Compare features, actions and log-probs in bf16, fast and plain, with the same weights in fp32."""
    batch = min(8, options.batches[-1])
    torch.backends.cudnn.allow_tf32 = False  # the reference is fp32 all through
    policy = acting(model)
    inputs = prepared(policy, observation(policy, batch))
    words = words_of(policy, inputs)
    step = torch.full_like(words[6], 1)
    words = (*words[:6], step, *words[7:])
    real = inputs["there"]
    with torch.no_grad():
        fast = policy._forward(*words)
        plain = Plain(policy)
        plain_features = plain.features(inputs)
        e_N = torch.full((batch,), 24, device=DEVICE)
        plain_actions, _, _ = plain.from_features(fast[0], inputs["state"], words[4], words[5][:, 0], 1, e_N)
        reference = copy.deepcopy(model)
        reference.network.float()
        reference.network.dtype, reference.network.fuse = torch.float32, False
        exact = reference._forward(*words)
        seen = reference.network.seen(fast[0].float(), inputs["there"], inputs["state"])
        from_fast = reference.network.denoise(seen, *words[4:])
        mine = model._executed(reference.network.evaluate(seen, fast[2], step, words[7])[0])
        del reference

    def rms(one: Tensor, other: Tensor) -> float:
        return float((one.float() - other.float()).square().mean().sqrt())

    with torch.no_grad():
        quantised = in_fp8(model)._forward(*words)
    return {
        "features_rms": rms(exact[0][real], torch.zeros_like(exact[0][real])),
        "features_fast_rms": rms(fast[0][real], exact[0][real]),
        "features_plain_rms": rms(plain_features[real], exact[0][real]),
        "actions_rms": rms(exact[1], torch.zeros_like(exact[1])),
        "actions_fast_rms": rms(fast[1], exact[1]),
        "head_actions_fast_rms": rms(fast[1], from_fast.actions),
        "head_actions_plain_rms": rms(plain_actions, from_fast.actions),
        "head_logp_fast_rms": rms(fast[3], mine),
        "values_fast_rms": rms(fast[4], exact[4]),
        "features_fp8_rms": rms(quantised[0][real], exact[0][real]),
        "actions_fp8_rms": rms(quantised[1], exact[1]),
    }


def graphs(model: Gr00tModel, options: argparse.Namespace) -> dict[str, Any]:
    """Publish weights three times and compare a replayed graph with calling, each time."""
    policy = acting(model)
    inputs = prepared(policy, observation(policy, min(4, options.batches[-1])))
    words = words_of(policy, inputs)
    replayed, differences, changes, last = Graphs(policy._forward), [], [], None
    generator = torch.Generator(DEVICE).manual_seed(2)
    before = snapshot(model)
    with torch.no_grad():
        for version in range(4):
            if version:
                for parameter in model.trainable().values():
                    parameter.add_(0.003 * torch.randn(parameter.shape, generator=generator, device=DEVICE))
                copy_into(policy, snapshot(model))
                policy.weights_changed(version)
            for _ in range(3):
                called = policy._forward(*words)
                again = replay(replayed, words)
            differences.append(max(float((a - b).abs().max()) for a, b in zip(called, again, strict=True)))
            changes.append(float((called[1] - last).abs().max()) if last is not None else None)
            last = called[1]
    copy_into(model, before)
    return {
        "largest_difference": differences,
        "change_by_publication": changes,
        "timings": [asdict(one) for one in replayed.timings],
    }


def kernels(model: Gr00tModel, options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Return which kernels the time goes to, for one acting and one training call of the largest batches."""
    found, policy = {}, acting(model)
    for batch in {options.batches[0], options.batches[-1]}:
        inputs = prepared(policy, observation(policy, batch))
        words = words_of(policy, inputs)

        def one(words: Any = words) -> None:
            with torch.no_grad():
                policy._forward(*words)

        found[f"inference, batch {batch}"] = profiled(one, options.top)
    batch = min(128, options.train_batches[-1])
    inputs = prepared(model, observation(model, batch))
    with torch.no_grad():
        played = model.act(inputs, noise(batch)).replay

    def learning() -> None:
        evaluation = model.evaluate(inputs, played)
        (-evaluation.logp.mean() + evaluation.value.square().mean()).backward()
        model.zero_grad(set_to_none=True)

    found[f"training, batch {batch}"] = profiled(learning, options.top)
    return found


PARTS = {
    "inference": inference,
    "training": training,
    "numerics": numerics,
    "graphs": graphs,
    "kernels": kernels,
}


def main() -> None:
    """Measure what was asked for."""
    parser = model_parts.options(__doc__, "gr00t", tuple(PARTS))
    parser.add_argument("--train-batches", type=int, nargs="+", default=None, help="rows of a training call, ascending")
    parser.add_argument("--cameras", type=int, choices=(1, 2, 3), default=2)
    chosen = parser.parse_args()
    model_parts.check(parser, chosen, PARTS)
    chosen.train_batches = chosen.train_batches or ([2] if chosen.tiny else [32, 64, 128, 256])
    precision = {"dtype": "fp32"} if chosen.tiny else {}
    model_parts.measure(
        "gr00t", "GR00T N1.5", chosen, lambda folder: make_model(folder, chosen, **precision), floors, PARTS
    )


if __name__ == "__main__":
    main()
