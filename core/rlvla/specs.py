"""The words in which simulators, models and algorithms describe themselves.

A simulator declares what it offers (:class:`SimulatorSpec`), a model and an algorithm what they need
(:class:`ModelSpec`, :class:`AlgorithmSpec`), in one closed vocabulary. A model converts its checkpoint's convention to
and from these words and never names a simulator. Everything here is light: no torch, no simulator.

Letters: N rows (environments), H actions in a chunk, A action dimensions, K tokens an action.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

CreditLevel = Literal["chunk", "action"]
RatioLevel = Literal["chunk", "action", "token"]
UnitKind = Literal["window", "group", "demonstration"]
Activity = Literal["publish", "generate", "simulate", "train"]
"""What actors do in a training step."""

Need = Literal["values", "gripper", "rotation", "delta"]
"""What options of a model may be about: values that an algorithm asks for; or parts of a simulator's action, a gripper, a
rotation delta, or any delta."""
Role = Literal["primary", "secondary", "wrist", "wrist_left", "wrist_right"]
Orientation = Literal["upright", "upside_down", "rotated_180"]
Frame = Literal["world", "base", "end_effector", "joint"]
Rotation = Literal["none", "axis_angle", "euler_xyz", "quaternion_wxyz", "quaternion_xyzw", "rot6d"]


@dataclass(frozen=True)
class Camera:
    """One picture of an observation: uint8 ``[N, height, width, 3]``, RGB, rows from top to bottom."""

    name: str
    height: int
    width: int
    role: Role = "primary"
    orientation: Orientation = "upright"
    """Which way is up, against what a person standing before the scene would see."""
    mirrored: bool = False
    """Left and right are exchanged (a picture that was flipped, not only turned)."""


@dataclass(frozen=True)
class StatePart:
    """A named piece of the proprioceptive vector: float32 ``[N, size]``."""

    name: str
    size: int
    unit: str = ""
    """``m``, ``rad``, ``m/s``, or empty where it has none."""
    frame: Frame = "world"
    rotation: Rotation = "none"


@dataclass(frozen=True)
class ActionPart:
    """A named piece of the action vector, in the units that the simulator takes."""

    name: str
    size: int
    kind: Literal["delta", "absolute", "velocity", "gripper"] = "delta"
    low: float = -1.0
    high: float = 1.0
    unit: str = "normalised"
    """``normalised`` (the simulator scales ``[low, high]`` itself), ``m``, ``rad``."""
    frame: Frame = "world"
    rotation: Rotation = "none"
    scale: float | None = None
    """What a value of 1 does, in m or rad, where ``unit`` is ``normalised``; None: not known."""
    closes_at: Literal["low", "high"] | None = None
    """Grippers only: which end of the range closes the fingers."""


@dataclass(frozen=True)
class TaskSpec:
    """One task of a simulator: what its instruction says, and how many stored initial states it has."""

    name: str
    instruction: str = ""
    initial_states: int = 0
    """Stored initial states; 0 where every start is drawn from the seed."""
    suite: str = ""
    """Group of tasks that results are also given for; empty: none."""
    wordings: tuple[str, ...] = ()
    """Everything that an episode may be told, where that is drawn; empty: ``instruction`` alone."""

    @property
    def instructions(self) -> tuple[str, ...]:
        """Everything that an episode may be told."""
        return self.wordings or (self.instruction,)


@dataclass(frozen=True)
class SimulatorSpec:
    """What a simulator offers.

    Example:
        >>> SimulatorSpec(
        ...     cameras=(Camera("front", 64, 64),),
        ...     state=(StatePart("hand_position", 3, "m"),),
        ...     action=(ActionPart("hand_delta", 3),),
        ...     control_hz=20.0,
        ...     max_episode_steps=40,
        ...     tasks=(TaskSpec("push"),),
        ... ).action_dim
        3
    """

    cameras: tuple[Camera, ...]
    state: tuple[StatePart, ...]
    action: tuple[ActionPart, ...]
    control_hz: float
    max_episode_steps: int
    """Env steps after which an episode is truncated."""
    tasks: tuple[TaskSpec, ...]
    execute_horizon: int | None = None
    """Actions of a chunk that may be executed before the policy is asked again; None: all of them."""
    device: Literal["cpu", "gpu"] = "cpu"
    """Where the physics runs; decides how environments are split into slots."""
    in_process: bool = False
    """Cannot run in a worker process (a batched simulator that shares its GPU with the model)."""
    rows_per_worker: int | None = None
    """Most environments that one worker process may hold; None: any number. Decides how many slots there are at least."""
    call_timeout_s: float | None = None
    """Seconds after which a worker that does not answer is ended like one that died; None: it may take any time."""
    first_call_timeout_s: float | None = None
    """The same for a worker's first call after its start, where scenes are built and shaders compiled."""
    restorable: bool = False
    """``get_state`` / ``set_state`` bring a live episode back exactly."""
    seeded_starts: bool = True
    """Different seeds of one task start from different scenes."""
    builds_tasks: bool = False
    """An environment that changes its task has to build it, so it gets episodes of one that stands where there is a choice."""
    films: bool = True
    """``record_video`` gives pictures."""
    expert: bool = False
    """``expert`` gives the next actions of a scripted expert."""
    max_instruction_bytes: int = 256
    """Longest instruction in UTF-8 bytes; fixes the width of the tensor that carries it."""
    cost: SimulatorCost | None = None
    """What a plan reckons with where nothing was measured; None: it says nothing about time."""
    notes: tuple[str, ...] = ()
    """What a reader of results should know (upstream version, known deviations)."""

    @property
    def action_dim(self) -> int:
        return sum(part.size for part in self.action)

    @property
    def state_dim(self) -> int:
        return sum(part.size for part in self.state)


