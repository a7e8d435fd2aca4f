"""The network's parts: public names and sizes, ratios, counts of tokens, adapters, FP8; the whole is in test_oft_reference.py."""

from __future__ import annotations

from pathlib import Path

import oft_worlds as worlds
import pytest
import timm
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from rlvla.networks import adapters, fp8
from rlvla.networks.linear import pack, project
from rlvla_model_openvla_oft.header import DINO, SIGLIP, Header, LlamaShape, TowerShape, read_header
from rlvla_model_openvla_oft.model import _VISION
from rlvla_model_openvla_oft.network import Layout, Network

RLINF_TARGETS = [
    "proj",
    "qkv",
    "fc1",
    "fc2",
    "q",
    "kv",
    "fc3",
    "out_proj",
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "lm_head",
]
NAMES = {"featurizer": "vit_large_patch14_reg4_dinov2.lvd142m", "fused_featurizer": "vit_so400m_patch14_siglip_224"}


def full_size() -> Header:
    shape = LlamaShape(vocab_size=32064)
    return Header(folder=Path(), config={}, llama=shape, dino=DINO, siglip=SIGLIP, image_size=224)


def renamed(key: str) -> str:
    return key.replace(".gamma", ".scale_factor")


# ---- full size, on the meta device ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def giant() -> Network:
    with torch.device("meta"):
        return Network(full_size(), Layout(action_dim=7, horizon=8))


def test_full_size_has_the_public_number_of_parameters(giant):
    assert sum(one.numel() for one in giant.parameters()) == 7_541_237_184


def test_full_size_has_timms_and_transformers_keys_and_shapes(giant):
    wanted = {}
    with torch.device("meta"):
        for part, name in NAMES.items():
            tower = timm.create_model(name, pretrained=False, num_classes=0, img_size=224)
            wanted |= {f"vision_backbone.{part}.{renamed(key)}": one.shape for key, one in tower.state_dict().items()}
        llama = LlamaForCausalLM(LlamaConfig(vocab_size=32064))  # its defaults are Llama 2's of 7B
    wanted |= {f"language_model.{key}": one.shape for key, one in llama.state_dict().items()}
    for number, (inputs, outputs) in enumerate([(2176, 8704), (8704, 4096), (4096, 4096)], 1):
        wanted |= {f"projector.fc{number}.weight": (outputs, inputs), f"projector.fc{number}.bias": (outputs,)}
    assert {key: tuple(one.shape) for key, one in giant.state_dict().items()} == {
        k: tuple(s) for k, s in wanted.items()
    }


# the published 110.7 M leave out the patch embeddings, convolutions that the name ``proj`` means too
@pytest.mark.parametrize(("vision", "count"), [(False, 79_953_920), (True, 110_721_024 + 32 * (1612 + 1740))])
def test_adapters_at_full_size_have_the_published_size(vision, count):
    with torch.device("meta"):
        network = Network(full_size(), Layout(action_dim=7, horizon=8))
        names = tuple(name for name in RLINF_TARGETS if name != "out_proj") if vision else worlds.LLM
        config = LoraConfig(
            r=32, lora_alpha=32, target_modules=adapters.targets(network, names, () if vision else _VISION)
        )
        inject_adapter_in_model(config, network)
    size = sum(one.numel() for name, one in network.named_parameters() if ".lora_" in name)
    assert size == count


def test_peft_takes_the_published_target_list():
    shape = TowerShape(16, 3, 2, 32)
    llama = LlamaShape(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=32064
    )
    header = Header(folder=Path(), config={}, llama=llama, dino=shape, siglip=shape, image_size=28)
    network = Network(header, Layout(action_dim=7, horizon=8))
    inject_adapter_in_model(LoraConfig(r=4, target_modules=list(RLINF_TARGETS)), network, adapter_name="default")
    assert len(adapters.weights(network)) == 98
    assert hasattr(network.vision_backbone.featurizer.patch_embed.proj, "base_layer")  # a convolution, by its name
    ours = Network(header, Layout(action_dim=7, horizon=8))
    layers = adapters.targets(ours, tuple(name for name in RLINF_TARGETS if name != "out_proj"), ())
    adapters.add(ours, layers, 4, 4.0, torch.Generator().manual_seed(0))
    assert set(adapters.weights(ours)) == set(adapters.weights(network))


