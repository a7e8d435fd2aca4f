"""What models share of public checkpoint folders: JSON read by types, the index of shards, adapters, fingerprints."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest
from annotated_types import Ge

from rlvla.checkpoint_header import INDEX, Finite, read_adapter, read_as, shards_of
from rlvla.errors import CheckpointError
from rlvla.weight_files import fingerprint


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
