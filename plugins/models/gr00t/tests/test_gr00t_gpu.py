"""What only a GPU does: compiled kernels, CUDA graphs, products with GELU. Everything else is tested on the CPU."""

from __future__ import annotations

import gr00t_worlds as worlds
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rlvla.networks.linear import project_gelu
from rlvla.noise import Noise
from rlvla.weights import acting_copy, copy_into, snapshot

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore"),  # of compilers and drivers
]


@pytest.fixture(scope="module")
def model(checkpoint):
    return worlds.make(checkpoint, dtype="bf16", keep_features=32).to("cuda")


def act(model, rows: int):
    with torch.no_grad():
        return model.act(model.preprocess(worlds.observation(rows)), Noise(torch.arange(rows, device="cuda")))


def test_compiled_and_eager_networks_agree_forwards_and_backwards(model):
    seen, replay = worlds.observation(3), act(model, 3).replay
    found = []
    for fuse in (False, True):
        model.network.fuse = fuse
        model.zero_grad(set_to_none=True)
        evaluation = model.evaluate(model.preprocess(seen), replay.exclude("features"))
        evaluation.logp.sum().backward()
        gradients = {name: one.grad for name, one in model.trainable().items() if one.grad is not None}
        found.append((evaluation.logp, gradients))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=0, atol=0.1)
    assert found[0][1].keys() == found[1][1].keys()
    for name, one in found[0][1].items():
        if one.any() and not name.endswith(
            "to_k.bias"
        ):  # the same for all keys: no softmax sees it, its gradient is noise
            assert F.cosine_similarity(one.flatten(), found[1][1][name].flatten(), dim=0) > 0.97, name


def test_a_replayed_graph_is_the_call_after_each_publication(model):
    acting = acting_copy(model).eval().requires_grad_(False)
    for version in range(1, 4):
        with torch.no_grad():
            for parameter in model.trainable().values():
                parameter.mul_(1.02)
        copy_into(acting, snapshot(model))
        acting.weights_changed(version)
        for rows in (1, 3):
            inputs = acting.preprocess(worlds.observation(rows))
            drawn = acting._draw(rows, Noise(torch.arange(rows, device="cuda")), greedy=False)
            words = (acting._pictures(inputs), inputs["ids"], inputs["there"], inputs["state"], *drawn.values())
            with torch.no_grad():
                for _ in range(3):
                    acting._graphs(*words)
                graph = acting._graphs._capture(words)
                for replayed, called in zip(acting._graphs._replay(graph, words), acting._forward(*words), strict=True):
                    assert torch.equal(replayed, called)


def test_a_batch_runs_in_the_graph_of_the_next_size(model):
    acting = acting_copy(model).eval().requires_grad_(False)
    acting.weights_changed(0)
    for _ in range(3):
        action = act(acting, 3)
    assert {timing.shapes[0][0] for timing in acting._graphs.timings} == {4}
    assert action.actions.shape == (3, 2, 3)


def test_gelu_within_a_product_is_gelu_after_it():
    layer = nn.Linear(64, 128, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(3, 5, 64, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        wanted = F.gelu(layer(x).float(), approximate="tanh")
        torch.testing.assert_close(project_gelu(x, layer).float(), wanted, rtol=0.02, atol=0.02)