# ---- acting and training ----------------------------------------------------------------------------------------------


def test_recomputed_ratio_is_exactly_one(checkpoint, headed):
    for path, options in ((checkpoint, {}), (checkpoint, {"top_k": 7, "keep_vision": True}), (headed, worlds.HEADED)):
        model, seen = worlds.make(path, **options), worlds.observation(4)
        action = worlds.act(model, seen)
        evaluation = model.evaluate(model.preprocess(seen), action.replay)
        assert torch.equal((evaluation.logp - action.logp).exp(), torch.ones_like(action.logp))


@pytest.mark.parametrize("top_k", [None, 7])
def test_recomputed_ratio_of_tokens_one_after_another_is_one_but_for_rounding(checkpoint, top_k):
    """Acting multiplies one token at a time, training all of them: products of other shapes round otherwise."""
    model, seen = worlds.make(checkpoint, decoding="autoregressive", horizon=1, top_k=top_k), worlds.observation(4)
    action = worlds.act(model, seen)
    evaluation = model.evaluate(model.preprocess(seen), action.replay)
    torch.testing.assert_close(evaluation.logp, action.logp, rtol=0, atol=5e-6)
    torch.testing.assert_close(evaluation.value, action.value, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "besides"),
    [({}, 6 + 1), ({"preset": "rlinf"}, 6), ({"decoding": "autoregressive", "horizon": 1}, 3 - 1)],
)
def test_tokens_are_counted_as_the_network_sees_them(checkpoint, monkeypatch, options, besides):
    """Slots and, in parallel decoding, the stop token; in the other, no token after the last one chosen."""
    model, seen = worlds.make(checkpoint, **options), worlds.observation(1)
    lengths, forward = [], type(model.network.language_model.model).forward

    def counting(stack, x, *arguments, **more):
        lengths.append(x.shape[1])
        return forward(stack, x, *arguments, **more)

    replay = worlds.act(model, seen).replay
    monkeypatch.setattr(type(model.network.language_model.model), "forward", counting)
    model.evaluate(model.preprocess(seen), replay)
    assert lengths == model.count_tokens(seen).tolist() == [4 + len(model.prompts.ids(worlds.TEXTS[0])) + besides]


# ---- adapters ---------------------------------------------------------------------------------------------------------


def three_layers(bias: bool) -> nn.ModuleDict:
    generator = torch.Generator().manual_seed(0)
    layers = nn.ModuleDict({name: nn.Linear(6, size, bias=bias) for name, size in (("q", 4), ("k", 5), ("v", 3))})
    layers.requires_grad_(False)
    inject_adapter_in_model(LoraConfig(r=2, lora_alpha=6, target_modules=["q", "v"]), layers, adapter_name="default")
    for name, parameter in layers.named_parameters():
        if "lora" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator)
    return layers


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_one_product_of_three_layers_is_peft_on_each(bias, packed):
    layers = three_layers(bias)
    if packed:
        pack(list(layers.values()))
    x = torch.randn(2, 7, 6, generator=torch.Generator().manual_seed(1), requires_grad=True)
    weight = torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(2))
    trained = [one for one in layers.parameters() if one.requires_grad]
    results = []
    for out in (project(x, *layers.values()), torch.cat([layer(x) for layer in layers.values()], -1)):
        results.append([out, *torch.autograd.grad((out * weight).sum(), [x, *trained])])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_packing_shares_memory_and_keeps_values():
    layers = [nn.Linear(6, size, bias=False) for size in (4, 5)]
    before = [layer.weight.detach().clone() for layer in layers]
    pack(layers)
    place = layers[0].weight.data_ptr()
    pack(layers)
    assert layers[0].weight.data_ptr() == place
    assert all(torch.equal(layer.weight, one) for layer, one in zip(layers, before, strict=True))
    assert layers[0].weight.untyped_storage().data_ptr() == layers[1].weight.untyped_storage().data_ptr()


def test_recomputing_activations_changes_no_gradient(checkpoint):
    seen, gradients = worlds.observation(2), []
    for recompute in (False, True):
        model = worlds.make(checkpoint, recompute=recompute)
        action = worlds.act(model, seen)
        model.evaluate(model.preprocess(seen), action.replay).logp.sum().backward()
        gradients.append({name: one.grad for name, one in model.trainable().items() if one.grad is not None})
    assert gradients[0]
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)


