from rlvla.testing import ModelConformance, SimulatorConformance


class TestFakeSimulator(SimulatorConformance):
    name = "fake"
    config = {"num_envs": 3}
    variations = (
        {"initial_states": 4},
        {"fault": "die", "fault_step": 1, "fault_file": "/dev/null", "step_seconds": 0.001},
    )


class TestFakeBatchedSimulator(SimulatorConformance):
    name = "fake"
    config = {"num_envs": 3, "batched": True}
    variations = ({"fault": "nan", "fault_step": 1, "fault_file": "/dev/null"},)


class TestFakeModel(ModelConformance):
    name = "fake"
