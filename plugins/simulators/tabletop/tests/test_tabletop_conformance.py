from rlvla.testing import SimulatorConformance


class TestTabletop(SimulatorConformance):
    name = "tabletop"
    config = {"num_envs": 3}
    variations = ({"shaped_reward": False, "spacing": 0.1, "image_size": 32, "max_episode_steps": 8},)
