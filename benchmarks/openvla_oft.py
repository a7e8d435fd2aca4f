"""OpenVLA-OFT: time and memory of acting and training a chunk, against plain code and the arithmetic floor in one run.

    python benchmarks/openvla_oft.py --out results --machine "one H200"      # full size, random weights made on the GPU
    python benchmarks/openvla_oft.py --out /tmp/oft --tiny                   # the same code on a CPU, in a minute

Plain code is what one writes first: transformers' Llama with peft, timm's towers, logits over the whole vocabulary at all
positions; it shares this model's weights in memory. Weights are random, so nothing here says anything about success.
Parts: ``inference``, ``training``, ``numerics``, ``graphs``, ``kernels``; ``--parts`` picks some.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import model_parts
import torch
from model_parts import DEVICE, Call, matmul_flops, peak_gib, profiled, replay, timed
from torch import Tensor, nn

from rlvla.batch import ObservationBatch
from rlvla.networks.graphs import Graphs
from rlvla.networks.linear import without_adapters
from rlvla.noise import Noise
from rlvla.simulator import Observation
from rlvla.specs import ActionPart, AlgorithmSpec, Camera, SimulatorSpec, StatePart, TaskSpec
from rlvla.weights import acting_copy, copy_into, snapshot
from rlvla_model_openvla_oft import OpenVlaOftConfig, adaptable, tiny
from rlvla_model_openvla_oft.header import DINO, SIGLIP, Header, LlamaShape, TowerShape
from rlvla_model_openvla_oft.model import OpenVlaOftModel

TEXT = "pick up the black bowl between the plate and the ramekin and place it on the plate"


# ---- what is measured -------------------------------------------------------------------------------------------------


def make_model(folder: Path, options: argparse.Namespace, **changes: Any) -> OpenVlaOftModel:
    """Return the model with random weights, adapters that matter, and a value head."""
    sizes: dict[str, Any] = {"llama": LlamaShape(vocab_size=32064), "dino": DINO, "siglip": SIGLIP, "image_size": 224}
    if options.tiny:
        sizes = {}
    place = tiny.write(folder / "checkpoint", weights=False, data_sets=("random",), **sizes)
    roles: tuple[Any, ...] = ("primary", "wrist")[: options.cameras]
    config = OpenVlaOftConfig(path=str(place), cameras=roles, preset="rlinf", **changes)
    simulator = SimulatorSpec(
        cameras=tuple(Camera(role, 256, 256, role) for role in roles),
        state=(StatePart("joints", 8),),
        action=(ActionPart("pose", 6), ActionPart("gripper", 1, "gripper", closes_at="high")),
        control_hz=20.0,
        max_episode_steps=128,
        tasks=(TaskSpec("task"),),
    )
    algorithm = AlgorithmSpec("window", credit_level="chunk", ratio_level="token", values=True)
    model = OpenVlaOftModel(config, simulator, algorithm, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.copy_(0.02 * torch.randn(parameter.shape, generator=generator))
    return model


def observation(model: OpenVlaOftModel, rows: int) -> ObservationBatch:
    """Return random pictures and one instruction of a common length."""
    generator = torch.Generator().manual_seed(rows)
    images = {
        role: torch.randint(0, 256, (rows, 256, 256, 3), generator=generator).to(torch.uint8).numpy()
        for role in model.config.cameras
    }
    return ObservationBatch.of(Observation(images, torch.zeros(rows, 8).numpy(), [TEXT] * rows), 128)


class Plain(nn.Module):
    """The same network from transformers' and timm's classes, on the same weights."""

    def __init__(self, model: OpenVlaOftModel, adapters: bool = False) -> None:
        super().__init__()
        self.ours = model.network
        self.llama = self._llama(model.header, model)
        self.llama.requires_grad_(False)
        if adapters:
            from peft import LoraConfig, get_peft_model

            config = LoraConfig(r=model._lora.r, lora_alpha=32, target_modules=[*adaptable(model.header).language])
            self.llama = get_peft_model(self.llama, config)
            self.llama.to(model.network.dtype)
        self.towers, self.kind = self._towers(model)

    @staticmethod
    def _llama(header: Header, model: OpenVlaOftModel) -> Any:
        from transformers import LlamaConfig, LlamaForCausalLM

        shape = asdict(header.llama)
        config = LlamaConfig(**{name: shape[name] for name in shape if name != "rope_theta"}, is_causal=False)
        config._attn_implementation = "sdpa"
        with torch.device("meta"):
            llama = LlamaForCausalLM(config)
        weights = {
            name.replace(".base_layer.", "."): one
            for name, one in model.network.language_model.state_dict().items()
            if ".lora_" not in name
        }
        llama.load_state_dict(weights, assign=True)
        for layer in llama.model.layers:  # what releases without the config's own switch look at
            layer.self_attn.is_causal = False
        llama.model.rotary_emb = type(llama.model.rotary_emb)(config).to(DEVICE)  # its buffers are in no checkpoint
        return llama.eval()

    def _towers(self, model: OpenVlaOftModel) -> tuple[list[Callable[[Tensor], Tensor]], str]:
        backbone, full = model.network.vision_backbone, model.header.dino == DINO
        try:
            import timm
        except ImportError:
            timm = None
        if timm is None or not full:
            return [backbone.featurizer, backbone.fused_featurizer], "this package's, not fused"
        found: list[Callable[[Tensor], Tensor]] = []
        names = {
            "featurizer": "vit_large_patch14_reg4_dinov2.lvd142m",
            "fused_featurizer": "vit_so400m_patch14_siglip_224",
        }
        for part, name in names.items():
            with torch.device("meta"):
                tower = timm.create_model(name, pretrained=False, num_classes=0, img_size=224)
            weights = getattr(backbone, part).state_dict()
            tower.load_state_dict(
                {key.replace("scale_factor", "gamma"): one for key, one in weights.items()}, assign=True
            )
            tower.eval().requires_grad_(False)
            number = len(tower.blocks) - 2
            found.append(lambda x, tower=tower, number=number: tower.get_intermediate_layers(x, n={number})[0])
        return found, "timm's"

    def logits(self, inputs: Any) -> Tensor:
        """Return logits over the whole vocabulary at all positions."""
        with torch.no_grad():
            scaled = inputs["pictures"].flatten(0, 1).float() / 255
            seen = torch.cat([tower((scaled - 0.5).div(0.5).to(self.ours.dtype)) for tower in self.towers], -1)
            seen = self.ours.projector(seen).unflatten(0, inputs["pictures"].shape[:2]).flatten(1, 2)
            words = self.ours.language_model.model.embed_tokens(inputs["ids"])
            slots = words.new_zeros(len(words), self.ours.layout.slots, words.shape[-1])
            x = torch.cat([words[:, :1], seen, words[:, 1:], slots], 1)
        return self.llama(inputs_embeds=x, use_cache=False).logits  # type: ignore[no-any-return]

    def chunk(self, inputs: Any) -> Tensor:
        """Return log-probs of the likeliest token of each slot."""
        slots = self.ours.layout.slots
        return self.logits(inputs)[:, -slots - 1 : -1, 31744:32000].float().log_softmax(-1).amax(-1)


# ---- clocks and floors ------------------------------------------------------------------------------------------------


def flops(header: Header, prompt: int, cameras: int, slots: int) -> dict[str, float]:
    """Return floating-point operations of one chunk's forward pass, by part; attention included."""
    patches = (header.image_size // 14) ** 2
    length, llama = patches * cameras + prompt + slots, header.llama
    width, hidden = llama.hidden_size, llama.intermediate_size

    def block(tokens: int, shape: TowerShape) -> float:
        return 2 * tokens * (4 * shape.width**2 + 2 * shape.width * shape.mlp) + 4 * tokens**2 * shape.width

    dino = block(patches + 5, header.dino) * (header.dino.depth - 1) + 2 * patches * 588 * header.dino.width
    siglip = block(patches, header.siglip) * (header.siglip.depth - 1) + 2 * patches * 588 * header.siglip.width
    vision = header.dino.width + header.siglip.width
    projector = 2 * patches * (4 * vision**2 + 4 * vision * width + width**2)
    layer = 2 * length * (4 * width**2 + 3 * width * hidden) + 4 * length**2 * width
    return {
        "vision": cameras * (dino + siglip),
        "projector": cameras * projector,
        "llama": llama.num_hidden_layers * layer,
    }


def floors(model: OpenVlaOftModel, options: argparse.Namespace) -> dict[str, Any]:
    """Return the machine's rates and what they allow at best, milliseconds a chunk."""
    prompt, layout, header = len(model.prompts.ids(TEXT)), model.network.layout, model.header
    parts = flops(header, prompt, options.cameras, layout.slots)
    rows = options.batches[-1] * (model.network.vision_backbone.patches * options.cameras + prompt + layout.slots)
    width, hidden = header.llama.hidden_size, header.llama.intermediate_size
    side = 8192 if DEVICE.type == "cuda" else 256
    shapes = {"qkv": (3 * width, width), "o": (width, width), "gate+up": (2 * hidden, width), "down": (width, hidden)}
    rates = {name: matmul_flops(rows, *size, options.repeats) for name, size in shapes.items()}
    rate = matmul_flops(side, side, side, options.repeats)
    work = {name: 2 * columns * inner for name, (columns, inner) in shapes.items()}
    seconds = header.llama.num_hidden_layers * rows / options.batches[-1] * sum(work[n] / rates[n] for n in shapes)
    forward = sum(parts.values())
    return {
        "prompt_tokens": prompt,
        "tokens": rows // options.batches[-1],
        "flops": parts,
        "matmul_tflops": rate / 1e12,
        "shape_tflops": {name: one / 1e12 for name, one in rates.items()},
        "inference_ms": forward / rate * 1e3,
        "inference_at_shape_rates_ms": (seconds + (parts["vision"] + parts["projector"]) / rate) * 1e3,
        "lora_training_ms": (2 * parts["llama"] + parts["vision"] + parts["projector"]) / rate * 1e3,
        "lora_training_recomputed_ms": (3 * parts["llama"] + parts["vision"] + parts["projector"]) / rate * 1e3,
    }


# ---- parts ------------------------------------------------------------------------------------------------------------


def inference(model: OpenVlaOftModel, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Time a chunk: plain code, this network eager, compiled, by graph, with adapters, and all of ``act``."""
    rows_ms, plain, in_fp8 = [], Plain(model), fp8_copy(model)
    for batch in options.batches:
        inputs = model.preprocess(observation(model, batch))
        words = (inputs["pictures"], inputs["ids"], None, None)

        def ms(call: Call, batch: int = batch) -> float:
            return timed(call, options.repeats) / batch * 1e3

        line: dict[str, Any] = {"batch": batch, "plain_towers": plain.kind}
        with torch.no_grad():
            line["plain_ms"] = ms(lambda inputs=inputs: plain.chunk(inputs))
            model.network.fuse = False
            with without_adapters():
                line["eager_ms"] = ms(lambda words=words: model._forward(*words))
            model.network.fuse = True
            with without_adapters():
                line["fused_ms"] = ms(lambda words=words: model._forward(*words))
                line["graph_ms"] = graph_ms(model, words)
            line["with_adapters_ms"] = ms(lambda words=words: model._forward(*words))
            line["graph_with_adapters_ms"] = graph_ms(model, words)
            if in_fp8 is not None:
                with without_adapters():
                    line["fp8_ms"] = ms(lambda words=words: in_fp8._forward(*words))
                    line["fp8_graph_ms"] = graph_ms(in_fp8, words)
                line["fp8_with_adapters_ms"] = ms(lambda words=words: in_fp8._forward(*words))
                line["fp8_graph_with_adapters_ms"] = graph_ms(in_fp8, words)
            line["vision_ms"] = ms(lambda inputs=inputs: model.network.see(inputs["pictures"]))
            seen, noise = observation(model, batch), Noise(torch.arange(batch, device=DEVICE))
            line["act_ms"] = ms(lambda seen=seen, noise=noise: model.act(model.preprocess(seen), noise))
            line["peak_gib"] = peak_gib(lambda words=words: model._forward(*words))
        model._graphs.clear()
        rows_ms.append(line)
    return rows_ms


def graph_ms(model: OpenVlaOftModel, words: tuple[Any, ...]) -> float | None:
    """Return milliseconds a chunk of a replayed graph; None where there are none."""
    if DEVICE.type != "cuda":
        return None
    graphs = Graphs(model._forward)
    for _ in range(3):
        graphs(*words)
    (timing,) = graphs.timings
    return timing.graph_ms / len(words[1])


def fp8_copy(model: OpenVlaOftModel) -> OpenVlaOftModel | None:
    """Return a copy that acts in FP8; None where the GPU cannot multiply it."""
    if DEVICE.type == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        return None
    acting: Any = acting_copy(model)
    acting.network.quantise()
    return acting  # type: ignore[no-any-return]


def training(model: OpenVlaOftModel, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Time a forward and backward pass of LoRA: plain code, this one with and without kept pictures, recomputing."""
    lines, plain = [], Plain(model, adapters=True)
    stack = model.network.language_model.model
    for batch in [one for one in options.batches if one <= options.train_batch]:
        inputs = model.preprocess(observation(model, batch))
        with torch.no_grad():
            replay = model.act(inputs, Noise(torch.arange(batch, device=DEVICE))).replay
        without = replay.exclude("vision")
        line: dict[str, Any] = {"batch": batch}

        def plain_step(inputs: Any = inputs) -> None:
            (-plain.chunk(inputs).mean()).backward()

        def step(replay: Any, inputs: Any = inputs) -> None:
            evaluation = model.evaluate(inputs, replay)
            (-evaluation.logp.mean() + evaluation.value.square().mean()).backward()

        variants: dict[str, tuple[Call, bool]] = {
            "plain": (plain_step, False),
            "ours": (lambda without=without, step=step: step(without), False),
            "ours_kept_vision": (lambda replay=replay, step=step: step(replay), False),
            "ours_recomputed": (lambda without=without, step=step: step(without), True),
        }
        for name, (call, recompute) in variants.items():
            stack.recompute(recompute)
            try:
                line[f"{name}_ms"] = timed(call, options.repeats) / batch * 1e3
                line[f"{name}_peak_gib"] = peak_gib(call)
            except torch.cuda.OutOfMemoryError:
                line[f"{name}_ms"] = None
            for one in (model, plain):
                one.zero_grad(set_to_none=True)
        stack.recompute(False)
        lines.append(line)
    return lines


def numerics(model: OpenVlaOftModel, options: argparse.Namespace) -> dict[str, Any]:
    """Compare logits of the fast path and of plain code in bf16 with the same weights in fp32."""
    batch = min(8, options.batches[-1])
    torch.backends.cudnn.allow_tf32 = False  # the reference is fp32 all through
    inputs = model.preprocess(observation(model, batch))
    plain = Plain(model)
    with torch.no_grad():
        fast = {}
        for name, context in (("without", without_adapters()), ("with", nullcontext())):
            with context:
                fast[name] = model._forward(inputs["pictures"], inputs["ids"], None, None)[1]
        in_fp8 = fp8_copy(model)
        if in_fp8 is not None:
            fast["fp8"] = in_fp8._forward(inputs["pictures"], inputs["ids"], None, None)[1]
        del in_fp8
        slots = model.network.layout.slots
        # plain code normalises pictures alike for both towers, so it gets the fast path's picture tokens
        plainly = plain_logits(plain, model, inputs)[:, -slots - 1 : -1, 31744:32000].float()
        reference = copy.deepcopy(model.network).float()
        reference.dtype, reference.fuse = torch.float32, False
        wanted = {}
        for name, context in (("without", without_adapters()), ("with", nullcontext())):
            with context:
                seen = reference.see(inputs["pictures"])
                wanted[name] = reference.logits(reference(seen, inputs["ids"], None, None))
        del reference

    def error(logits: Tensor, exact: Tensor) -> float:
        return float((logits - exact).square().mean().sqrt())

    found: dict[str, Any] = {"plain_rms": error(plainly, wanted["without"])}
    found["fast_rms"] = error(fast["without"], wanted["without"])
    found["fast_over_plain"] = found["fast_rms"] / found["plain_rms"]
    found["fast_with_adapters_rms"] = error(fast["with"], wanted["with"])
    if "fp8" in fast:
        found["fp8_with_adapters_rms"] = error(fast["fp8"], wanted["with"])
        gap = fast["fp8"].log_softmax(-1) - fast["with"].log_softmax(-1)
        found["fp8_log_prob_gap_to_bf16"] = float((gap.abs() * fast["fp8"].softmax(-1)).sum(-1).mean())
    found["logits_rms"] = float(wanted["without"].square().mean().sqrt())
    top = wanted["without"].topk(2, -1).values
    clear = (top[..., 0] - top[..., 1]) > 4 * found["fast_rms"]
    agrees = fast["without"].argmax(-1) == wanted["without"].argmax(-1)
    found |= {"clear": int(clear.sum()), "clear_that_agree": int((clear & agrees).sum()), "tokens": clear.numel()}
    found["all_that_agree"] = int(agrees.sum())
    return found


def plain_logits(plain: Plain, model: OpenVlaOftModel, inputs: Any) -> Tensor:
    """Return the plain language model's logits on the fast path's picture tokens."""
    network = model.network
    words = network.language_model.model.embed_tokens(inputs["ids"])
    slots = words.new_zeros(len(words), network.layout.slots, words.shape[-1])
    x = torch.cat([words[:, :1], network.see(inputs["pictures"]), words[:, 1:], slots], 1)
    return plain.llama(inputs_embeds=x, use_cache=False).logits  # type: ignore[no-any-return]


def graphs(model: OpenVlaOftModel, options: argparse.Namespace) -> dict[str, Any]:
    """Publish weights three times and compare a replayed graph with calling, each time."""
    acting = acting_copy(model)
    inputs = model.preprocess(observation(model, min(4, options.batches[-1])))
    words = (inputs["pictures"], inputs["ids"], None, None)
    replayed, differences, changes, last = Graphs(acting._forward), [], [], None
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for version in range(4):
            if version:
                for parameter in model.trainable().values():
                    parameter.add_(0.01 * torch.randn(parameter.shape, generator=generator).to(DEVICE))
                copy_into(acting, snapshot(model))
                acting.weights_changed(version)
            for _ in range(3):
                called = acting._forward(*words)[1]
                again = replay(replayed, words)[1]
            differences.append(float((called - again).abs().max()))
            changes.append(float((called - last).abs().max()) if last is not None else None)
            last = called
    return {
        "largest_difference": differences,
        "change_by_publication": changes,
        "timings": [asdict(t) for t in replayed.timings],
    }


def kernels(model: OpenVlaOftModel, options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Return which kernels the time goes to, for one acting and one training call of the largest batches."""
    found = {}
    batch = options.batches[-1]
    inputs = model.preprocess(observation(model, batch))
    words = (inputs["pictures"], inputs["ids"], None, None)

    def acting() -> None:
        with torch.no_grad(), without_adapters():
            model._forward(*words)

    found[f"inference, batch {batch}"] = profiled(acting, options.top)
    batch = min(batch, options.train_batch)
    inputs = model.preprocess(observation(model, batch))
    with torch.no_grad():
        played = model.act(inputs, Noise(torch.arange(batch, device=DEVICE))).replay.exclude("vision")

    def learning() -> None:
        (-model.evaluate(inputs, played).logp.mean()).backward()
        model.zero_grad(set_to_none=True)

    found[f"LoRA training, batch {batch}"] = profiled(learning, options.top)
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
    parser = model_parts.options(__doc__, "openvla_oft", tuple(PARTS))
    parser.add_argument("--train-batch", type=int, default=None, help="most rows of a training call")
    parser.add_argument("--cameras", type=int, choices=(1, 2), default=1)
    chosen = parser.parse_args()
    model_parts.check(parser, chosen, PARTS)
    chosen.train_batch = chosen.train_batch or chosen.batches[-1]
    model_parts.measure("openvla_oft", "OpenVLA-OFT", chosen, lambda folder: make_model(folder, chosen), floors, PARTS)


if __name__ == "__main__":
    main()
