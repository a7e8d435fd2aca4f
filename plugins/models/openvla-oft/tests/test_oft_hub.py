"""``model.path`` as ``org/name@revision``, against a hub on loopback."""

from __future__ import annotations

import json
from pathlib import Path

import oft_worlds as worlds
import pytest
import torch
from huggingface_hub import constants

import rlvla
from rlvla.errors import CheckpointError, ConfigError
from rlvla.testing.hub import COMMIT, FakeHub, fake_hub

NAME = "someone/tiny-oft"


@pytest.fixture
def hub(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    with fake_hub(checkpoint, NAME, "v2") as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def describe(path: str, **options):
    plugin = rlvla.find("model", "openvla-oft")
    return plugin.describe(plugin.config(**{**worlds.COMMON, "path": path, **options}))


def test_describing_downloads_headers_alone(hub: FakeHub):
    assert describe(f"{NAME}@v2").action_dim == 3
    assert "config.json" in hub.downloads()
    assert all(name.endswith(".json") for name in hub.downloads())


def test_a_model_is_downloaded_once_and_its_revision_is_recorded(hub: FakeHub, checkpoint: Path):
    model = worlds.make(f"{NAME}@v2")
    assert model.manifest()["revision"] == COMMIT
    assert model.manifest()["path"] == f"{NAME}@v2"
    seen = worlds.observation(2)
    assert torch.equal(worlds.act(model, seen).logp, worlds.act(worlds.make(checkpoint), seen).logp)
    before = hub.downloads()
    assert len(set(before)) == len(before)
    worlds.make(f"{NAME}@v2")
    assert hub.downloads() == before


def test_a_broken_download_goes_on_where_it_ended(hub: FakeHub, monkeypatch):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 4096)  # written to disk so much at a time
    shard = "model-00001-of-00002.safetensors"
    hub.break_off = {shard}
    worlds.make(f"{NAME}@v2")
    ranges = [asked for method, path, asked in hub.asked if method == "GET" and path.endswith(shard)]
    assert len(ranges) == 2
    assert ranges[0] is None
    assert ranges[1] is not None
    assert int(ranges[1].removeprefix("bytes=").partition("-")[0]) > 0


def test_an_adapter_names_its_base_by_commit(hub: FakeHub, tmp_path, monkeypatch):
    model, seen = worlds.make(f"{NAME}@v2"), worlds.observation(2)
    model.save(tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == f"{NAME}@{COMMIT}"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "another machine"))
    assert describe(str(tmp_path / "adapter")).action_dim == 3
    again = worlds.make(tmp_path / "adapter")
    again.load(tmp_path / "adapter")
    assert torch.equal(worlds.act(again, seen).logp, worlds.act(model, seen).logp)
    again.save(tmp_path / "further")
    config = json.loads((tmp_path / "further/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == f"{NAME}@{COMMIT}"


def test_what_the_hub_does_not_have_is_named(hub: FakeHub):
    with pytest.raises(CheckpointError, match=r"someone/other: no such folder here, and not found on the model hub"):
        describe("someone/other")
    with pytest.raises(
        CheckpointError, match=r"someone/tiny-oft@v9: no such folder here, and not found on the model hub"
    ):
        describe(f"{NAME}@v9")


def test_no_hub_at_all(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(CheckpointError, match="no such folder here, and not found on the model hub"):
        describe(NAME)
    with pytest.raises(ConfigError, match=r"model\.unnorm_key"):
        describe(str(checkpoint), unnorm_key="nothing")
