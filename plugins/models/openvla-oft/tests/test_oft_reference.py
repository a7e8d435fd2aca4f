"""The whole model against plain code: timm's towers, transformers' Llama, peft's adapters, each row alone without padding.

The reference reads the files that the model wrote (adapter, value head) and the checkpoint below them. Of ours it takes
only pictures and states as they are prepared, which have tests of their own. Everything is fp32.

Letters: N rows, M cameras, H actions in a chunk, A action dimensions, T = H * A tokens, D features, B bins, V values.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import oft_worlds as worlds
import pytest
import timm
import torch
import torch.nn.functional as F
from peft import PeftModel
from safetensors.torch import load_file
from scipy import stats
from tensordict import TensorDict
from torch import Tensor, nn
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from rlvla.noise import Noise
from rlvla.rl.reductions import reduce_to_level
from rlvla_model_openvla_oft import tiny
from rlvla_model_openvla_oft.header import TowerShape

TOWERS = {"featurizer": "vit_large_patch14_reg4_dinov2.lvd142m", "fused_featurizer": "vit_so400m_patch14_siglip_224"}
COLOURS = {
    "featurizer": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "fused_featurizer": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
"""Means and deviations: ImageNet's, and a half."""
FIRST, LAST, BLANK, STOP = 31744, 32000, 29871, 2
"""Ids: of the first action token, after the last one, of the lone blank that ends a prompt, of the end of text."""
TEMPERATURE = 1.6

# ---- the reference ----------------------------------------------------------------------------------------------------


class Plain(nn.Module):
    """A checkpoint as the public libraries read it, with an adapter by peft where there is one."""

    def __init__(self, folder: Path, adapter: Path | None = None) -> None:
        super().__init__()
        config = json.loads((folder / "config.json").read_text())
        towers = config["rlvla_towers"]
        vision, width = sum(one["width"] for one in towers.values()), config["text_config"]["hidden_size"]
        self.vision_backbone = nn.ModuleDict(
            {name: tower(name, towers[name], config["image_sizes"][0]) for name in TOWERS}
        )
        self.projector = nn.ModuleDict(
            {"fc1": nn.Linear(vision, 4 * vision), "fc2": nn.Linear(4 * vision, width), "fc3": nn.Linear(width, width)}
        )
        self.language_model = LlamaForCausalLM(LlamaConfig(**config["text_config"], attn_implementation="eager"))
        stored = {name: one for file in folder.glob("model-*.safetensors") for name, one in load_file(file).items()}
        self.load_state_dict({name.replace("scale_factor", "gamma"): one.float() for name, one in stored.items()})
        self.requires_grad_(False)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.depths = {name: one["depth"] for name, one in towers.items()}
        if adapter is not None:
            PeftModel.from_pretrained(self, adapter, is_trainable=True)  # in place

    def see(self, pictures_M3HW: Tensor) -> Tensor:
        """Return ``[M * patches, D]``: features before the last block of each tower, beside each other, projected."""
        seen = []
        for name, one in self.vision_backbone.items():
            mean, std = (torch.tensor(numbers)[:, None, None] for numbers in COLOURS[name])
            scaled = (pictures_M3HW.float() / 255 - mean) / std
            seen += one.get_intermediate_layers(scaled, n={self.depths[name] - 2})
        x = F.gelu(self.projector["fc1"](torch.cat(seen, -1)))
        return self.projector["fc3"](F.gelu(self.projector["fc2"](x))).flatten(0, 1)

    def words(self, ids: list[int]) -> Tensor:
        return self.language_model.get_input_embeddings()(torch.tensor(ids, dtype=torch.long))

    def read(
        self, pictures_M3HW: Tensor, text: str, after_TD: Tensor, *, causal: bool, state_1D: Tensor | None = None
    ) -> Tensor:
        """Return features from the last prompt token on, ``[1 + T, D]``.

        Args:
            pictures_M3HW: uint8.
            text: the instruction.
            after_TD: what follows the prompt.
            causal: nothing sees what comes after it; else all see all.
            state_1D: the state's token.
        """
        prompt = f"In: What action should the robot take to {text.lower()}?\nOut:"
        words = self.words([*self.tokenizer(prompt)["input_ids"], BLANK])
        state = [] if state_1D is None else [state_1D]
        x = torch.cat([words[:1], self.see(pictures_M3HW), *state, words[1:], after_TD])
        mask = torch.zeros(len(x), len(x))
        if causal:
            mask = torch.full_like(mask, -torch.inf).triu(1)
        features = self.language_model.model(inputs_embeds=x[None], attention_mask=mask[None, None]).last_hidden_state
        return features[0, len(x) - len(after_TD) - 1 :]

    def slots(self, pictures_M3HW: Tensor, text: str, count: int, stop: bool, state_1D: Tensor | None = None) -> Tensor:
        """Return features that tokens decoded at once are read from, ``[T, D]``: each one position before its slot."""
        stop_D = self.words([STOP] * stop)
        after = torch.cat([stop_D.new_zeros(count, stop_D.shape[1]), stop_D])
        return self.read(pictures_M3HW, text, after, causal=False, state_1D=state_1D)[:count]

    def logits(self, features_TD: Tensor) -> Tensor:
        """Return ``[T, B]``, of the action tokens."""
        return self.language_model.lm_head(features_TD)[:, FIRST:LAST]


