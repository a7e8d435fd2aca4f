"""What only a GPU does: compiled kernels, CUDA graphs, FP8 products. Everything else is tested on the CPU."""

from __future__ import annotations

import oft_worlds as worlds
import pytest
import torch

from rlvla.networks import fp8, kernels
from rlvla.noise import Noise
from rlvla.weights import acting_copy, copy_into, snapshot
from rlvla_model_openvla_oft.header import LlamaShape
from rlvla_model_openvla_oft.tiny import write

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore"),  # of compilers and drivers
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model on the GPU, in bf16, of sizes that tensor cores take."""
    llama = LlamaShape(hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=2)
    place = write(tmp_path_factory.mktemp("gpu"), action_dim=3, state_dim=4, data_sets=("reach",), llama=llama)
    return worlds.make(place, dtype="bf16").to("cuda")


def act(model, rows: int, greedy: bool = True):
    seen = worlds.observation(rows)
    seen.instruction = seen.instruction[:1].expand(rows, -1).clone()
    with torch.no_grad():
        return model.act(model.preprocess(seen), Noise(torch.arange(rows, device="cuda")), greedy)


def test_compiled_and_eager_networks_agree_forwards_and_backwards(model):
    seen = worlds.observation(3)
    replay = act(model, 3).replay
    found = []
    for fuse in (False, True):
        model.network.fuse = fuse
        model.zero_grad(set_to_none=True)
        evaluation = model.evaluate(model.preprocess(seen), replay)
        evaluation.logp.sum().backward()
        found.append((evaluation.logp, [one.grad for one in model.trainable().values() if one.grad is not None]))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=0, atol=0.05)
    for one, other in zip(found[0][1], found[1][1], strict=True):
        assert torch.nn.functional.cosine_similarity(one.flatten(), other.flatten(), dim=0) > 0.99


def test_a_replayed_graph_is_the_call_after_each_publication(model):
    acting = acting_copy(model)
    for version in range(1, 4):
        with torch.no_grad():
            for parameter in model.trainable().values():
                parameter.mul_(1.1)
        copy_into(acting, snapshot(model))
        acting.weights_changed(version)
        for rows in (1, 2):
            inputs = acting.preprocess(worlds.observation(rows))
            words = (inputs["pictures"], inputs["ids"], inputs.get("there", None), None)
            with torch.no_grad():
                for _ in range(3):
                    acting._graphs(*words)
                graph = acting._graphs._capture(words)
                for replayed, called in zip(acting._graphs._replay(graph, words), acting._forward(*words), strict=True):
                    assert torch.equal(replayed, called)
    assert {timing.shapes[0][0] for timing in acting._graphs.timings} == {1, 2}


def test_kernels_do_not_compile_again_for_other_numbers_of_rows(model):
    counters = torch._dynamo.utils.counters["stats"]
    act(model, 2)
    before = counters["unique_graphs"]
    for rows in (3, 5, 7):
        act(model, rows)
    assert counters["unique_graphs"] == before


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9), reason="this GPU has no FP8"
)
def test_fp8_products_are_those_of_the_cpu(model):
    x = torch.randn(48, 128, generator=torch.Generator().manual_seed(0)).bfloat16()
    layer = model.network.language_model.model.layers[0].mlp
    fp8.quantise_([layer.gate_proj, layer.up_proj])
    quick = fp8.base(layer.gate_proj).rlvla_quantised[2]
    on_cpu = fp8.Quantised(quick.weight_OI.cpu(), quick.scale_O.cpu())
    torch.testing.assert_close(quick(x.cuda()).cpu(), on_cpu(x), rtol=0.02, atol=0.02)
    rows, again = kernels.fused(fp8.quantised_rows)(x.cuda())[0].cpu().float(), fp8.quantised_rows(x)[0].float()
    assert (rows != again).float().mean() < 0.01  # a division that rounds otherwise
