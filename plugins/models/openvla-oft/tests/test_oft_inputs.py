"""What goes in and comes out: pictures, prompts, actions, in the simulator's words."""

from __future__ import annotations

import io
import math

import numpy as np
import oft_worlds as worlds
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from scipy.spatial.transform import Rotation
from transformers import AutoTokenizer

import rlvla
from rlvla.conventions import euler_to_axis_angle
from rlvla.errors import ConfigError
from rlvla.networks.pictures import resampling
from rlvla.specs import ActionPart, Camera, TaskSpec
from rlvla_model_openvla_oft import jpeg
from rlvla_model_openvla_oft.actions import CENTRES, ActionCodec, value_of
from rlvla_model_openvla_oft.header import Statistics
from rlvla_model_openvla_oft.pictures import Pictures, cropping, saturated


def config(**options):
    return rlvla.find("model", "openvla-oft").config(**options)


# ---- actions ----------------------------------------------------------------------------------------------------------


def test_ends_of_the_bins():
    ids = torch.tensor([31744, 31745, 31746, 31999])
    edges = np.linspace(-1, 1, 256)
    centres = (edges[:-1] + edges[1:]) / 2
    wanted = centres[np.clip(32000 - ids.numpy() - 1, 0, 254)]
    assert wanted[0] == wanted[1] > wanted[2] > wanted[3]  # the higher the id, the lower the action
    np.testing.assert_allclose(value_of(ids - 31744).numpy(), wanted, atol=1e-7)
    digits = np.digitize(CENTRES.numpy(), edges)  # what training made of an action
    np.testing.assert_allclose(value_of(torch.as_tensor(32000 - digits - 31744)).numpy(), CENTRES.numpy(), atol=1e-7)


LIBERO_LIKE = (
    ActionPart("position", 3, scale=0.05),
    ActionPart("rotation", 3, scale=0.5, rotation="axis_angle"),
    ActionPart("gripper", 1, "gripper", closes_at="high"),
)
STATISTICS = Statistics("some", (-0.5,) * 6 + (0.0,), (0.75,) * 6 + (1.0,), (True,) * 6 + (False,))


def test_actions_are_unnormalised_and_grippers_turned_as_in_the_public_evaluation():
    codec = ActionCodec(config(), STATISTICS, LIBERO_LIKE)
    normalised = torch.tensor([[[-1.0, 0.0, 1.0, 0.5, -0.5, 0.25, 0.9], [0.0] * 6 + [0.1]]])
    actions = codec(normalised)
    wanted = 0.5 * (normalised[0, 0, :6] + 1) * 1.25 - 0.5
    torch.testing.assert_close(actions[0, 0, :6], wanted, rtol=0, atol=1e-6)
    assert actions[0, :, 6].tolist() == [
        -1.0,
        1.0,
    ]  # 1 opens in the data, -1 opens in the simulator: 2g-1, sign, times -1


def test_a_gripper_that_closes_at_the_low_end_and_one_in_between():
    parts = (*LIBERO_LIKE[:2], ActionPart("gripper", 1, "gripper", low=0.0, high=0.04, closes_at="low"))
    actions = ActionCodec(config(gripper_binary=False), STATISTICS, parts)(torch.full((1, 1, 7), 0.25))
    assert actions[0, 0, 6] == pytest.approx(0.01)


def test_metres_and_euler_angles_become_normalised_axis_angles():
    codec = ActionCodec(config(action_unit="si", rotation="euler_xyz"), STATISTICS, LIBERO_LIKE)
    raw = torch.tensor([0.01, -0.02, 0.03, 0.1, -0.2, 0.15])
    normalised = torch.cat([(raw + 0.5) / 1.25 * 2 - 1, torch.zeros(1)])
    actions = codec(normalised[None, None])[0, 0]
    torch.testing.assert_close(actions[:3], raw[:3] / 0.05, rtol=0, atol=1e-4)
    wanted = Rotation.from_euler("xyz", raw[3:].numpy()).as_rotvec() / 0.5
    np.testing.assert_allclose(actions[3:6].numpy(), wanted, atol=1e-4)


