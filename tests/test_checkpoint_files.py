"""What models share of public checkpoint folders: JSON read by types, the index of shards, adapters, fingerprints."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest
import torch
from annotated_types import Ge
from safetensors.torch import save_file

from rlvla.checkpoint_header import (
    INDEX,
    CheckpointHeader,
    Finite,
    Positive,
    read_adapter,
    read_as,
    read_json,
    refuse_others,
    shards_of,
    tensor_names,
)
from rlvla.errors import CheckpointError
from rlvla.weight_files import compare, fingerprint, read_shards, read_tensors


@dataclass(frozen=True)
class Inner:
    width: Annotated[int, Ge(1)]


@dataclass(frozen=True)
class Outer:
    inner: Inner
    kind: Literal["a", "b"] = "a"
    scale: Finite = 1.0


def test_a_part_of_a_file_is_read_by_types_and_further_keys_are_ignored():
    assert read_as(Outer, {"inner": {"width": 3, "colour": "red"}, "other": 1}, "file") == Outer(Inner(3))


def test_every_field_that_is_wrong_is_named_with_got_and_wanted():
    with pytest.raises(CheckpointError) as caught:
        read_as(Outer, {"inner": {"width": 0}, "kind": "c" * 200, "scale": float("nan")}, "some.json")
    first, *lines = str(caught.value).splitlines()
    assert first == "some.json is damaged, or not what is read here (download it again):"
    assert lines == [
        "  inner.width: got 0, wanted greater than or equal to 1",
        f"  kind: got '{'c' * 79} ..., wanted 'a' or 'b'",
        "  scale: got nan, wanted a finite number",
    ]
    with pytest.raises(CheckpointError, match=r"(?s)inner: missing"):
        read_as(Outer, {}, "some.json")
    with pytest.raises(CheckpointError, match=r"(?s)inner: got None, wanted a dictionary"):
        read_as(Outer, {"inner": None}, "some.json")


def test_shards_are_those_of_the_index_and_lie_beside_it(tmp_path):
    assert shards_of(tmp_path) == ()
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"x": "2.safetensors", "y": "1.safetensors"}}))
    assert shards_of(tmp_path) == (tmp_path / "1.safetensors", tmp_path / "2.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"x": "/etc/passwd"}}))
    with pytest.raises(CheckpointError, match="names '/etc/passwd', wanted names of files beside it"):
        shards_of(tmp_path)


def test_an_adapter_says_rank_scale_and_base(tmp_path):
    file = tmp_path / "adapter_config.json"
    plain = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "use_dora": False, "rank_pattern": {}}
    file.write_text(json.dumps({**plain, "base_model_name_or_path": "org/name"}))
    found = read_adapter(tmp_path)
    assert (found.rank, found.alpha, found.base) == (8, 16, "org/name")
    file.write_text(json.dumps({**plain, "use_dora": True, "bias": "all"}))
    with pytest.raises(
        CheckpointError, match=r"got bias 'all' \(wanted 'none'\), use_dora True \(wanted None\): this is not"
    ):
        read_adapter(tmp_path)


def test_a_fingerprint_sees_a_change_in_the_middle_of_a_large_file(tmp_path: Path):
    file, data = tmp_path / "shard", bytearray(8 << 20)
    file.write_bytes(data)
    before = fingerprint(file)
    assert fingerprint(file) == before
    data[4 << 20 : (4 << 20) + (1 << 16)] = b"x" * (1 << 16)
    file.write_bytes(data)
    assert fingerprint(file) != before


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64, torch.bool, torch.float8_e4m3fn])
def test_weights_that_are_quantised_are_not_taken_for_weights(tmp_path, dtype):
    save_file({"layer.weight": torch.ones(2, 3).to(dtype), "bias": torch.ones(3)}, tmp_path / "file.safetensors")
    found = read_tensors(tmp_path / "file.safetensors")
    wanted = {"layer.weight": torch.zeros(2, 3), "bias": torch.zeros(3)}
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(
        CheckpointError,
        match=rf"quantised \(1\): layer\.weight: got {name}, wanted one of bfloat16, float16, float32, float64",
    ):
        compare("file", wanted, found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_weights_of_any_floating_point_kind_are_taken(dtype):
    compare("file", {"x": torch.zeros(2)}, {"x": torch.ones(2, dtype=dtype)})


def test_weights_beyond_fp32_are_not_finite(tmp_path):
    save_file({"x": torch.tensor([1e39, 0.0], dtype=torch.float64)}, tmp_path / "file.safetensors")
    with pytest.raises(CheckpointError, match="not finite: x"):
        read_tensors(tmp_path / "file.safetensors")


@pytest.mark.parametrize(("value", "good"), [(1e38, True), (1.1e38, False), (-4e38, False), (0.0, True)])
def test_numbers_are_such_as_fp32_can_hold(value, good):
    if good:
        assert read_as(dict[str, Finite], {"x": value}, "file") == {"x": value}
        return
    with pytest.raises(
        CheckpointError, match=r"x: got .*, wanted a number from -1e\+38 to 1e\+38, which fp32 can hold"
    ):
        read_as(dict[str, Finite], {"x": value}, "file")


def test_positive_numbers_are_positive_in_fp32():
    assert read_as(dict[str, Positive], {"x": 1e-37}, "file")
    with pytest.raises(CheckpointError, match="x: got 1e-46, wanted greater than 0, in fp32 too"):
        read_as(dict[str, Positive], {"x": 1e-46}, "file")


def test_fields_that_choose_another_network_are_all_named():
    data = {"a": {"b": 1, "c": None}, "d": "x", "e": 3}
    refuse_others(data, {"a.b": 1, "a.c": None, "a.z": 5, "z.z": 5, "d.z": 5}, "some.json")
    with pytest.raises(CheckpointError) as caught:
        refuse_others(data, {"a.b": 2, "a.c": "y", "d": "x"}, "some.json")
    first, *lines = str(caught.value).splitlines()
    assert first.startswith("some.json asks for another network than the one that is computed here")
    assert lines == ["  a.b: got 1, wanted 2", "  a.c: got None, wanted 'y'"]


def test_names_in_a_file_are_read_without_its_tensors(tmp_path):
    file = tmp_path / "file.safetensors"
    save_file({"b": torch.ones(2), "a": torch.ones(1)}, file, metadata={"format": "pt"})
    assert sorted(tensor_names(file)) == ["a", "b"]
    for damaged in (b"", b"\xff" * 16, (3).to_bytes(8, "little") + b"[1]", (2).to_bytes(8, "little") + b"{x"):
        file.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="cannot be read"):
            tensor_names(file)


def test_a_weight_that_is_there_twice_is_refused(tmp_path):
    for file, names in (("a.safetensors", ("x", "y")), ("b.safetensors", ("y",))):
        save_file({name: torch.zeros(2) for name in names}, tmp_path / file)
    with pytest.raises(
        CheckpointError, match=r"'y' is there twice, as 'y' of a\.safetensors and as 'y' of b\.safetensors"
    ):
        read_shards(tmp_path, [tmp_path / "a.safetensors", tmp_path / "b.safetensors"])


def test_shards_without_their_index_are_not_no_weights(tmp_path):
    save_file({"x": torch.zeros(2)}, tmp_path / "model-00001-of-00002.safetensors")
    with pytest.raises(
        CheckpointError, match=r"holds model-00001-of-00002\.safetensors, but no model\.safetensors\.index"
    ):
        read_shards(tmp_path, shards_of(tmp_path))


def test_json_that_is_nested_without_end_is_damage(tmp_path):
    (tmp_path / "config.json").write_text('{"a":' * 100_000)
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        read_json(tmp_path / "config.json")


def test_weights_are_drawn_or_read(tmp_path):
    save_file({"x": torch.zeros(2)}, tmp_path / "model.safetensors")
    assert CheckpointHeader(folder=tmp_path, config={}).shards
    with pytest.raises(CheckpointError, match=r"says rlvla_random .*, beside model\.safetensors"):
        CheckpointHeader(folder=tmp_path, config={}, random_seed=0)
