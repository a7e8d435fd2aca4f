"""Profiles of a machine, and what a run will do with its time there."""

import dataclasses
import json

import pytest

import rlvla
from rlvla import cli, configs, forecast, plan, profile
from rlvla.checks import check
from rlvla.profile import Profile

MEASURED = Profile(
    machine="4 CPU cores",
    cores=4,
    sim="fake",
    model="fake",
    horizon=3,
    device="cuda",
    simulate={1: (1.0,), 2: (2.0,)},
    generate={1: 0.5, 2: 1.0, 4: 2.0},
    reset=0.0,
    train_sample=0.25,
    snapshot=0.0,
    offer=0.0,
)


def recipe(scheduler="sync", stages=None, **run):
    return {
        "sim": {"use": "fake", "num_envs": 4},
        "model": {"use": "fake"},
        "algo": {"use": "ppo", "window": 3, "passes": 1, "minibatch_size": None},
        "scheduler": {"use": scheduler, **({"stages": stages} if stages else {})},
        "run": {"slots": 2, "device": "cpu", "steps": 10, **run},
    }


def forecast_of(measured=MEASURED, **changes):
    config = configs.read(recipe(**changes))
    return forecast.forecast(measured, config, check(config))


def test_the_line_of_a_batch_and_the_steps_of_a_slot():
    assert MEASURED.line() == (pytest.approx(0.0), pytest.approx(0.5))
    other = dataclasses.replace(MEASURED, generate={1: 3.0, 3: 5.0}, simulate={2: (4.0, 6.0, 5.0), 4: (9.0,)})
    assert other.line() == (pytest.approx(2.0), pytest.approx(1.0))
    assert other.chunk_steps(3) == pytest.approx((5.6, 8.4, 7.0))  # 5 s of two and 9 s of four: 7 s of three
    assert other.chunk_steps(8) == pytest.approx((17.0,))


def test_forecasts_by_hand():
    """Windows of 3 chunks in 4 environments: sync plays 3 x (a batch of four 2 s + slots of two 2 s), and trains 12 x 0.25 s."""
    found = forecast_of()
    assert found.step_seconds == pytest.approx(15.0)
    assert found.env_steps_per_second == pytest.approx(12 * 3 / 15)
    assert found.busy["gpu"] == pytest.approx((6 + 3) / 15)
    assert found.busy["cores"] == pytest.approx(3 * 2 * 2 / 4 / 15)
    assert found.device_bound == pytest.approx(12 * 3 / 9)
    assert found.bottleneck == "gpu"
    # a second slot generates while the first simulates: 1 + 2 + 1 + 2 + 1 + 2 for the first, one more for the second
    assert forecast_of(scheduler="hybrid", stages=2).step_seconds == pytest.approx(10.0 + 3.0)


def test_the_controllers_share_and_where_it_lives():
    """In 15 s 6 chunk steps of slots, with 12 rows."""
    for runtime, (call, row), lives in (
        ("local", (0.57e-3, 0.011e-3), "a thread of the process of the run"),
        ("ray", (1.67e-3, 0.016e-3), "on the machine that starts the run"),
    ):
        config = configs.read(recipe(runtime=runtime))
        found = forecast.forecast(MEASURED, config, check(config))
        assert found.controller == pytest.approx((6 * call + 12 * row) / 15)
        assert f"controller: {lives}; busy on {found.controller:.1%} of a core" in plan.text(
            config, check(config), MEASURED
        )


def test_a_controller_that_is_the_bound_is_said_to_be(monkeypatch):
    before = forecast_of()
    monkeypatch.setattr(forecast, "_CONTROLLER_S", {"local": (10.0, 0.0)})
    found = forecast_of()
    assert found.controller == pytest.approx(6 * 10 / 15)
    assert found.bottleneck == "controller"
    assert found.env_steps_per_second == pytest.approx(before.env_steps_per_second / 4)
    assert found.busy["gpu"] == pytest.approx(before.busy["gpu"] / 4)
    config = configs.read(recipe())
    assert "it is the bound: it would need 4.0 cores and has one, which leaves 0.25" in plan.text(
        config, check(config), MEASURED
    )


def test_simulators_that_wait_more_than_they_compute_share_a_core():
    """Two slots of 2 s each on one core: one after the other if they fill it, side by side if each takes a quarter."""
    for share, seconds in ((1.0, 3 * (2 + 4) + 3), (0.25, 3 * (2 + 2) + 3)):
        found = forecast_of(dataclasses.replace(MEASURED, cores=1, core_share=share))
        assert found.step_seconds == pytest.approx(seconds)
        assert found.busy["cores"] == pytest.approx(share * 3 * 4 / seconds)
    assert profile.core_share([(2.0, 0.5), (2.0, 1.5)]) == 0.5
    assert profile.core_share([(2.0, 5.0)]) == 1.0
    assert profile.core_share([(2.0, 0.0)]) == 1.0


