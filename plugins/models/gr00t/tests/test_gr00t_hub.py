"""``model.path`` and ``model.tokenizer_path`` on the model hub, against one on loopback."""

from __future__ import annotations

import json
import shutil

import gr00t_worlds as worlds
import pytest
import torch
from huggingface_hub import constants

import rlvla
from rlvla.testing.hub import COMMIT, fake_hub

NAME = "someone/tiny-gr00t"


@pytest.fixture
def hub(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    bare = shutil.copytree(checkpoint, tmp_path / "bare", ignore=shutil.ignore_patterns("eagle"))
    with fake_hub(bare, NAME, "v2") as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def test_headers_alone_describe_and_a_run_names_its_base_by_commit(hub, checkpoint, tmp_path):
    plugin, elsewhere = rlvla.find("model", "gr00t"), str(checkpoint / "eagle")
    options = {**worlds.COMMON, "path": f"{NAME}@v2", "tokenizer_path": elsewhere}
    assert plugin.describe(plugin.config(**options)).action_dim == 3
    assert not [name for name in hub.downloads() if name.endswith(".safetensors")]
    model, seen = worlds.make(f"{NAME}@v2", tokenizer_path=elsewhere), worlds.observation(2)
    assert model.manifest()["revision"] == COMMIT
    assert model.manifest()["embodiment"] == {"tag": "gr1", "row": 24}
    assert torch.equal(worlds.act(model, seen).value, worlds.act(worlds.make(checkpoint), seen).value)
    model.save(tmp_path / "run")
    assert json.loads((tmp_path / "run/config.json").read_text())["rlvla_base"] == f"{NAME}@{COMMIT}"
    again = worlds.make(tmp_path / "run", tokenizer_path=elsewhere)
    assert torch.equal(worlds.act(again, seen).value, worlds.act(model, seen).value)


def test_a_tokenizer_may_come_from_the_hub(hub, checkpoint, tmp_path, monkeypatch):
    with fake_hub(checkpoint / "eagle", "someone/eagle", "main") as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        model = worlds.make(tmp_path / "bare", tokenizer_path="someone/eagle")
        assert {"vocab.json", "merges.txt", "added_tokens.json"} <= set(server.downloads())
    seen = worlds.observation(2)
    assert torch.equal(worlds.act(model, seen).value, worlds.act(worlds.make(checkpoint), seen).value)
