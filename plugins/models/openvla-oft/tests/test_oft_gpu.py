"""What only a GPU does: compiled kernels, CUDA graphs, FP8 products. Everything else is tested on the CPU."""

from __future__ import annotations

import oft_worlds as worlds
import pytest
import torch

from rlvla.networks import fp8, kernels
from rlvla.noise import Noise
from rlvla.weights import acting_copy, copy_into, own_precision, snapshot
from rlvla_model_openvla_oft.header import LlamaShape
from rlvla_model_openvla_oft.tiny import write

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore"),  # of compilers and drivers
]


@pytest.fixture(scope="module")
def llama_place(tmp_path_factory):
    """A checkpoint of sizes that tensor cores take."""
    llama = LlamaShape(hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=2)
    return write(tmp_path_factory.mktemp("gpu"), action_dim=3, state_dim=4, data_sets=("reach",), llama=llama)


@pytest.fixture(scope="module")
def model(llama_place):
    """A model on the GPU, in bf16."""
    return worlds.make(llama_place, dtype="bf16").to("cuda")


def act(model, rows: int, greedy: bool = True):
    seen = worlds.observation(rows)
    seen.instruction = seen.instruction[:1].expand(rows, -1).clone()
    with torch.no_grad():
        return model.act(model.preprocess(seen), Noise(torch.arange(rows, device="cuda")), greedy)


def test_compiled_and_eager_networks_agree_forwards_and_backwards(model, llama_place):
    """Both in bf16 against fp32 with the same weights: the compiled one errs no more than half as much again."""
    seen, replay = worlds.observation(8), act(model, 8).replay
    exact = worlds.make(llama_place, dtype="fp32", moved=False).to("cuda")
    weights = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in exact.named_parameters():
            parameter.copy_(weights[name])  # bf16 numbers are fp32 numbers too
    exact.network.fuse = False

    def logp_of_all_bins(one):
        with torch.no_grad(), own_precision(torch.device("cuda")):
            return one.network.logits(one._features(one.preprocess(seen), replay)).log_softmax(-1)

    wanted, errors, gradients = logp_of_all_bins(exact), [], []
    for fuse in (False, True):
        model.network.fuse = fuse
        errors.append(float((logp_of_all_bins(model) - wanted).square().mean().sqrt()))
        model.zero_grad(set_to_none=True)
        model.evaluate(model.preprocess(seen), replay).logp.sum().backward()
        gradients.append([one.grad for one in model.trainable().values() if one.grad is not None])
    eager, fused = errors
    assert 0 < fused <= 1.5 * eager
    assert gradients[0]
    for one, other in zip(*gradients, strict=True):
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
def test_fp8_products_are_those_of_their_operands(model):
    """The product of FP8 numbers is exact but for the order of sums and rounding to bf16; quantising is the CPU's."""
    x = torch.randn(48, 128, generator=torch.Generator().manual_seed(0)).bfloat16()
    layer = model.network.language_model.model.layers[0].mlp
    fp8.quantise_([layer.gate_proj, layer.up_proj])
    quick = fp8.base(layer.gate_proj).rlvla_quantised[2]
    x8, scale = kernels.fused(fp8.quantised_rows)(x.cuda())  # the very kernel that the product quantises with
    wanted = (
        (x8.cpu().double() @ quick.weight_OI.cpu().double().T) * scale.cpu().double() * quick.scale_O.cpu().double()
    )
    got = quick(x.cuda()).cpu().double()
    size = (x8.cpu().double().abs() @ quick.weight_OI.cpu().double().abs().T) * scale.cpu() * quick.scale_O.cpu()
    # Half a step of bf16 (2**-9) of the result, and sums of 14 bits (fast accumulation): a little of what they sum up.
    assert ((got - wanted).abs() <= wanted.abs() * 2**-8 + size * 2**-12).all()
    assert (got - wanted).square().mean().sqrt() < 3e-3 * wanted.square().mean().sqrt()
    on_cpu, its_scale = fp8.quantised_rows(x)
    torch.testing.assert_close(scale.cpu(), its_scale, rtol=1e-6, atol=0)
    assert (x8.cpu().float() != on_cpu.float()).float().mean() < 0.01  # a division that rounds otherwise