def test_what_is_trained_counts_and_not_what_is_played_ahead():
    """The trainer takes 12 x 1 s, so full-async trains 36 env steps in 12 s, whatever it plays ahead."""
    slow = dataclasses.replace(MEASURED, train_sample=1.0)
    for staleness in (1, 5):
        config = configs.read({**recipe(), "scheduler": {"use": "full-async", "max_staleness": staleness}})
        config = configs.read({**config.to_dict(), "algo": {**config.to_dict()["algo"], "max_staleness": staleness}})
        found = forecast.forecast(dataclasses.replace(slow, device="cpu", cores=64), config, check(config))
        assert found.env_steps_per_second == pytest.approx(36 / 12, rel=0.02)
        assert found.step_seconds == pytest.approx(12.0, rel=0.02)
        assert found.schedule_bound >= found.env_steps_per_second


def test_windows_of_one_episode_are_as_long_as_it():
    """Episodes of 2 chunks in windows of 3, each from its start: 2 x (2 s + 2 s), and training on as many as there may be."""
    source = recipe()
    source["sim"]["max_episode_steps"] = 6
    source["algo"]["partial_reset"] = False
    config = configs.read(source)
    found = forecast.forecast(dataclasses.replace(MEASURED, train_sample=1e-9), config, check(config))
    assert found.step_seconds == pytest.approx(8.0)
    assert found.env_steps_per_second == pytest.approx(4 * 2 * 3 / 8)


def test_generators_share_the_batches_and_their_device():
    """A batch of two slots becomes two at once on one GPU: each takes as long as both together."""
    assert forecast_of(scheduler="async-rollout", generators=2).busy["gpu"] == pytest.approx(
        forecast_of(scheduler="async-rollout").busy["gpu"], rel=0.1
    )
    config = configs.read(recipe(generators=2))
    assert "; 2 generators and trainer together on cuda" in plan.text(config, check(config), MEASURED)


def several(devices, placement, scheduler="sync", machines=1, envs=4, **run):
    """Return what a run on several devices is planned to be, and the words for it."""
    source = recipe(scheduler, runtime="ray", devices=devices, placement=placement, **run)
    source["sim"]["num_envs"] = envs
    config = configs.read(source)
    specs = check(config)
    return forecast.forecast(MEASURED, config, specs, machines=machines), plan.text(config, specs, MEASURED, machines)


def test_several_devices_by_hand():
    """Two GPUs, 4 environments in two slots: each generator serves a slot, 3 x (1 + 2), and each rank trains 6 x 0.25 s."""
    found, said = several(2, "collocated")
    assert found.step_seconds == pytest.approx(9.0 + 1.5)
    assert found.busy["gpu-0"] == found.busy["gpu-1"] == pytest.approx((3 + 1.5) / 10.5)
    assert found.device_bound == pytest.approx(12 * 3 / 4.5)
    assert "device 0-1 each: 1 slots of 2 to 2 environments, a generator, a trainer rank" in said
    assert "gpu-0 43%, gpu-1 43%" in said
    assert "adding gradients up over ranks, apart" in said
    # the generator of the first GPU serves all four rows, 3 x (2 + 2), the other one trains 12 x 0.25 s
    found, said = several(2, "disaggregated")
    assert found.step_seconds == pytest.approx(12.0 + 3.0)
    assert found.busy["gpu-0"] == pytest.approx(6 / 15)
    assert found.busy["gpu-1"] == pytest.approx(3 / 15)
    assert "device 0: 2 slots of 2 to 2 environments, a generator\ndevice 1: a trainer rank" in said


@pytest.mark.parametrize("scheduler", ["sync", "async-rollout", "full-async"])
def test_more_devices_and_machines_with_as_much_for_each_are_as_fast_each(scheduler):
    """The bound is that of virtual time, whatever is numbered how: 1, 2, and 4 GPUs in 2 machines, 4 environments each."""
    rates, bounds = [], []
    for devices, machines in ((1, 1), (2, 1), (4, 2)):
        found, _ = several(devices, "collocated", scheduler, machines, 4 * devices, slots=2 * devices)
        rates.append(found.env_steps_per_second / devices)
        bounds.append(found.schedule_bound / devices)
        assert found.env_steps_per_second <= found.schedule_bound <= found.device_bound
    assert rates == pytest.approx([rates[0]] * 3, rel=0.05)
    assert bounds == pytest.approx([bounds[0]] * 3, rel=0.05)


def test_simulators_of_a_machine_share_its_cores():
    """8 slots of 2 s on 4 cores take twice as long; on two machines with 4 cores each they do not."""
    one, _ = several(2, "collocated", envs=16, slots=8)
    two, said = several(2, "collocated", envs=16, slots=8, machines=2)
    assert one.busy["cores"] == pytest.approx(3 * 4 / one.step_seconds)
    assert two.busy["cores of machine 1"] == pytest.approx(3 * 2 / two.step_seconds)
    assert one.step_seconds - two.step_seconds == pytest.approx(3 * 2)
    assert "device 0: machine 0, " not in said
    assert "machine 1, device 1: 4 slots" in said


def test_nothing_faster_is_looked_for_where_playing_takes_long(monkeypatch):
    config = configs.read(recipe())
    specs = check(config)
    assert forecast.chunk_steps(specs) == 8 * 4 * 3 / 2
    assert "faster, changing" in plan.text(config, specs, MEASURED)
    monkeypatch.setattr(plan, "_MANY", 47)
    assert plan.text(config, specs, MEASURED).endswith("plan a part of it")


