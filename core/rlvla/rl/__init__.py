"""Pure functions that algorithms are composed of, each once, with formula and source.

* :mod:`rlvla.rl.options`: config options that clipped policy-gradient algorithms share, and their check; light.
* :mod:`rlvla.rl.reductions`: levels, masks, element weights and denominators.
* :mod:`rlvla.rl.moments`: count, mean and variance that merge over ranks.
* :mod:`rlvla.rl.quantiles`: quantiles of ratios that merge over parts and ranks.
* :mod:`rlvla.rl.advantages`: credit arrays, GAE, episode scores, group advantages.
* :mod:`rlvla.rl.losses`: clipped policy term, value term, KL estimators, off-policy weights.
* :mod:`rlvla.rl.objective`: the policy part of a loss, composed of the above.

Importing this package imports none of them: algorithm descriptors use the options without torch.
"""
