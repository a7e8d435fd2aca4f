from rlvla.testing import AlgorithmConformance


class TestPpo(AlgorithmConformance):
    name = "ppo"
    config = {"passes": 2, "target_kl": 0.1}
    variations = (
        {"gaussian_width": 0.5},
        {"entropy_weight": 0.01, "value_clip": 0.2, "dual_clip": 3.0, "bootstrap": "always"},
        {"aggregation": "constant", "constant_length": 20, "proximal": "first-visit", "normalise_advantages": False},
        {"kl_weight": 0.1, "proximal": "recompute", "behaviour_weight_max": 1.05, "behaviour_weight_over": "mask"},
        {"kl_weight": 0.1, "kl_place": "reward", "proximal": "interpolate", "staleness_decay": 0.5},
    )