def tower(name: str, shape: dict[str, int], image_size: int) -> nn.Module:
    sizes = {"embed_dim": shape["width"], "depth": shape["depth"], "num_heads": shape["heads"]}
    ratio = shape["mlp"] / shape["width"]
    return timm.create_model(
        TOWERS[name], pretrained=False, num_classes=0, img_size=image_size, mlp_ratio=ratio, **sizes
    ).eval()


def value_head(folder: Path, values: int) -> nn.Sequential:
    """Return the head that a model wrote."""
    stored = load_file(folder / "rlvla_heads.safetensors")
    first, second, last = nn.Linear(32, 512), nn.Linear(512, 128), nn.Linear(128, values, bias=False)
    head = nn.Sequential(first, nn.GELU(), second, nn.GELU(), last)
    head.load_state_dict({name.removeprefix("value_head.mlp."): one for name, one in stored.items()})
    return head


def l1_head(weights: dict[str, Tensor], x_HX: Tensor) -> Tensor:
    """Return ``[H, A]`` of all features of each action beside each other."""

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, weights[f"model.{name}.weight"], weights[f"model.{name}.bias"])

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], weights[f"model.{name}.weight"], weights[f"model.{name}.bias"])

    x = linear(norm(x_HX, "layer_norm1"), "fc1").relu()
    for block in ("mlp_resnet_blocks.0.ffn", "mlp_resnet_blocks.1.ffn"):
        x = x + linear(norm(x, f"{block}.0"), f"{block}.1").relu()
    return linear(norm(x, "layer_norm2"), "fc2")


def state_token(weights: dict[str, Tensor], state: Tensor) -> Tensor:
    hidden = F.gelu(F.linear(state, weights["fc1.weight"], weights["fc1.bias"]))
    return F.linear(hidden, weights["fc2.weight"], weights["fc2.bias"])[None]


