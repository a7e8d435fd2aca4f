"""The network against transformers' parts, a slow copy of the head, and what is known of the full size."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

import gr00t_worlds as worlds
import pytest
import torch
from safetensors.torch import load_file
from slow_head import SlowHead
from transformers import Qwen3Config, Qwen3Model, SiglipVisionConfig, SiglipVisionModel

from rlvla.batch import ObservationBatch
from rlvla.networks import kernels
from rlvla.weights import acting_copy, copy_into, snapshot
from rlvla_model_gr00t.files import OtherRows, is_embodied
from rlvla_model_gr00t.header import Header, HeadShape, QwenShape, SiglipShape
from rlvla_model_gr00t.network import Layout, Network
from rlvla_model_gr00t.qwen import Qwen
from rlvla_model_gr00t.siglip import Siglip


def randomised(module):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2 + (parameter.ndim == 1))
    return module


def stored(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Return the file's weights, in fp32."""
    return {name: one.float() for file in checkpoint.glob("*.safetensors") for name, one in load_file(file).items()}


# ---- the full size ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def full() -> dict[str, torch.Tensor]:
    """Weights at full size as files hold them, without memory."""
    with torch.device("meta"):
        network = Network(
            Header(
                folder=Path(), config={}, siglip=SiglipShape(), qwen=QwenShape(), head=HeadShape(), image_token=151669
            ),
            Layout(),
            torch.arange(0),
            0,
        )
    return OtherRows({}, 0, 32).shapes(network.state_dict())


def test_parameters_at_full_size_are_those_counted_from_the_public_code(full):
    def millions(prefix: str) -> float:
        return round(sum(one.numel() for name, one in full.items() if name.startswith(prefix)) / 1e6, 2)

    eagle, head = "backbone.eagle_model.", "action_head."
    assert millions("") == 2413.52
    assert millions(f"{eagle}vision_model") == 427.68
    assert millions(f"{eagle}mlp1") == 2.36
    assert millions(f"{eagle}language_model") == 914.67
    assert millions(f"{head}model.") == 550.39
    assert millions(f"{head}vl_self_attention") == 201.43
    assert millions(f"{head}action_encoder") == 228.21
    assert millions(f"{head}state_encoder") == 52.51
    assert millions(f"{head}action_decoder") == 34.64
    assert millions(f"{head}position_embedding") == 1.57


def test_names_at_full_size_are_the_public_ones(full):
    def spelled(text: str) -> set[str]:
        """Return all names that a pattern with ``{a,b}`` stands for."""
        found = re.search(r"{([^{}]*)}", text)
        if found is None:
            return {text}
        return {
            name for one in found[1].split(",") for name in spelled(text[: found.start()] + one + text[found.end() :])
        }

    vision = "backbone.eagle_model.vision_model.vision_model."
    layers = ",".join(map(str, range(27)))
    attention = "self_attn.{q_proj,k_proj,v_proj,out_proj}"
    language, blocks = "backbone.eagle_model.language_model.model.", ",".join(map(str, range(12)))
    head, both = "action_head.", ".{weight,bias}"
    wanted = [
        f"{vision}embeddings.patch_embedding{both}",
        f"{vision}embeddings.position_embedding.weight",
        f"{vision}encoder.layers.{{{layers}}}.{{layer_norm1,layer_norm2,mlp.fc1,mlp.fc2}}{both}",
        f"{vision}encoder.layers.{{{layers}}}.{attention}{both}",
        f"{vision}{{post_layernorm,head.layernorm,head.mlp.fc1,head.mlp.fc2,head.attention.out_proj}}{both}",
        f"{vision}head.{{probe,attention.in_proj_weight,attention.in_proj_bias}}",
        f"backbone.eagle_model.mlp1.0{both}",
        f"{language}{{embed_tokens,norm}}.weight",
        f"{language}layers.{{{blocks}}}.self_attn.{{q_proj,k_proj,v_proj,o_proj,q_norm,k_norm}}.weight",
        f"{language}layers.{{{blocks}}}.mlp.{{gate_proj,up_proj,down_proj}}.weight",
        f"{language}layers.{{{blocks}}}.{{input_layernorm,post_attention_layernorm}}.weight",
        f"{head}model.timestep_encoder.timestep_embedder.{{linear_1,linear_2}}{both}",
        f"{head}model.{{proj_out_1,proj_out_2}}{both}",
        f"{head}model.transformer_blocks.{{{','.join(map(str, range(16)))}}}.norm1.linear{both}",
        f"{head}{{vlln,vl_self_attention.transformer_blocks.{{0,1,2,3}}.norm1}}{both}",
        f"{head}vl_self_attention.transformer_blocks.{{0,1,2,3}}.norm3{both}",
        f"{head}{{state_encoder,action_decoder}}.layer{{1,2}}.{{W,b}}",
        f"{head}action_encoder.W{{1,2,3}}.{{W,b}}",
        f"{head}{{future_tokens,position_embedding}}.weight",
    ]
    for stack, count in (("model", 16), ("vl_self_attention", 4)):
        places = ",".join(map(str, range(count)))
        inner = "{attn1.to_q,attn1.to_k,attn1.to_v,attn1.to_out.0,ff.net.0.proj,ff.net.2}"
        wanted.append(f"{head}{stack}.transformer_blocks.{{{places}}}.{inner}{both}")
    assert set(full) == set().union(*map(spelled, wanted))


