"""Pictures, words, states and actions, against the libraries of the public code."""

from __future__ import annotations

import json
import shutil

import gr00t_worlds as worlds
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoTokenizer

import rlvla
from rlvla.batch import ObservationBatch
from rlvla.errors import CheckpointError, ConfigError
from rlvla.simulator import Observation
from rlvla.specs import ActionPart, Camera, TaskSpec
from rlvla_model_gr00t import tiny
from rlvla_model_gr00t.embodiments import EMBODIMENTS, Embodiment, Scaling, row_of
from rlvla_model_gr00t.header import HeadShape
from rlvla_model_gr00t.pictures import Pictures, cropped_resampling
from rlvla_model_gr00t.prompts import Prompts, read_tokenizer
from rlvla_model_gr00t.robot import ActionCodec, StateCodec


def picture(camera: Camera, array: np.ndarray) -> ObservationBatch:
    return ObservationBatch.of(Observation({camera.name: array[None]}, np.zeros((1, 1), np.float32), ["text"]), 8)


# ---- pictures ---------------------------------------------------------------------------------------------------------


def test_the_crop_is_of_the_side_not_of_the_area():
    weight = cropped_resampling(200, 100)
    used = (weight.sum(0) > 0).nonzero().flatten()
    assert (int(used[0]), int(used[-1])) == (5, 194)  # 0.95 of 200; of the area it would be 0.9747, from 3 to 197
    gradient = (weight @ torch.arange(200.0)).tolist()
    assert gradient[0] == pytest.approx(5.55, abs=0.2)
    assert gradient[-1] == pytest.approx(193.45, abs=0.2)


@pytest.mark.parametrize(("height", "width", "size"), [(256, 256, 224), (120, 161, 28)])
def test_pictures_are_cropped_scaled_and_cut_down_as_by_torch(height, width, size):
    camera = Camera("front", height, width)
    array = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    got = Pictures([camera], size, None)(picture(camera, array).images)[0, 0]
    tall, wide = int(height * 0.95), int(width * 0.95)
    top, left = round((height - tall) / 2.0), round((width - wide) / 2.0)
    cut = torch.from_numpy(array).permute(2, 0, 1)[None, :, top : top + tall, left : left + wide].float() / 255
    scaled = F.interpolate(cut, (size, size), mode="bilinear", antialias=True)
    wanted = (scaled[0] * 255).to(torch.uint8)
    assert float((got.int() - wanted.int()).abs().max()) <= 1
    assert float((got != wanted).float().mean()) < 0.01


def test_pictures_are_turned_upright_and_mirrored_as_the_checkpoint_saw_them():
    camera = Camera("front", 28, 28, orientation="rotated_180", mirrored=True)
    array = np.random.default_rng(1).integers(0, 256, (28, 28, 3), np.uint8)
    as_it_is = Pictures([camera], 28, None)(picture(camera, array).images)
    turned = Pictures([Camera("front", 28, 28)], 28, None)(
        picture(camera, np.ascontiguousarray(array[::-1, ::-1])).images
    )
    assert torch.equal(as_it_is, turned)
    unmirrored = Pictures([camera], 28, False)(picture(camera, array).images)
    assert torch.equal(unmirrored, as_it_is.flip(-1))


# ---- words ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def theirs(checkpoint):
    return AutoTokenizer.from_pretrained(checkpoint / "eagle")


@pytest.mark.parametrize("text", [*worlds.TEXTS, "It's 42 bowls,\n\n two  spaces  ", "can't DON'T"])
def test_words_are_transformers_tokens(checkpoint, theirs, text):
    ours = read_tokenizer(checkpoint / "eagle")
    assert ours.encode(text).ids == theirs(text)["input_ids"]


