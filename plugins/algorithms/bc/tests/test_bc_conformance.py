from rlvla.testing import AlgorithmConformance


class TestBc(AlgorithmConformance):
    name = "bc"
    config = {"path": "demos", "entropy_weight": 0.01}
    learns_from_reward = False
