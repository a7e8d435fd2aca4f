from rlvla.testing import SchedulerConformance


class TestAsyncRollout(SchedulerConformance):
    name = "async-rollout"