@pytest.mark.parametrize(("form", "said"), [("plain", "pick up the bowl"), ("listed", "['pick up the bowl']")])
def test_a_sequence_is_the_chat_form_with_four_tokens_a_picture(checkpoint, theirs, form, said):
    header = worlds.make(checkpoint).header
    prompts = Prompts(header, checkpoint / "eagle", 2, form, None)
    text = (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
        f"<image 1><img>{'<IMG_CONTEXT>' * 4}</img><image 2><img>{'<IMG_CONTEXT>' * 4}</img>{said}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    ids = prompts.ids("pick up the bowl")
    assert ids == theirs(text)["input_ids"]
    assert [place for place, one in enumerate(ids) if one == header.image_token] == prompts.places.tolist()
    assert ids[: prompts.text_from] == prompts.ids("another")[: prompts.text_from]


def test_padding_lies_on_the_right(checkpoint):
    model = worlds.make(checkpoint, pad_to=150)
    inputs = model.preprocess(worlds.observation(3))
    assert inputs["ids"].shape == (3, 150)
    for row in range(3):
        count = int(inputs["there"][row].sum())
        assert inputs["there"][row, :count].all()
        assert not inputs["ids"][row, count:].any()
        assert count == len(model.prompts.ids(worlds.TEXTS[row]))
    assert worlds.make(checkpoint, pad_to=None).preprocess(worlds.observation(1))["ids"].shape == (1, 570)


def test_an_instruction_beyond_the_width_is_named(checkpoint):
    spec = worlds.simulator_spec(tasks=(TaskSpec("drawn"),))  # it does not tell beforehand
    model = worlds.make(checkpoint, spec, pad_to=64)
    with pytest.raises(ConfigError, match=r"model\.pad_to: got 64, wanted \d+ or more: .* 'Put it on the plate"):
        model.preprocess(worlds.observation(3))


def test_a_width_below_the_simulators_own_instructions_is_refused_at_the_start(checkpoint):
    model = worlds.make(checkpoint)
    longest = len(model.prompts.ids(worlds.TEXTS[1]))
    tasks = (TaskSpec("short", worlds.TEXTS[0]), TaskSpec("drawn", "go", wordings=("go", worlds.TEXTS[1])))
    spec = worlds.simulator_spec(tasks=tasks)
    with pytest.raises(
        ConfigError, match=rf"model\.pad_to: got {longest - 1}, wanted {longest} or more: .* 'Put it on the plate"
    ):
        worlds.make(checkpoint, spec, pad_to=longest - 1)
    assert worlds.make(checkpoint, spec, pad_to=longest).preprocess(worlds.observation(1))["ids"].shape == (1, longest)


def test_masked_rows_have_the_width_of_the_simulators_longest_instruction(checkpoint, caplog):
    spec = worlds.simulator_spec(tasks=tuple(TaskSpec(text, text) for text in worlds.TEXTS[:2]))
    model = worlds.make(checkpoint, spec, padding="masked", pad_to=None, dtype="bf16")
    seen = worlds.observation(24)
    width = -(-max(len(model.prompts.ids(text)) for text in worlds.TEXTS[:2]) // 8) * 8
    found = worlds.act(model, seen)
    for rows in ([0], [0, 3, 6], list(range(8)), list(range(23, -1, -1))):  # who shares a batch in training is others
        inputs = model.preprocess(seen[rows])
        assert inputs["ids"].shape == (len(rows), width)
        with torch.no_grad():
            assert torch.equal(model.evaluate(inputs, found.replay[rows]).logp, found.logp[rows])
    assert model.count_tokens(seen).tolist() == [width] * 24
    assert not caplog.text
    with pytest.raises(ConfigError, match=r"model\.pad_to: None, but the simulator does not tell its instructions"):
        worlds.make(checkpoint, worlds.simulator_spec(tasks=(TaskSpec("drawn"),)), padding="masked", pad_to=None)
    long = "put " + "the black bowl " * 9
    model.prompts.batch([long, long])
    assert caplog.text.count("is longer than what the simulator says of its tasks") == 1


def test_a_tokenizer_of_other_weights_is_refused(checkpoint, tmp_path):
    other = tiny.write(tmp_path / "other", action_dim=3, state_dim=4, tags=("gr1",))
    file = other / "eagle/added_tokens.json"
    file.write_text(file.read_text().replace("<IMG_CONTEXT>", "<other>"))
    with pytest.raises(CheckpointError, match=r"not the tokenizer of these weights: <IMG_CONTEXT> is None, wanted \d+"):
        worlds.make(checkpoint, tokenizer_path=str(other / "eagle"))
    file.write_text('{"<|im_start|>": 9999}')
    with pytest.raises(CheckpointError, match="gives '<|im_start|>' the id 9999"):
        worlds.make(other)
    file.write_text('{"<|im_start|>": "last"}')
    with pytest.raises(
        CheckpointError, match=r"added_tokens\.json is damaged.*\n.*: got 'last', wanted a valid integer"
    ):
        worlds.make(other)


def test_a_tokenizer_without_a_special_token_is_refused(checkpoint, tmp_path):
    """Its prompt would be other tokens than those that the weights were trained with."""
    other = shutil.copytree(checkpoint / "eagle", tmp_path / "eagle")
    added = json.loads((other / "added_tokens.json").read_text())
    renamed = {{"<|im_start|>": "<|start|>", "<img>": "<image>"}.get(text, text): one for text, one in added.items()}
    (other / "added_tokens.json").write_text(json.dumps(renamed))
    with pytest.raises(
        CheckpointError, match=r"eagle is not the tokenizer.*<\|im_start\|>, <img> must be one token each"
    ):
        worlds.make(checkpoint, tokenizer_path=str(other))


def test_a_token_beyond_the_embeddings_is_refused(checkpoint, tmp_path):
    other = shutil.copytree(checkpoint / "eagle", tmp_path / "eagle")
    vocabulary = json.loads((other / "vocab.json").read_text())
    (other / "vocab.json").write_text(json.dumps({**vocabulary, "Ċ": 5000}))  # an end of a line
    with pytest.raises(CheckpointError, match=r"the id 5000, and they have embeddings for 0 to \d+"):
        worlds.make(checkpoint, tokenizer_path=str(other))


# ---- states and actions -----------------------------------------------------------------------------------------------


def test_states_are_scaled_and_padded_and_what_never_moved_is_zero():
    scaling = Scaling((0.5, 2.0, 0.0), (0.25, 0.0, 1.0))
    got = StateCodec(scaling, 6, zeros=False)(torch.tensor([[1.0, 7.0, -3.0]]))
    assert got.tolist() == [[2.0, 0.0, -3.0, 0.0, 0.0, 0.0]]
    clipped = StateCodec(Scaling(scaling.offset, scaling.scale, clipped=True), 3, zeros=False)
    assert clipped(torch.tensor([[1.0, 7.0, -3.0]])).tolist() == [[1.0, 0.0, -1.0]]
    raw = StateCodec(Scaling(scaling.offset, scaling.scale, True, constants_as_they_are=True), 3, zeros=False)
    assert raw(torch.tensor([[1.0, 0.7, -3.0]])).tolist() == [[1.0, pytest.approx(0.7), -1.0]]
    assert StateCodec(scaling, 4, zeros=True)(torch.ones(2, 7)).tolist() == [[0.0] * 4] * 2


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        ("min_max", (-0.9, 0.8), (0.0, 1.0)),
        ("q99", (-0.882, 0.784), (0.0, 0.98)),
        ("mean_std", (-0.475, 0.375), (0.25, 0.75)),
    ],
)
def test_statistics_become_ranges(tmp_path, kind, low, high):
    """What -1 and 1 stand for, of the first and the last action dimension."""
    header = worlds.make(tiny.write(tmp_path), worlds_of_seven(), embodiment_tag=None, embodiment_table="nvidia").header
    action = header.embodiment("new_embodiment", kind, None, None).action
    for place, ends in ((0, low), (6, high)):
        got = [action.offset[place] + sign * action.scale[place] for sign in (-1, 1)]
        assert got == pytest.approx(ends)
    assert action.clipped == (kind == "q99")


