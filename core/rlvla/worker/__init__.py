"""Simulators in processes of their own.

``python -m rlvla.worker`` (``__main__``) runs one simulator; :class:`SubprocessSimulator` is the same simulator seen
from here; ``protocol`` is what they say to each other; :class:`Host` is what both kinds of running share.
"""

from rlvla.worker.client import SubprocessSimulator, open_simulator
from rlvla.worker.host import Host

__all__ = ["Host", "SubprocessSimulator", "open_simulator"]