def test_euler_angles_against_scipy():
    angles = torch.randn(100, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wanted = Rotation.from_euler("xyz", angles.numpy()).as_matrix()
    ours = Rotation.from_rotvec(euler_to_axis_angle(angles).numpy()).as_matrix()
    np.testing.assert_allclose(ours, wanted, atol=1e-12)
    assert torch.equal(euler_to_axis_angle(torch.zeros(3)), torch.zeros(3))


def test_joint_positions_pass_and_stay_within_bounds():
    parts = (ActionPart("joints", 2, "absolute", low=-0.4, high=3.0, unit="rad", frame="joint"),)
    statistics = Statistics("arm", (-2.0, 0.0), (2.0, 4.0), (True, True))
    actions = ActionCodec(config(), statistics, parts)(torch.tensor([[[-0.5, 0.0]]]))
    torch.testing.assert_close(actions, torch.tensor([[[-0.4, 2.0]]]))


def test_two_arms_of_joints_and_grippers():
    def arm(side):
        joints = ActionPart(f"{side}_joints", 6, "absolute", low=-3.0, high=3.0, unit="rad", frame="joint")
        return joints, ActionPart(f"{side}_gripper", 1, "gripper", low=0.0, high=1.0, closes_at="low")

    statistics = Statistics("aloha", (-2.0,) * 14, (2.0,) * 14, tuple(place % 7 != 6 for place in range(14)))
    codec = ActionCodec(config(gripper_binary=False), statistics, (*arm("left"), *arm("right")))
    normalised = torch.linspace(-0.9, 0.9, 14)[None, None]
    actions = codec(normalised)[0, 0]
    joints = [place for place in range(14) if place % 7 != 6]
    torch.testing.assert_close(actions[joints], 2 * normalised[0, 0, joints])
    torch.testing.assert_close(actions[[6, 13]], normalised[0, 0, [6, 13]].clamp(0, 1))


@pytest.mark.parametrize(
    ("part", "options", "words"),
    [
        (ActionPart("grip", 1, "gripper"), {}, "which end closes 'grip'"),
        (ActionPart("move", 1, unit="m"), {}, "takes 'move' in m: set 'si'"),
        (ActionPart("move", 1), {"action_unit": "si"}, "how far a value of 1 moves 'move'"),
        (ActionPart("turn", 1, rotation="rot6d", scale=1.0), {}, "takes 'turn' as rot6d"),
    ],
)
def test_parts_that_the_checkpoint_cannot_give(part, options, words):
    with pytest.raises(ConfigError, match=words):
        ActionCodec(config(**options), Statistics("one", (0.0,), (1.0,), (True,)), (part,))


# ---- pictures ---------------------------------------------------------------------------------------------------------


def test_the_crop_keeps_nine_tenths_of_the_area_not_of_the_side():
    ramp = torch.arange(224.0)[:, None].expand(224, 224)
    cut = cropping(224) @ ramp @ cropping(224).T
    kept = (cut[-1, 0] - cut[0, 0]) / 223
    assert float(kept) ** 2 == pytest.approx(0.9, abs=1e-5)
    assert float(cut[0, 0] + cut[-1, 0]) == pytest.approx(223, abs=1e-3)
    theta = torch.eye(2, 3)[None] * math.sqrt(0.9)
    picture = torch.randn(1, 1, 224, 224, generator=torch.Generator().manual_seed(0))
    wanted = F.grid_sample(picture, F.affine_grid(theta, [1, 1, 224, 224], align_corners=True), align_corners=True)
    torch.testing.assert_close(cropping(224) @ picture @ cropping(224).T, wanted, rtol=0, atol=1e-3)


def test_a_cropped_picture_is_what_the_public_evaluation_makes_of_it():
    """A hand-made picture: rows of 0, 55, 110, 165 and 220, of the size that the crop wants.

    Of its four steps sqrt(0.9) is kept, so rows are read at 0.10263 and then every 0.94868: 5.645, 57.822, 110, 162.178 and
    214.355. The public conversion to uint8 takes the whole part of 255.5 / 255 times that; rounding would give 6 and 58.
    """
    spec = worlds.simulator_spec(cameras=(Camera("front", 5, 5),))
    shown = worlds.observation(1, spec)
    shown.images["front"] = torch.arange(0, 221, 55, dtype=torch.uint8)[None, :, None, None].expand(1, 5, 5, 3)
    pictures = Pictures(spec.cameras, 5, "lanczos", through_jpeg=False, crop=True, mirrored=None)
    got = pictures(shown)[0, 0]
    assert got[0, :, 0].tolist() == [5, 57, 110, 162, 214]
    assert (got == got[:1, :, :1]).all()
    values = torch.tensor([0.0, 0.49, 0.997, 0.999, 127.7, 127.76, 254.4, 254.5, 255.0])
    assert saturated(values).tolist() == [0, 0, 0, 1, 127, 128, 254, 254, 255]
    whole = torch.arange(256.0)
    assert torch.equal(saturated(whole), whole)


@pytest.mark.parametrize(("size", "wanted"), [(256, 224), (96, 224), (640, 28)])
def test_bicubic_is_torchs_antialiased(size, wanted):
    picture = 255 * torch.rand(1, 1, size, size, generator=torch.Generator().manual_seed(0))
    weight = resampling(size, wanted, "bicubic")
    theirs = F.interpolate(picture, (wanted, wanted), mode="bicubic", antialias=True)
    torch.testing.assert_close(weight @ picture @ weight.T, theirs, rtol=0, atol=1e-2)  # its weights are fp32


@pytest.mark.parametrize(("size", "wanted"), [(256, 224), (96, 224)])
def test_lanczos_is_pillows(size, wanted):
    picture = 255 * torch.rand(size, size, generator=torch.Generator().manual_seed(0))
    weight = resampling(size, wanted, "lanczos")
    theirs = Image.fromarray(picture.numpy()).resize((wanted, wanted), Image.Resampling.LANCZOS)
    np.testing.assert_allclose((weight @ picture @ weight.T).numpy(), np.asarray(theirs), atol=1e-3)


@pytest.mark.parametrize(("height", "width"), [(256, 256), (90, 100)])
def test_a_jpeg_round_trip_is_pillows(height, width):
    coarse = torch.rand(1, 3, height // 13, width // 13, generator=torch.Generator().manual_seed(0))
    picture = (255 * F.interpolate(coarse, (height, width), mode="bicubic").clamp(0, 1)).round()
    picture += 3 * torch.randn(picture.shape, generator=torch.Generator().manual_seed(1))
    picture = picture.round().clamp(0, 255)
    array, file = picture[0].permute(1, 2, 0).to(torch.uint8).numpy(), io.BytesIO()
    Image.fromarray(array).save(file, "JPEG", quality=95, subsampling="4:2:0")
    theirs = np.asarray(Image.open(file)).astype(float)
    ours = jpeg.round_trip(picture)[0].permute(1, 2, 0).numpy()
    lost, apart = np.abs(theirs - array), np.abs(ours - theirs)
    assert lost.mean() > 2
    assert apart.mean() < 0.5  # of 255: libjpeg's cosine transform is in whole numbers, ours is not
    assert apart.max() < 10


def test_pictures_are_turned_upright_and_mirrored_as_the_checkpoint_saw_them():
    spec = worlds.simulator_spec()
    shown = worlds.observation(1, spec)
    raw = shown.images["front"][:, :32, :32]

    def seen(trained, **changes):
        camera = Camera("front", 32, 32, **changes)
        changed = shown.clone()
        changed.images["front"] = raw
        return Pictures([camera], 32, "bicubic", through_jpeg=False, crop=False, mirrored=trained)(changed)[0, 0]

    plain = raw[0].permute(2, 0, 1)
    assert torch.equal(seen(None), plain)
    assert torch.equal(seen(None, mirrored=True), plain)
    assert torch.equal(seen(True), plain.flip(2))
    assert torch.equal(seen(True, mirrored=True), plain)
    assert torch.equal(seen(None, orientation="rotated_180"), plain.flip(1, 2))
    assert torch.equal(seen(True, orientation="rotated_180"), plain.flip(1))
    assert torch.equal(seen(None, orientation="upside_down"), plain.flip(1))


def test_each_of_three_cameras_is_seen_in_the_order_of_the_roles(checkpoint):
    roles = ("primary", "wrist_left", "wrist_right")
    spec = worlds.simulator_spec(cameras=tuple(Camera(role, 32, 32, role) for role in reversed(roles)))
    model, seen = worlds.make(checkpoint, spec, cameras=roles, center_crop=False), worlds.observation(1, spec)
    pictures = model.preprocess(seen)["pictures"]
    assert pictures.shape == (1, 3, 3, 28, 28)
    assert worlds.act(model, seen).logp.shape == (1, 2, 3)
    for number, role in enumerate(roles):
        other = seen.clone()
        other.images[role] = 255 - seen.images[role]
        changed = (model.preprocess(other)["pictures"] != pictures).flatten(2).any(-1)[0]
        assert changed.tolist() == [place == number for place in range(3)]
        assert not torch.equal(worlds.act(model, other).logp, worlds.act(model, seen).logp)


def test_a_picture_of_another_size_than_declared_is_named(checkpoint):
    model, seen = worlds.make(checkpoint), worlds.observation(1)
    seen.images["front"] = seen.images["front"][:, :16]
    with pytest.raises(ValueError, match=r"camera 'front': got a picture \(16, 48, 3\), wanted \(40, 48, 3\)"):
        model.preprocess(seen)


@pytest.mark.parametrize(
    ("preset", "jpeg", "resize", "crop", "stop", "temperature"),
    [
        ("openvla-oft", True, "lanczos", True, True, 1.0),
        ("rlinf", False, "bicubic", False, False, 1.6),
        ("simplevla-rl", True, "lanczos", True, True, 1.6),
    ],
)
def test_a_preset_is_its_options(checkpoint, preset, jpeg, resize, crop, stop, temperature):
    options = {"jpeg": jpeg, "resize": resize, "center_crop": crop, "stop_token": stop, "temperature": temperature}
    named = worlds.make(checkpoint, preset=preset)
    other = "rlinf" if preset != "rlinf" else "openvla-oft"
    spelled, changed = worlds.make(checkpoint, preset=other, **options), worlds.make(checkpoint, preset=other)
    seen = worlds.observation(2)
    one, two, three = (worlds.act(model, seen) for model in (named, spelled, changed))
    assert torch.equal(one.logp, two.logp)
    assert not torch.equal(one.logp, three.logp)


# ---- prompts ----------------------------------------------------------------------------------------------------------


def test_prompts_are_transformers_tokens_and_end_in_a_lone_blank(checkpoint):
    model = worlds.make(checkpoint)
    theirs = AutoTokenizer.from_pretrained(checkpoint)
    for text in worlds.TEXTS:
        ids = model.prompts.ids(text)
        wanted = theirs(f"In: What action should the robot take to {text.lower()}?\nOut:")["input_ids"]
        assert ids == [*wanted, 29871]
        assert ids[0] == 1
    tokens = model.count_tokens(worlds.observation(3))
    assert tokens.tolist() == [4 + 6 + 1 + len(model.prompts.ids(text)) for text in worlds.TEXTS]


def test_padding_lies_after_begin_of_text_and_only_where_lengths_differ(checkpoint):
    prompts = worlds.make(checkpoint).prompts
    ids, there = prompts.batch([worlds.TEXTS[0]] * 2)
    assert there is None
    assert ids.tolist() == [prompts.ids(worlds.TEXTS[0])] * 2
    ids, there = prompts.batch(worlds.TEXTS)
    assert ids.shape[1] % 8 == 0
    assert ids.shape[1] - max(len(prompts.ids(text)) for text in worlds.TEXTS) < 8
    for row, mask, text in zip(ids, there, worlds.TEXTS, strict=True):
        assert row[mask].tolist() == prompts.ids(text)
        assert mask[0]
        assert mask[~mask.cumsum(0).eq(1)].all()  # nothing is missing after the second token that is there
        assert (row[~mask] == 32000).all()


def test_pictures_are_scaled_in_full_precision_whatever_the_products_of_training(checkpoint):
    model, seen = worlds.make(checkpoint), worlds.observation(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        coarse = model.preprocess(seen)
        logp = worlds.act(model, seen).logp
    assert torch.equal(coarse["pictures"], model.preprocess(seen)["pictures"])
    assert torch.equal(logp, worlds.act(model, seen).logp)


def test_a_prompt_beyond_its_width_is_named(checkpoint):
    spec = worlds.simulator_spec(tasks=(TaskSpec("task", worlds.TEXTS[0]),))
    with pytest.raises(
        ConfigError, match=r"model\.prompt_tokens: got 16, but the prompt of 'pick up the black bowl' has"
    ):
        worlds.make(checkpoint, spec, prompt_tokens=16)  # before a simulator starts
    model = worlds.make(checkpoint, prompt_tokens=16)
    with pytest.raises(
        ConfigError, match=r"model\.prompt_tokens: got 16, but the prompt of .* has \d+ tokens: raise it"
    ):
        model.preprocess(worlds.observation(1))


def test_the_state_is_scaled_to_its_percentiles_and_clipped(headed):
    model = worlds.make(headed, **worlds.HEADED)
    seen = worlds.observation(3)
    torch.testing.assert_close(model.preprocess(seen)["state"], seen.state.clamp(-1, 1), rtol=0, atol=1e-6)
    other = seen.clone()
    other.state = seen.state * 0.5
    # Actions: a Gaussian's log-probs are of the noise alone, but for rounding.
    one, two = (worlds.act(model, some).actions for some in (seen, other))
    assert float((one - two).abs().max()) > 1e-4
