"""What decoder layers of several models share, against its plain form."""

import torch
import torch.nn.functional as F
from torch import nn

from rlvla.networks import decoder


def test_a_decoder_layer_is_norms_attention_and_swiglu_one_after_another():
    width, hidden, eps = 8, 12, 1e-5
    layer = decoder.DecoderLayer(decoder.Attention(width, 2, 1, 4), width, hidden, eps)
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    x, delta = (torch.randn(5, width, generator=generator) for _ in range(2))

    def norm(y, part):
        return F.rms_norm(y, (width,), part.weight, eps)

    entered, normed = layer.enter(x, delta, lambda function: function)
    left, inner = layer.leave(entered, normed, lambda function: function)
    out = left + layer.down(inner)
    plain = x + delta
    attended = plain + layer.self_attn.o_proj(norm(plain, layer.input_layernorm))
    seen = norm(attended, layer.post_attention_layernorm)
    wanted = attended + layer.mlp.down_proj(F.silu(layer.mlp.gate_proj(seen)) * layer.mlp.up_proj(seen))
    torch.testing.assert_close(out, wanted)
    assert layer.pack()
    assert not layer.pack()  # they lie together now
    alone, _ = layer.enter(x, None, lambda function: function)
    assert alone is x
    assert sum(map(len, layer.stacks())) == len([one for one in layer.modules() if isinstance(one, nn.Linear)]) == 7
