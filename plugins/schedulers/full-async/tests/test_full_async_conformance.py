from rlvla.testing import SchedulerConformance


class TestFullAsync(SchedulerConformance):
    name = "full-async"


class TestFullAsyncOnPolicy(SchedulerConformance):
    name = "full-async"
    config = {"max_staleness": 0}