@dataclass(frozen=True)
class SimulatorCost:
    """What an environment takes, as the plugin's author measured it."""

    machine: str
    """Where."""
    step: float
    """Seconds of an env step on one core, with its share of a chunk's pictures."""
    reset: float
    """Seconds of a reset."""
    memory_gib: float
    """Of an environment, with its share of what a worker process holds anyway."""


@dataclass(frozen=True)
class ModelCost:
    """What a policy takes, as the plugin's author measured it."""

    machine: str
    """Where."""
    device: Literal["cpu", "cuda"]
    call: float
    """Seconds of choosing chunks for n rows: ``call + n * row``."""
    row: float
    sample: float
    """Seconds of a forward and backward pass for one chunk."""
    parameters: int
    trainable: int
    """Of the parameters."""
    memory_gib: float | None = None
    """Most memory of generator and trainer together on one device; None: what weights, gradients and optimizer take."""


@dataclass(frozen=True)
class ModelSpec:
    """What a model needs from a simulator, and what it gives to an algorithm."""

    horizon: int
    """H, the actions that one policy call returns."""
    tokens_per_action: int | None
    """K, log-prob entries an action; None: as many as the action has dimensions."""
    cameras: tuple[Role, ...] = ("primary",)
    """Roles of the pictures it looks at, in order."""
    state: bool = True
    """Cannot do without a proprioceptive vector."""
    state_dim: int | None = None
    """The only state width that it reads; None: any."""
    action_dim: int | None = None
    """The only action width it can produce; None: any."""
    ratio_levels: tuple[RatioLevel, ...] = ("chunk", "action", "token")
    value_levels: tuple[CreditLevel, ...] = ("chunk", "action")
    """Levels at which it can have a value head; empty: none."""
    entropy: bool = True
    """Its entropy depends on the weights, so an entropy bonus means something."""
    acts_as_trained: bool = True
    """At equal weights, log-probs of acting are those of training but for rounding. False (products in FP8 while acting): an
    algorithm that clips around the policy of the training step must evaluate fresh chunks again too."""
    imitation: bool = False
    """``replay_of`` gives the log-probs of demonstrated actions."""
    start: str | None = None
    """Option that names weights to start from, all of which a checkpoint replaces: a saved policy does without them."""
    cost: ModelCost | None = None
    """What a plan reckons with where nothing was measured; None: it says nothing about time."""
    options_for: Mapping[Need, tuple[str, ...]] = field(default_factory=dict)
    """Options that change nothing without something: a run that sets them and has it not is refused."""
    restrictions: tuple[str, ...] = ()


