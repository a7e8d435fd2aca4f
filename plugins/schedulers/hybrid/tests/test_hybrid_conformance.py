from rlvla.testing import SchedulerConformance


class TestHybrid(SchedulerConformance):
    name = "hybrid"


class TestHybridOfTwo(SchedulerConformance):
    name = "hybrid"
    config = {"stages": 2}