def test_shapes_of_embodiments_weights_at_full_size(full):
    shapes = {name.removeprefix("action_head."): tuple(one.shape) for name, one in full.items() if is_embodied(name)}
    assert shapes["state_encoder.layer1.W"] == (32, 64, 1024)
    assert shapes["action_encoder.W1.W"] == (32, 32, 1536)
    assert shapes["action_encoder.W2.W"] == (32, 3072, 1536)
    assert shapes["action_decoder.layer2.W"] == (32, 1024, 32)
    assert shapes["action_decoder.layer2.b"] == (32, 32)


# ---- parts ------------------------------------------------------------------------------------------------------------


def test_the_vision_tower_is_transformers():
    shape = SiglipShape(24, 40, 3, 2, image_size=28)
    ours = randomised(Siglip(shape))
    config = SiglipVisionConfig(**asdict(shape), hidden_act="gelu_pytorch_tanh")
    theirs = SiglipVisionModel(config).eval()
    weights = ours.state_dict()
    if not set(weights) & set(theirs.state_dict()):
        weights = {name.removeprefix("vision_model."): one for name, one in weights.items()}
    theirs.load_state_dict(weights)
    pictures = torch.randn(3, 3, 28, 28, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = theirs(pixel_values=pictures).last_hidden_state
        torch.testing.assert_close(ours(pictures), wanted, rtol=0, atol=1e-5)


def test_the_language_model_is_transformers_where_there_is_no_padding():
    shape = QwenShape(32, 48, 3, 4, 2, head_dim=8, vocab_size=50)
    ours = randomised(Qwen(shape))
    theirs = Qwen3Model(Qwen3Config(**asdict(shape), tie_word_embeddings=True)).eval()
    theirs.load_state_dict(ours.model.state_dict())
    x = torch.randn(2, 11, 32, generator=torch.Generator().manual_seed(1))
    there = torch.arange(11) < torch.tensor([[11], [7]])
    with torch.no_grad():
        mine = ours.model(x, there, 5, lambda function: function)
        wanted = theirs(inputs_embeds=x, attention_mask=there.long(), use_cache=False).last_hidden_state
    torch.testing.assert_close(mine[there], wanted[there], rtol=0, atol=1e-4)


def test_a_padded_token_attends_to_nothing():
    """So it is the same everywhere: what variable-length attention, which the public code uses, makes of it."""
    shape = QwenShape(32, 48, 3, 4, 2, head_dim=8, vocab_size=50)
    stack = randomised(Qwen(shape)).model
    ids = torch.tensor([[5, 6, 7, 0, 0, 0], [8, 9, 5, 6, 0, 0]])
    there = ids != 0
    alone = stack.embed_tokens(torch.zeros(1, 1, dtype=torch.int64))[0]
    with torch.no_grad():
        out = stack(stack.embed_tokens(ids), there, 2, lambda function: function)
        for layer in stack.layers:
            normed = kernels.rms_norm(alone, layer.post_attention_layernorm.weight, shape.rms_norm_eps)
            gate, up = layer.mlp.gate_proj(normed), layer.mlp.up_proj(normed)
            alone = alone + layer.mlp.down_proj(torch.nn.functional.silu(gate) * up)
        alone = kernels.rms_norm(alone, stack.norm.weight, shape.rms_norm_eps)
    torch.testing.assert_close(out[~there], alone.expand(5, -1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("tag", ["gr1", "new_embodiment"])
def test_the_head_is_a_slow_copy_on_the_files_weights(checkpoint, tag):
    model = worlds.make(checkpoint, embodiment_tag=tag, embodiment_table="nvidia")
    row = {"gr1": 24, "new_embodiment": 31}[tag]
    slow = SlowHead(stored(checkpoint), model.header.head, torch.full((3,), row))
    inputs = model.preprocess(worlds.observation(3))
    with torch.no_grad():
        features = model.network.features(model._pictures(inputs), inputs["ids"], inputs["there"])
        context, state = slow.context(features), slow.state(inputs["state"])
        drawn = model._draw(3, worlds.Noise(torch.arange(3)), greedy=True)
        seen = model.network.seen(features, inputs["there"], inputs["state"])
        made = model.network.denoise(seen, *drawn.values())
        x = drawn["start"]
        for number in range(4):
            x = x + slow.velocity(x, number / 4, state, context) / 4
    torch.testing.assert_close(seen.context, context, rtol=0, atol=2e-5)
    torch.testing.assert_close(made.actions, x, rtol=0, atol=2e-5)


def test_the_value_is_of_the_mean_context_and_the_state(checkpoint):
    model = worlds.make(checkpoint)
    weights = stored(checkpoint)
    slow = SlowHead(weights, model.header.head, torch.full((3,), 24))
    inputs = model.preprocess(worlds.observation(3))
    with torch.no_grad():
        features = model.network.features(model._pictures(inputs), inputs["ids"], inputs["there"])
        x = torch.cat([slow.context(features).mean(1), slow.state(inputs["state"])[:, 0]], -1)
        for number in (0, 2, 4, 6):
            x = slow.linear(x if number == 0 else torch.relu(x), f"value_head.mlp.{number}")
        torch.testing.assert_close(model.value(inputs), x, rtol=1e-5, atol=1e-5)


# ---- what must not matter, and what must ------------------------------------------------------------------------------


def test_a_value_costs_no_denoising(checkpoint, monkeypatch):
    model, seen = worlds.make(checkpoint), worlds.observation(3)
    wanted = worlds.act(model, seen).value
    monkeypatch.setattr(type(model.network.action_head), "velocity", None)
    with torch.no_grad():
        assert torch.equal(model.value(model.preprocess(seen)), wanted)


def test_padding_matters_where_it_is_fixed_and_does_not_where_it_is_masked(checkpoint):
    seen = worlds.observation(3)
    found = {
        (padding, width): worlds.act(worlds.make(checkpoint, padding=padding, pad_to=width), seen)
        for padding in ("fixed", "masked")
        for width in (140, 180)
    }
    for fixed, masked in (
        ([found[padding, width].value for width in (140, 180)] for padding in ("fixed", "masked")),
        ([found[padding, width].replay["chain"] for width in (140, 180)] for padding in ("fixed", "masked")),
    ):
        torch.testing.assert_close(*masked, rtol=0, atol=1e-5)
        assert (fixed[0] - fixed[1]).abs().max() > 1e-4
        assert (fixed[0] - masked[0]).abs().max() > 1e-4


def test_masked_batches_of_any_width_agree(checkpoint):
    spec = worlds.simulator_spec(tasks=(worlds.TaskSpec("short", "go"),))  # longer instructions come as a surprise
    model, seen = worlds.make(checkpoint, spec, padding="masked", pad_to=None), worlds.observation(3)
    together = worlds.act(model, seen)
    widths = set()
    for row in range(3):
        alone = worlds.act(model, seen[row : row + 1], first=row)
        torch.testing.assert_close(alone.replay["chain"][0], together.replay["chain"][row], rtol=0, atol=1e-5)
        torch.testing.assert_close(alone.value[0], together.value[row], rtol=0, atol=1e-5)
        widths.add(model.preprocess(seen[row : row + 1])["ids"].shape[1])
    assert len(widths) > 1


@pytest.mark.parametrize("steps", ["one", "all"])
def test_garbage_in_unused_dimensions_and_actions_changes_neither_loss_nor_gradient(checkpoint, steps):
    model = worlds.make(checkpoint, stochastic_steps=steps)
    inputs = model.preprocess(worlds.observation(3))
    with torch.no_grad():
        replay = model.act(inputs, worlds.Noise(torch.arange(3))).replay
    found = []
    for garbage in (False, True):
        changed = replay.clone()
        if garbage:  # the last point of a chain is only a target
            changed["chain"][:, -1, :, 3:] = 1e3
            changed["chain"][:, -1, 2:] = -1e3
        model.zero_grad()
        evaluation = model.evaluate(inputs, changed)
        evaluation.logp.sum().backward()
        found.append(
            (evaluation.logp.detach(), [one.grad.clone() for one in model.trainable().values() if one.grad is not None])
        )
    assert torch.equal(found[0][0], found[1][0])
    assert all(torch.equal(*both) for both in zip(found[0][1], found[1][1], strict=True))


def test_only_the_recorded_step_is_kept_and_it_is_drawn_for_each_row(checkpoint):
    model, seen = worlds.make(checkpoint), worlds.observation(64)
    replay = worlds.act(model, seen).replay
    assert replay["chain"].shape == (64, 2, 16, 32)
    counts = torch.bincount(replay["step"], minlength=4)
    assert counts.min() > 6
    for options, last in (({"skip_last": True}, 3), ({"noise": "flow_cps"}, 3), ({"noise": "reinflow"}, 4)):
        step = worlds.act(worlds.make(checkpoint, **options), seen).replay["step"]
        assert step.unique().tolist() == list(range(last))


def test_entries_add_up_to_the_same(checkpoint):
    seen = worlds.observation(3)
    for steps, count in (("one", 1), ("all", 4)):
        by = {
            entries: worlds.act(worlds.make(checkpoint, entries=entries, stochastic_steps=steps), seen).logp
            for entries in ("dimension", "step")
        }
        assert by["dimension"].shape == (3, 2, 3 * count)
        assert by["step"].shape == (3, 2, count)
        torch.testing.assert_close(by["dimension"].sum(-1), by["step"].sum(-1), rtol=1e-5, atol=1e-4)


def test_the_critic_changes_the_policy_only_where_it_may(checkpoint):
    inputs = None
    for detached in (False, True):
        model = worlds.make(checkpoint, detach_critic=detached)
        inputs = model.preprocess(worlds.observation(2))
        replay = worlds.act(model, worlds.observation(2)).replay
        model.evaluate(inputs, replay).value.sum().backward()
        reached = {
            name.split(".")[2] for name, one in model.named_parameters() if one.grad is not None and one.grad.any()
        }
        assert reached == ({"value_head"} if detached else {"value_head", "vl_self_attention", "vlln", "state_encoder"})


def test_greedy_is_euler_from_one_typical_start(checkpoint):
    model, seen = worlds.make(checkpoint), worlds.observation(3)
    replay = worlds.act(model, seen, greedy=True).replay
    start = model._draw(3, worlds.Noise(torch.arange(3)), greedy=True)["start"]
    assert 0.8 < float(start.std()) < 1.2
    assert torch.equal(start[0], start[2])
    assert torch.equal(replay["step"], replay["step"][:1].expand(3))


def test_the_noise_level_follows_the_version_and_travels_with_the_chunk(checkpoint):
    model = worlds.make(checkpoint, noise_level=0.7, noise_level_final=0.3, noise_anneal_steps=400)
    seen = worlds.observation(2)
    acting = acting_copy(model)
    for version, level in ((0, 0.7), (100, 0.6), (400, 0.3), (900, 0.3)):
        copy_into(acting, snapshot(model))
        acting.weights_changed(version)
        action = worlds.act(acting, seen)
        torch.testing.assert_close(action.replay["level"], torch.full((2,), level))
        with torch.no_grad():
            logp = model.evaluate(model.preprocess(seen), action.replay).logp  # the trainer's level is another one
        torch.testing.assert_close(logp, action.logp, rtol=0, atol=1e-4)


def test_learned_noise_stays_within_its_ends_and_is_trained(checkpoint):
    model, seen = worlds.make(checkpoint, noise="reinflow"), worlds.observation(3)
    replay = worlds.act(model, seen).replay
    evaluation = model.evaluate(model.preprocess(seen), replay)
    std = (evaluation.entropy.detach() - 1.4189385332046727).exp()
    assert 0.08 <= float(std.min()) < float(std.max()) <= 0.16
    evaluation.entropy.sum().backward()
    assert all(one.grad.any() for name, one in model.named_parameters() if "noise_net" in name)


# ---- features that stay -----------------------------------------------------------------------------------------------


def test_kept_features_spare_the_backbone_and_change_nothing(checkpoint, monkeypatch):
    model, seen = worlds.make(checkpoint, keep_features=8), worlds.observation(4)
    inputs = model.preprocess(seen)
    replay = worlds.act(model, seen).replay
    without = model.evaluate(inputs, replay.exclude("features")).logp
    acting_copy(model)  # shares them
    monkeypatch.setattr(type(model.network), "features", None)
    for rows in ([0, 1, 2, 3], [2, 0], [1, 1, 3]):
        kept = model.evaluate(inputs[torch.tensor(rows)], replay[torch.tensor(rows)]).logp
        torch.testing.assert_close(kept, without[rows], rtol=0, atol=1e-4)


def test_features_beyond_the_capacity_are_computed_again_and_that_is_said(checkpoint, caplog):
    model = worlds.make(checkpoint, keep_features=5)
    batches = [worlds.observation(3, seed=seed) for seed in range(3)]
    actions = [worlds.act(model, seen) for seen in batches]
    assert model.bank.get(actions[0].replay["features"]) is None
    assert model.bank.get(actions[2].replay["features"]).shape[0] == 3
    assert worlds.make(checkpoint, keep_features=5).bank.get(actions[2].replay["features"]) is None  # another process
    for _ in range(20):
        model.bank.get(actions[0].replay["features"])
    said = [one.getMessage() for one in caplog.records if "keep_features" in one.getMessage()]
    assert len(said) == 1, "once"
    assert "room for 5 chunks" in said[0]
    whole = ObservationBatch.joined(batches)
    replay = torch.cat([one.replay for one in actions])
    order = torch.tensor([7, 2, 4, 6])
    with torch.no_grad():
        logp = model.evaluate(model.preprocess(whole[order]), replay[order]).logp
    torch.testing.assert_close(logp, torch.cat([one.logp for one in actions])[order], rtol=0, atol=1e-4)


def test_a_quantised_language_model_is_near_and_the_same_in_acting_and_training(checkpoint):
    seen = worlds.observation(3)
    models = [worlds.make(checkpoint, language=language) for language in ("same", "fp8")]
    plain, quantised = (worlds.act(model, seen) for model in models)
    gap = (plain.replay["chain"][:, 1] - quantised.replay["chain"][:, 1]).abs().mean()
    assert 0 < gap < 0.05
    again = worlds.make(checkpoint, language="fp8")  # as a trainer, which has not acted
    evaluation = again.evaluate(again.preprocess(seen), quantised.replay)
    torch.testing.assert_close(evaluation.logp, quantised.logp, rtol=0, atol=1e-4)
    assert (models[0].evaluate(again.preprocess(seen), quantised.replay).logp - quantised.logp).abs().max() > 1e-3


# ---- precision and memory ---------------------------------------------------------------------------------------------


def test_an_acting_copy_holds_the_head_in_the_dtype_of_products_but_what_is_close_to_log_probs(checkpoint):
    model = worlds.make(checkpoint, dtype="bf16")
    acting = acting_copy(model)
    acting.eval().requires_grad_(False)
    acting.weights_changed(0)
    wide = {name for name, one in acting.named_parameters() if one.dtype == torch.float32}
    assert {name.split(".")[2] for name in wide} == {"value_head", "action_decoder"}
    assert all("layer2" in name for name in wide if "action_decoder" in name)
    seen = worlds.observation(3)
    action = worlds.act(acting, seen)
    with torch.no_grad():
        logp = model.evaluate(model.preprocess(seen), action.replay).logp
    assert torch.equal(logp, action.logp)  # products round masters to what the copy holds
    assert model.network.action_head.vlln.weight.dtype == torch.float32


def test_optimizer_state_is_of_one_embodiment(checkpoint):
    model = worlds.make(checkpoint)
    shapes = {name: one.shape for name, one in model.trainable().items() if is_embodied(name.removeprefix("network."))}
    assert len(shapes) == 14
    assert {len(shape) for shape in shapes.values()} == {1, 2}


def test_weights_that_are_multiplied_together_lie_together(checkpoint):
    model = worlds.make(checkpoint)
    crossing = [one.weight for one in model.network.action_head.model.crossing]
    assert len({one.untyped_storage().data_ptr() for one in crossing}) == 1
    assert not model.network.pack()