ACTION_OPTIONS: Mapping[Need, tuple[str, ...]] = {
    "gripper": ("gripper_range", "gripper_closes_at", "gripper_binary"),
    "rotation": ("rotation",),
    "delta": ("action_unit",),
}
"""``options_for`` of a model whose options are a :class:`rlvla.conventions.Convention`."""


@dataclass(frozen=True)
class AlgorithmSpec:
    """What an algorithm consumes, and at which level."""

    unit: UnitKind
    credit_level: CreditLevel
    """Where reward, value and advantage live."""
    ratio_level: RatioLevel
    """Where log-prob, ratio and mask live."""
    values: bool
    """Needs a value head (of ``credit_level`` width)."""
    units_per_step: int | None = None
    """Units that one training step consumes; None: one for each environment (unit ``demonstration``: always a number)."""
    demonstrations: str | None = None
    """Folder of recorded demonstrations that the units come from (unit ``demonstration``: nothing is rolled out)."""
    window: int = 1
    """Chunk steps in a window (unit ``window``)."""
    partial_reset: bool = True
    """Windows go on with the next episode where one ends, and with its rest in the next window; False: each is one
    episode from its start, and over when that ends (unit ``window``)."""
    group_size: int = 1
    """Rollouts in a group (unit ``group``)."""
    passes: int = 1
    """Times that each sample is trained on."""
    minibatch_size: int | None = None
    """Samples (chunks) in an optimizer step; None: all of the step's."""
    max_staleness: int = 1
    """Versions that a unit's oldest chunk may lie behind; a scheduler may keep it lower."""
    reference: bool = False
    """Needs ``Trajectories.reference_logp``: log-probs of the policy that training started from."""
    proximal: Literal["none", "stale", "all"] = "none"
    """Needs ``Trajectories.proximal_logp``: samples evaluated once before the step's first update; those of older versions,
    and nothing where there are none (``stale``), or all."""
    proximal_at_first_visit: bool = False
    """Takes NaN for these, in a training step of one optimizer step: then they are what ``evaluate`` gives there, and no pass
    over the samples comes before it."""
    entropy_bonus: bool = False
    critic_warmup: int = 0
    """Training steps at a run's start whose loss says nothing of the policy."""
    value_learning_rate_scale: float = 1.0
    """What the learning rate is multiplied by for ``Model.value_head``."""
    bootstrap_terminated: bool = False
    """Needs ``Trajectories.final_value`` of episodes that ended by themselves too, not only of cut ones."""
    refill_budget: float | None = None
    """Units judged by ``Algorithm.keep`` in a training step at most, as a multiple of ``units_per_step``; beyond it a unit
    is passed on whatever ``keep`` says, so that a policy that never succeeds does not collect for ever. None: no bound."""


@dataclass(frozen=True)
class SchedulerSpec:
    """What a scheduler promises."""

    on_policy: bool
    """Every chunk is produced by the weights that are trained next."""
    max_staleness: int = 0
    """Versions that the weights of a unit's oldest chunk may lie behind those that it trains: units are admitted by it."""
    min_slots: int = 1
    """Slots that it wants at least, so that some play while others wait; fewer where there are fewer environments."""
    phases: tuple[tuple[Activity, ...], ...] = (("publish",), ("generate", "simulate"), ("train",))
    """What comes in turn for the units of a training step; activities of one phase overlap. Each occurs once. Steps overlap
    as far as ``max_staleness`` allows. The schedule bound follows from it (:mod:`rlvla.timekeeping`)."""
    stages: int = 1
    """Slots that it cannot do without on each device."""
    alternates: bool = False
    """It gains only where simulators and generators have devices of their own."""


@dataclass(frozen=True)
class Start:
    """Where an episode starts: a task, and a stored initial state or a scene drawn from the seed."""

    task: int = 0
    """Number in ``SimulatorSpec.tasks`` (not in a suite that they were chosen from)."""
    state: int | None = None
    """Number of a stored initial state; None: the seed makes the scene."""


@dataclass(frozen=True)
class Check:
    """One line of ``rlvla doctor``: what was looked at, what was found, what to do about it."""

    name: str
    ok: bool
    found: str
    fix: str = ""
    warning: bool = False
    """A finding that does not stop a run."""
    picture: str | None = field(default=None)
    """Path of a picture that a person may look at."""