def test_without_adapters_is_the_checkpoint(checkpoint):
    everywhere = {"tune_vision": True, "lora_targets": ("q_proj", "proj", "fc1", "lm_head")}
    plain, adapted = worlds.make(checkpoint, tune="heads"), worlds.make(checkpoint, **everywhere)
    seen = worlds.observation(3)
    replay = worlds.act(plain, seen).replay
    with torch.no_grad():
        wanted = plain.evaluate(plain.preprocess(seen), replay).logp
        with adapted.reference():
            torch.testing.assert_close(adapted.evaluate(adapted.preprocess(seen), replay).logp, wanted)
        assert (adapted.evaluate(adapted.preprocess(seen), replay).logp - wanted).abs().max() > 1e-3


def test_frozen_parts_have_no_gradient_and_dead_blocks_are_never_trained(checkpoint):
    model = worlds.make(checkpoint, tune="full", tune_vision=True)
    names = set(model.trainable())
    assert not [name for name in names if "blocks.1." in name or "attn_pool" in name]  # the last of two
    assert [name for name in names if "featurizer.blocks.0." in name]
    model = worlds.make(checkpoint)
    assert all(".lora_" in name or "value_head" in name for name in model.trainable())


def test_frozen_weights_exist_once_for_generator_and_trainer(checkpoint):
    from rlvla.weights import acting_copy

    model = worlds.make(checkpoint)
    acting = acting_copy(model)
    mine, theirs = dict(model.named_parameters()), dict(acting.named_parameters())
    for name, parameter in mine.items():
        assert (theirs[name] is parameter) != parameter.requires_grad, name


def test_header_of_the_checkpoint(checkpoint):
    header = read_header(checkpoint)
    assert (header.last_action_id, header.pad_id, header.image_size) == (32000, 32000, 28)
    assert [file.name for file in header.shards] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]


# ---- FP8 --------------------------------------------------------------------------------------------------------------


def test_fp8_rows_are_exact_at_their_greatest_and_near_elsewhere():
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 3, 5)[:, None]
    rows, scale = fp8.quantised_rows(x)
    again = rows.float() * scale
    assert rows.dtype == torch.float8_e4m3fn
    assert (again - x).abs().max(1).values.div(x.abs().max(1).values).max() < 2**-4
    place = x.abs().argmax(1, keepdim=True)
    torch.testing.assert_close(again.gather(1, place), x.gather(1, place))
    assert torch.equal(fp8.quantised_rows(torch.zeros(1, 8))[0].float(), torch.zeros(1, 8))


def test_acting_in_fp8_is_near_and_training_is_as_before(checkpoint):
    from rlvla.weights import acting_copy

    model, seen = worlds.make(checkpoint, rollout="fp8"), worlds.observation(3)
    exact = worlds.act(model, seen)
    acting = acting_copy(model)
    acting.weights_changed(1)
    quick = worlds.act(acting, seen)
    gap = (
        (acting.evaluate(acting.preprocess(seen), quick.replay).logp - quick.logp).abs().mean()
    )  # with gradients: exact
    assert 1e-4 < gap < 0.2
    assert torch.equal(worlds.act(model, seen).logp, exact.logp)  # the trainer's layers have no quantised copies
    with torch.no_grad():
        for name, parameter in acting.named_parameters():
            if ".lora_B." in name:
                parameter.zero_()
    assert not torch.equal(worlds.act(acting, seen).logp, quick.logp)  # adapters count on top


def test_quantised_copies_follow_full_tuning_in_place(checkpoint):
    model, seen = worlds.make(checkpoint, tune="full", rollout="fp8"), worlds.observation(2)
    model.weights_changed(1)
    down = model.network.language_model.model.layers[0].mlp.down_proj
    place = down.rlvla_quantised[1].weight_OI.data_ptr()
    before = worlds.act(model, seen, greedy=True).logp
    with torch.no_grad():
        down.weight.mul_(-1)
    assert torch.equal(worlds.act(model, seen, greedy=True).logp, before)
    model.weights_changed(2)
    assert down.rlvla_quantised[1].weight_OI.data_ptr() == place
    assert not torch.equal(worlds.act(model, seen, greedy=True).logp, before)