def public_head(folder: Path, kind: str) -> dict[str, Tensor]:
    (file,) = folder.glob(f"{kind}--*_checkpoint.pt")
    return {name: one.float() for name, one in torch.load(file, weights_only=True).items()}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints without and with heads: three blocks a tower, nine patches a picture."""
    place = tmp_path_factory.mktemp("reference")
    towers = {"dino": TowerShape(16, 3, 2, 32), "siglip": TowerShape(24, 3, 2, 40)}
    for name in ("bare", "headed"):
        sizes = {"action_dim": 3, "state_dim": 4, "image_size": 42, **towers}
        tiny.write(place / name, heads=name == "headed", data_sets=("reach",), **sizes)
    return place


# ---- tokens -----------------------------------------------------------------------------------------------------------


CASES: dict[str, dict[str, Any]] = {
    "all_at_once": {
        "cameras": ("primary", "wrist"),
        "temperature": TEMPERATURE,
        "prompt_tokens": 128,
        "tune_vision": True,
        "lora_targets": (*worlds.LLM, "lm_head", "qkv", "proj", "fc1", "fc2", "fc3"),
        "lora_alpha": 12.0,
    },
    "rlinf": {"preset": "rlinf", "values": "action"},
    "one_by_one": {"decoding": "autoregressive", "horizon": 1, "temperature": TEMPERATURE, "prompt_tokens": 128},
}
"""Values of a chunk, and of each action (rlinf); with padding and stop token, and without (rlinf); temperature 1.6 in all."""


class Pair:
    """A model and the reference on the same rows, and what each makes of given tokens."""

    def __init__(self, base: Path, place: Path, case: str) -> None:
        self.model = worlds.make(base, **CASES[case])
        self.model.save(place)
        self.layout = self.model.network.layout
        self.stop = case == "all_at_once"
        self.plain, self.head = Plain(base, place), value_head(place, self.layout.values)
        self.seen = worlds.observation(3)
        if case == "rlinf":
            self.seen.instruction = self.seen.instruction[:1].expand(3, -1).clone()
        self.inputs = self.model.preprocess(self.seen)
        assert ("there" in self.inputs) == (case != "rlinf"), "padding only where lengths differ"
        shape = (3, self.layout.horizon, self.layout.action_dim)
        self.token_NHA = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(1))
        self.replay = TensorDict({"tokens": self.token_NHA}, batch_size=[3])
        self.ours = self.model.evaluate(self.inputs, self.replay)
        self.theirs = self.by(self.plain, self.token_NHA)

    def by(self, plain: Plain, token_NHA: Tensor) -> dict[str, Tensor]:
        """Return what plain code makes of tokens: logits ``[N, T, B]``, log-probs and entropies as the tokens, values."""
        features_NTD = torch.stack([self._features(plain, row, one) for row, one in enumerate(token_NHA.flatten(1))])
        logits = torch.stack([plain.logits(one) for one in features_NTD])
        logp = torch.log_softmax(logits / TEMPERATURE, -1)
        entropy = -(logp.exp() * logp).sum(-1)
        chosen = logp.gather(-1, token_NHA.flatten(1)[..., None])
        value = self.head(features_NTD[:, 0])
        shape = token_NHA.shape
        return {"logits": logits, "logp": chosen.view(shape), "entropy": entropy.view(shape), "value": value}

    def _features(self, plain: Plain, row: int, token_T: Tensor) -> Tensor:
        pictures, text = self.inputs["pictures"][row], self.seen.instructions()[row]
        if not self.layout.causal:
            return plain.slots(pictures, text, len(token_T), self.stop)
        return plain.read(pictures, text, plain.words((token_T[:-1] + FIRST).tolist()), causal=True)


@pytest.fixture(scope="module", params=CASES)
def pair(request, checkpoints, tmp_path_factory) -> Pair:
    return Pair(checkpoints / "bare", tmp_path_factory.mktemp(request.param), request.param)


def gradients(total: Tensor, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return those that there are."""
    found = torch.autograd.grad(total, list(parameters.values()), retain_graph=True, allow_unused=True)
    return {name: one for name, one in zip(parameters, found, strict=True) if one is not None}


def adapters_of(network: nn.Module) -> dict[str, Tensor]:
    return {name: one for name, one in network.named_parameters() if ".lora_" in name and one.requires_grad}


