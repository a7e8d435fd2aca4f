from rlvla.testing import SchedulerConformance


class TestSync(SchedulerConformance):
    name = "sync"
