from rlvla.testing import AlgorithmConformance


class TestGrpo(AlgorithmConformance):
    name = "grpo"
    config = {"passes": 2, "target_kl": 0.1}
    variations = (
        {"gaussian_width": 0.5},
        {"entropy_weight": 0.01, "dual_clip": 3.0, "advantage": "rloo"},
        {"aggregation": "constant", "constant_length": 20, "success_low": 0.1, "success_high": 0.9},
        {"kl_weight": 0.1, "proximal": "recompute", "behaviour_weight_max": 1.05, "behaviour_weight_over": "mask"},
        {"kl_weight": 0.1, "kl_place": "reward", "proximal": "interpolate", "staleness_decay": 0.5},
        {"aggregation": "element-mean", "advantage": "reinforce++", "filter": "drop", "success_high": 0.9},
    )