def worlds_of_seven():
    parts = (ActionPart("pose", 6), ActionPart("grip", 1, "gripper", closes_at="high"))
    return worlds.simulator_spec(action=parts, state=worlds.StatePart("all", 8) and (worlds.StatePart("all", 8),))


def test_actions_are_unscaled_and_grippers_turned_as_in_the_public_evaluation():
    """1 - 2 g, and then its sign: 1 opens, and LIBERO opens at -1."""
    embodiment = Embodiment("tag", (), Scaling((), ()), Scaling((0.0, 0.1, 0.5), (0.5, 0.2, 0.5)))
    config = rlvla.find("model", "gr00t").config(path="x")
    codec = ActionCodec(config, embodiment, worlds.simulator_spec().action)
    got = codec(torch.tensor([[[0.4, -1.0, 0.9], [4.0, 0.0, -0.2]]]))
    torch.testing.assert_close(got, torch.tensor([[[0.2, -0.1, -1.0], [1.0, 0.1, 1.0]]]))


def test_published_tables_disagree_in_one_tag_which_asks_for_a_choice():
    shape = HeadShape()
    assert row_of("gr1", None, None, shape) == 24
    assert row_of("libero_franka", None, None, shape) == 31
    assert row_of("maniskill_widowx", "rlinf", None, shape) == 30
    assert [row_of("new_embodiment", table, None, shape) for table in ("nvidia", "rlinf")] == [31, 10]
    assert row_of("anything", None, 7, shape) == 7
    with pytest.raises(ConfigError, match=r"nvidia 31, rlinf 10: choose the one"):
        row_of("new_embodiment", None, None, shape)
    with pytest.raises(ConfigError, match=r"give 'own_arm' no row: .*model\.embodiment_id"):
        row_of("own_arm", "rlinf", None, shape)
    with pytest.raises(ConfigError, match="got 32, wanted a row below 32"):
        row_of("own_arm", None, 32, shape)
    assert EMBODIMENTS["nvidia"]["oxe_droid"] == 17


def test_what_a_tokenizers_file_says_of_cutting_is_not_for_prompts(checkpoint, tmp_path):
    from tokenizers import Tokenizer

    folder = next(file for file in checkpoint.rglob("vocab.json")).parent
    tokenizer = read_tokenizer(folder)
    tokenizer.enable_truncation(3)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = "put the bowl on the plate"
    assert len(Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(text).ids) == 3
    assert read_tokenizer(tmp_path).encode(text).ids == read_tokenizer(folder).encode(text).ids