def test_machines_that_there_cannot_be_are_refused(capsys):
    words = ["--sim", "tabletop", "--model", "tiny", "--algo", "ppo", "--scheduler", "sync"]
    for machines in ("2", "0", "many"):
        assert cli.main(["plan", *words, "--machines", machines]) == 2
        assert f"--machines: got '{machines}', wanted a number from 1 to run.devices (1)" in capsys.readouterr().err


def test_on_one_cpu_everything_shares_the_cores():
    found = forecast_of(dataclasses.replace(MEASURED, device="cpu", cores=1), threads=1)
    assert found.busy == {"cores": pytest.approx(1.0)}
    assert found.step_seconds == pytest.approx(3 * (2 + 4) + 3)


def test_what_is_faster_is_named_apart(capsys):
    config = configs.read(recipe())
    text = plan.text(config, check(config), MEASURED)
    speed, other = (line for line in text.splitlines() if line.startswith("faster"))
    assert "speed alone" in speed
    assert "hybrid (" in speed
    assert "full-async" not in speed
    assert "what is learned from" in other
    assert "full-async (" in other
    assert "to the end" in text


def test_without_a_profile_a_plan_takes_what_the_plugins_say(capsys):
    words = ["--sim", "tabletop", "--model", "tiny", "--algo", "ppo", "--scheduler", "sync"]
    assert cli.main(["plan", *words]) == 0
    said = capsys.readouterr().out
    assert "latencies: tabletop as on 2 CPU cores, tiny as on 2 CPU cores" in said
    assert "env steps/s; at most" in said
    assert "GiB for 64 environments" in said


def test_typical_latencies_are_those_of_the_plugins():
    config = configs.read({**recipe(), "sim": "tabletop", "model": "tiny"})
    specs = check(config)
    found = profile.typical(config, specs)
    assert found.chunk_steps(8) == pytest.approx((8 * found.horizon * specs.sim.cost.step,))
    assert found.line() == pytest.approx((specs.model.cost.call, specs.model.cost.row))
    fakes = configs.read(recipe())
    assert profile.typical(fakes, check(fakes)) is None


def test_files_that_say_nothing_about_the_run_are_refused(tmp_path, capsys):
    file, lines = tmp_path / "profile.json", tmp_path / "recipe.yaml"
    MEASURED.write(file)
    assert profile.read(file) == MEASURED
    lines.write_text(json.dumps(recipe(device="auto")))
    assert cli.main(["plan", str(lines), "--profile", str(file)]) == 0
    assert "env steps/s; at most" in capsys.readouterr().out
    assert cli.main(["plan", str(lines)]) == 0
    assert "measure with `rlvla profile`" in capsys.readouterr().out
    for change, words in (
        ({"model": "openvla"}, "measured with model 'openvla', the run has 'fake'"),
        ({"horizon": 8}, "measured with horizon 8, the run has 3"),
        ({"cores": "many"}, "cores: got 'many'"),
        ({"simulate": {"1": []}}, "got no chunk step or batch, or one of 0 s or less"),
        ({"generate": {"1": -1.0}}, "got no chunk step or batch, or one of 0 s or less"),
    ):
        (tmp_path / "other.json").write_text(json.dumps({**dataclasses.asdict(MEASURED), **change}))
        assert cli.main(["plan", str(lines), "--profile", str(tmp_path / "other.json")]) == 2
        assert words in capsys.readouterr().err
    (tmp_path / "torn.json").write_text('{"machine": ')
    assert cli.main(["plan", str(lines), "--profile", str(tmp_path / "torn.json")]) == 2
    assert "not a profile" in capsys.readouterr().err
    assert cli.main(["plan", str(lines), "--profile", str(tmp_path / "none.json")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_a_machine_is_measured_and_a_run_is_a_measurement_too(tmp_path, capsys):
    lines, file = tmp_path / "recipe.yaml", tmp_path / "profile.json"
    lines.write_text(json.dumps(recipe()))
    assert cli.main(["profile", str(lines), "--output", str(file), "--repeats", "2"]) == 0
    measured = profile.read(file)
    assert (measured.sim, measured.model, measured.horizon) == ("fake", "fake", 3)
    assert sorted(measured.simulate) == [1, 2]
    assert [len(some) for some in measured.simulate.values()] == [2, 2]
    assert sorted(measured.generate) == [1, 2, 4]
    options = {"directory": str(tmp_path), "name": "run", "steps": 4, "without": ["tensorboard", "display", "report"]}
    source = recipe()
    with rlvla.build(**{**source, "run": {**source["run"], **options}}) as run:
        run.train()
    played = profile.of_run(run.directory)
    assert sorted(played.simulate) == [2]
    assert sorted(played.generate) == [4]
    assert cli.main(["plan", str(lines), "--like", str(run.directory)]) == 0
    assert "env steps/s; at most" in capsys.readouterr().out
    assert cli.main(["plan", str(lines), "--like", str(run.directory), "--profile", str(file)]) == 2