def assert_near(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """Each of the same gradients, to 1e-4 of its norm."""
    assert ours.keys() == theirs.keys()
    assert ours
    for name, wanted in theirs.items():
        assert wanted.norm() > 0, name
        assert (ours[name] - wanted).norm() < 1e-4 * wanted.norm(), name


def weighted(*parts: Tensor) -> Tensor:
    """Return a sum in which each entry counts otherwise."""
    generator = torch.Generator().manual_seed(5)
    return torch.stack([(one * torch.randn(one.shape, generator=generator)).sum() for one in parts]).sum()


def test_logits_of_action_positions(pair):
    ours = pair.model.network.logits(pair.model._features(pair.inputs, pair.replay))
    torch.testing.assert_close(ours, pair.theirs["logits"], rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["logp", "entropy"])
def test_log_probs_and_entropies_of_given_tokens_at_each_level(pair, name):
    ours, theirs = getattr(pair.ours, name), pair.theirs[name]
    sums = {"token": theirs, "action": theirs.sum(2, keepdim=True), "chunk": theirs.sum((1, 2), keepdim=True)}
    valid = torch.ones(ours.shape[:2], dtype=torch.bool)
    for level, wanted in sums.items():
        torch.testing.assert_close(reduce_to_level(ours, valid, level), wanted, rtol=0, atol=2e-5)


def test_acting_tells_the_log_probs_of_what_it_chose(pair):
    action = worlds.act(pair.model, pair.seen)
    wanted = pair.by(pair.plain, action.replay["tokens"])
    for name in ("logp", "value"):
        torch.testing.assert_close(getattr(action, name), wanted[name].detach(), rtol=0, atol=2e-5)


def test_values_are_of_the_last_prompt_token(pair):
    for ours in (pair.ours.value, pair.model.value(pair.inputs)):
        torch.testing.assert_close(ours, pair.theirs["value"], rtol=0, atol=2e-6)


def test_gradient_of_the_value(pair):
    ours, theirs = weighted(pair.ours.value), weighted(pair.theirs["value"])
    assert_near(gradients(ours, adapters_of(pair.model.network)), gradients(theirs, adapters_of(pair.plain)))
    mine = dict(pair.model.network.value_head.mlp.named_parameters())
    assert_near(gradients(ours, mine), gradients(theirs, dict(pair.head.named_parameters())))


def test_gradient_of_log_probs_and_entropies(pair):
    ours = weighted(pair.ours.logp, pair.ours.entropy)
    theirs = weighted(pair.theirs["logp"], pair.theirs["entropy"])
    assert_near(gradients(ours, adapters_of(pair.model.network)), gradients(theirs, adapters_of(pair.plain)))


def test_a_merged_export_gives_what_its_adapters_did(pair, tmp_path):
    pair.model.export(tmp_path, dtype="fp32")
    merged = pair.by(Plain(tmp_path), pair.token_NHA)
    torch.testing.assert_close(merged["logits"], pair.theirs["logits"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("pair", ["rlinf"], indirect=True)
def test_tokens_are_drawn_with_the_probabilities_that_are_told(pair):
    """Chi-square of each place, its tokens in groups of neighbours with about 1/32 of the probability each."""
    draws = 4096
    with torch.no_grad():
        token_NHA = pair.model.act(pair.inputs[[0] * draws], Noise(torch.arange(draws))).replay["tokens"]
    p_TB = (pair.theirs["logits"][0].detach().double() / TEMPERATURE).softmax(-1)
    for token_N, p_B in zip(token_NHA.flatten(1).T, p_TB, strict=True):
        group_B = (32 * (p_B.cumsum(0) - p_B / 2)).long().unique(return_inverse=True)[1]
        expected, found = draws * torch.bincount(group_B, p_B), torch.bincount(group_B[token_N])
        assert expected.min() > 20, "too few draws for a chi-square test"
        assert stats.chisquare(found.numpy(), expected.numpy()).pvalue > 1e-3


# ---- the L1 head ------------------------------------------------------------------------------------------------------


def test_l1_actions_with_state(checkpoints, tmp_path):
    """Two actions of three dimensions: the state's token follows the pictures, an action's slots lie beside each other."""
    base, seen = checkpoints / "headed", worlds.observation(3)
    model = worlds.make(base, **worlds.HEADED)
    model.save(tmp_path)
    inputs, texts, plain = model.preprocess(seen), seen.instructions(), Plain(base, tmp_path)
    head = {name: one.requires_grad_() for name, one in public_head(base, "action_head").items()}
    mean = []
    for pictures, state, text in zip(inputs["pictures"], inputs["state"], texts, strict=True):
        token_1D = state_token(public_head(base, "proprio_projector"), state)
        features = plain.slots(pictures, text, 6, stop=True, state_1D=token_1D)
        mean.append(l1_head(head, torch.stack([features[:3].flatten(), features[3:].flatten()])))
    theirs = torch.stack(mean)
    ours = worlds.act(model, seen, greedy=True).replay["chosen"]
    torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=2e-5)
    chosen = ours + 0.1
    evaluation = model.evaluate(inputs, TensorDict({"chosen": chosen}, batch_size=[3]))
    logp = torch.distributions.Normal(theirs, model.config.gaussian_std).log_prob(chosen)
    torch.testing.assert_close(evaluation.logp, logp, rtol=0, atol=1e-3)
    ours, theirs = weighted(evaluation.logp), weighted(logp)
    assert_near(gradients(ours, adapters_of(model.network)), gradients(theirs, adapters_of(plain)))
    assert_near(gradients(ours, dict(model.network.action_head.named_parameters())), gradients(theirs, head))
