"""``report.html``: what came of a run, on one page that needs nothing beside it. Made from the run's folder alone."""

from __future__ import annotations

import base64
import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from rlvla import checkpoint, timeline
from rlvla.errors import ConfigError
from rlvla.listeners.jsonl import EVALUATION, HISTOGRAMS
from rlvla.listeners.jsonl import FILE as METRICS
from rlvla.results import wilson
from rlvla.timekeeping import SLOW_FACTOR, slowness
from rlvla.tracing import Span, read

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILE = "report.html"
TARGETS = (0.5, 0.8, 0.9, 0.95)
"""Success rates whose time is told."""
_MOST_SPANS = 4000
"""In the picture of the timeline: the last whole steps that fit."""
_VIDEO_BYTES = 16_000_000
"""Of all videos on the page; the newest are taken."""
_LAST_CALLS = 32
"""Chunk steps of a worker that say whether it is slow."""


@dataclass(frozen=True)
class Facts:
    """What a run's folder says."""

    name: str
    directory: Path
    manifest: Mapping[str, Any]
    config: str
    steps: list[dict[str, Any]]
    """Lines of ``metrics.jsonl``: one for each training step."""
    evaluations: list[dict[str, Any]]
    spans: list[Span]
    saved: int = 0
    """Step of the newest checkpoint: an abort may cut off a step in it from its metrics."""


def write(directory: Path) -> Path:
    """Write the report of a run's folder, whole or not at all; returns its path.

    Raises:
        ConfigError: it is no run's folder.
    """
    place = directory / FILE
    part = place.with_suffix(".html.tmp")
    part.write_text(page(gather(directory)), encoding="utf-8")
    part.replace(place)
    return place


def gather(directory: Path) -> Facts:
    """Read a run's folder.

    Raises:
        ConfigError: it is no run's folder.
    """
    manifest = directory / "manifest.json"
    if not manifest.is_file():
        raise ConfigError(f"{directory}: holds no run that trained: there is no manifest.json in it")
    metrics = directory / METRICS
    lines = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    return Facts(
        name=directory.resolve().name,
        directory=directory,
        manifest=json.loads(manifest.read_text()),
        config=(directory / "config.yaml").read_text(),
        steps=[line for line in lines if EVALUATION not in line],
        evaluations=[line for line in lines if EVALUATION in line],
        spans=read(directory),
        saved=max(checkpoint.steps(directory), default=0),
    )


def page(facts: Facts) -> str:
    """Return the whole report."""
    sections = [
        ("Success", _success(facts)),
        ("Speed", _speed(facts)),
        ("Who waited for whom", _waits(facts)),
        ("Workers", _workers(facts)),
        ("Staleness", _staleness(facts)),
        ("Memory", _memory(facts)),
        ("Timeline", _timeline(facts)),
        ("Videos", _videos(facts)),
        ("Versions", _table(("", ""), sorted(_flat(facts.manifest)))),
        ("Config", f"<pre>{html.escape(facts.config)}</pre>"),
    ]
    body = "".join(f"<h2>{name}</h2>\n{content}\n" for name, content in sections if content)
    return _PAGE.substitute(name=html.escape(facts.name), end=_end(facts), body=body)


# ---- sections -------------------------------------------------------------------------------------------------------


def _end(facts: Facts) -> str:
    ended = facts.manifest.get("ended")
    done = max(facts.steps[-1]["step"] if facts.steps else 0, facts.saved)
    if ended is None:
        return f"<p>Under way, or ended without a word: {done} training steps are done.</p>"
    if ended["error"] is None:
        return f"<p>Done: {done} training steps.</p>"
    words = html.escape(ended["error"])
    return f"<p>Stopped after {done} training steps:</p><pre class='error'>{words}</pre>"


def _success(facts: Facts) -> str:
    if not facts.steps and not facts.evaluations:
        return "<p>No training step was done.</p>"
    rows = [
        (f"{line['step']}", _rate(line[EVALUATION], line["eval/episodes"]), f"{line['eval/episodes']}")
        for line in facts.evaluations
    ]
    table = _table(("evaluated after step", "success (95 % Wilson interval)", "episodes"), rows[-10:])
    return _picture(_draw_success, facts) + table + _table(("target success", "reached"), _targets(facts))


def _rate(success: float | None, episodes: float) -> str:
    if success is None:
        return "-"
    low, high = wilson(round(success * episodes), round(episodes))
    return f"{success:.3f} ({low:.3f} to {high:.3f})"


def _targets(facts: Facts) -> list[tuple[str, str]]:
    """Return when evaluated success (of the last 200 training episodes, without evaluations) reached each target."""
    source = facts.evaluations or facts.steps
    name = EVALUATION if facts.evaluations else "rollout/success_recent"
    seconds, so_far = {}, 0.0
    for line in facts.steps:
        so_far += line["time/step_s"]
        seconds[line["step"]] = so_far, line["env_steps"]
    rows = []
    for target in TARGETS:
        first = next((line["step"] for line in source if (line.get(name) or 0.0) >= target), None)
        if first in seconds:
            took, env_steps = seconds[first]
            rows.append(
                (f"{target:.0%}", f"step {first}, {_duration(took)} of training, {env_steps:,.0f} env steps ({name})")
            )
    return rows


def _speed(facts: Facts) -> str:
    if not facts.steps:
        return ""
    last = facts.steps[-1]
    names = {
        "useful env steps/s": "env_steps_per_second_run",
        "schedule bound": "env_steps_per_second_run_schedule_bound",
        "device bound": "env_steps_per_second_run_device_bound",
    }
    rows = [(label, f"{last[name]:,.1f} env steps/s") for label, name in names.items() if last.get(name) is not None]
    if (efficiency := last.get("time/run_overlap_efficiency")) is not None:
        rows.append(("overlap efficiency", f"{efficiency:.3f} of the schedule bound"))
    first = facts.steps[0]["time/step_s"]
    rows.append(("first step", f"{first:.2f} s (warm-up; not in the numbers above)"))
    rows.append(("training", f"{_duration(sum(line['time/step_s'] for line in facts.steps))}, evaluation apart"))
    return _picture(_draw_speed, facts) + _table(("", ""), rows)


def _waits(facts: Facts) -> str:
    """Return who worked and who waited, as shares of the steps after the first."""
    steps = facts.steps[1:] or facts.steps
    whole = sum(line["time/step_s"] for line in steps)
    if not whole:
        return ""

    def mean(name: str) -> float | None:
        some = [(line[name], line["time/step_s"]) for line in steps if line.get(name) is not None]
        return sum(value * seconds for value, seconds in some) / whole if some else None

    shares = {name: mean(name) for name in _names(steps, "time/busy_")}
    rows = [
        (name.removeprefix("time/busy_"), f"works {share:.1%}") for name, share in shares.items() if share is not None
    ]
    for text, name in (
        ("wait for a chunk (the generator)", "time/slots_wait_for_chunks"),
        ("wait for work (the trainer and its weights, or slower slots)", "time/slots_wait_for_work"),
    ):
        if (share := mean(name)) is not None:
            rows.append(("slots", f"{text} {share:.1%}"))
    last = steps[-1]
    for label, name in (("request to launch of its batch", "queue_delay"), ("request to chunk", "slot_wait")):
        if (p50 := last.get(f"time/{name}_s_p50")) is not None:
            high, most = last[f"time/{name}_s_p95"], last[f"time/{name}_s_max"]
            rows.append((label, f"median {p50:.3g} s, 95 % {high:.3g} s, longest {most:.3g} s (last step)"))
    return _table(("", "share of the time"), rows)


def _workers(facts: Facts) -> str:
    seconds: dict[str, list[float]] = {}
    restarts: dict[str, int] = {}
    for span in facts.spans:
        if span.phase == "simulate":
            seconds.setdefault(span.actor, []).append(span.seconds)
        elif span.phase == "restart":
            restarts[span.actor] = restarts.get(span.actor, 0) + 1
    ratios = slowness({actor: some[-_LAST_CALLS:] for actor, some in seconds.items()})
    rows = [
        (actor, f"slow: its chunk steps take {ratio:.1f} times as long as its peers'")
        for actor, ratio in ratios.items()
        if ratio >= SLOW_FACTOR
    ]
    rows += [(actor, f"died and was started again {count} times") for actor, count in restarts.items()]
    if (ended := facts.manifest.get("ended")) and (culprit := ended.get("worker")):
        rows.append((culprit, "the run ended with its error, above"))
    counted = sum(line.get("workers/restarts") or 0 for line in facts.steps)
    text = "<p>None was slow against its peers, none died.</p>" if not rows and not counted else ""
    return _table(("worker", "what happened"), rows) + text if facts.steps else ""


def _staleness(facts: Facts) -> str:
    counts: dict[int, int] = {}
    for line in facts.steps:
        found = line.get(HISTOGRAMS, {}).get("train/staleness")
        for low, count in zip(found["edges"], found["counts"], strict=False) if found else ():
            counts[int(low)] = counts.get(int(low), 0) + count
    n = sum(counts.values())
    rows = [(f"{lag}", f"{count:,} samples ({count / n:.1%})") for lag, count in sorted(counts.items()) if count]
    return _table(("versions behind", "trained"), rows)


def _memory(facts: Facts) -> str:
    rows = []
    for name in _names(facts.steps, "memory/"):
        peak = max(line.get(name) or 0.0 for line in facts.steps)
        rows.append((name.removeprefix("memory/").removesuffix("_peak_gib").replace("_", " "), f"{peak:.2f} GiB"))
    return _table(("", "peak"), rows)


def _timeline(facts: Facts) -> str:
    spans = last_steps(facts.spans)
    if not spans:
        return ""
    first, last = min(span.step for span in spans), max(span.step for span in spans)
    title = f"training steps {first} to {last}"
    return _picture(lambda _: timeline.gantt(spans, title), facts)


def last_steps(spans: Sequence[Span]) -> list[Span]:
    """Return the spans of the last whole training steps that a picture can show, three of them if they fit."""
    trained = sorted({span.step for span in spans if span.phase == "train"})[-3:]
    for first in trained:
        chosen = [span for span in spans if first <= span.step <= trained[-1]]
        if len(chosen) <= _MOST_SPANS or first == trained[-1]:
            return chosen[:_MOST_SPANS]
    return []


def _videos(facts: Facts) -> str:
    shown, left = [], _VIDEO_BYTES
    for path in sorted((facts.directory / "videos").glob("*.mp4"), key=lambda one: one.stat().st_mtime, reverse=True):
        if ".part." in path.name or path.stat().st_size > left:
            continue
        left -= path.stat().st_size
        data = base64.b64encode(path.read_bytes()).decode()
        shown.append(
            f"<figure><video controls muted loop src='data:video/mp4;base64,{data}'></video>"
            f"<figcaption>{html.escape(path.stem)}</figcaption></figure>"
        )
    return f"<div class='gallery'>{''.join(shown)}</div>" if shown else ""


# ---- pictures -------------------------------------------------------------------------------------------------------


def _picture(draw: Any, facts: Facts) -> str:
    """Return a picture as a part of the page, or what to install."""
    try:
        figure = draw(facts)
    except ConfigError as error:
        return f"<p>{html.escape(str(error))}</p>"
    data = BytesIO()
    figure.savefig(data, format="png", dpi=110)
    return f"<img alt='' src='data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}'>"


def _draw_success(facts: Facts) -> Figure:
    figure, axes = _axes("training step", "success")
    trained = [line for line in facts.steps if line.get("rollout/success_once") is not None]
    if trained:
        x = [line["step"] for line in trained]
        bounds = [wilson(_solved(line), round(line["rollout/episodes"])) for line in trained]
        axes.fill_between(
            x, [low for low, _ in bounds], [high for _, high in bounds], color="#0072b2", alpha=0.15, lw=0
        )
        axes.plot(
            x, [line["rollout/success_once"] for line in trained], color="#0072b2", lw=1, label="training, sampled"
        )
    if facts.evaluations:
        y = [line[EVALUATION] for line in facts.evaluations]
        errors = [
            [one - line["eval/success_low"] for one, line in zip(y, facts.evaluations, strict=True)],
            [line["eval/success_high"] - one for one, line in zip(y, facts.evaluations, strict=True)],
        ]
        x = [line["step"] for line in facts.evaluations]
        axes.errorbar(x, y, yerr=errors, fmt="o", ms=4, color="#d55e00", capsize=2, label="evaluation, 95 % Wilson")
    axes.set_ylim(-0.02, 1.02)
    _legend(axes)
    return figure


def _solved(line: Mapping[str, Any]) -> int:
    return round(float(line["rollout/success_once"]) * float(line["rollout/episodes"]))


def _draw_speed(facts: Facts) -> Figure:
    figure, axes = _axes("training step", "useful env steps/s")
    for label, name, style in (
        ("measured", "env_steps_per_second", {"color": "#0072b2"}),
        ("schedule bound", "env_steps_per_second_schedule_bound", {"color": "#e69f00", "ls": "--"}),
        ("device bound", "env_steps_per_second_device_bound", {"color": "#999999", "ls": ":"}),
    ):
        some = [(line["step"], line[name]) for line in facts.steps if line.get(name) is not None]
        if some:
            axes.plot([step for step, _ in some], [value for _, value in some], lw=1.2, label=label, **style)
    axes.set_ylim(bottom=0)
    _legend(axes)
    return figure


def _axes(x: str, y: str) -> tuple[Figure, Any]:
    figure = timeline.figure(8, 3)
    axes = figure.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _legend(axes: Any) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, frameon=False)


# ---- words ----------------------------------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
    if not lines:
        return ""
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head) if any(head) else ""
    return f"<table><tr>{top}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _names(steps: Sequence[Mapping[str, Any]], prefix: str) -> list[str]:
    """Return the metrics with a prefix, in the order in which they first appear."""
    return list(dict.fromkeys(name for line in steps for name in line if name.startswith(prefix)))


def _flat(data: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows = []
    for name, value in data.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{prefix}{name}.")
        elif not f"{prefix}{name}".startswith("ended."):
            rows.append((f"{prefix}{name}", str(value)))
    return rows


def _duration(seconds: float) -> str:
    if seconds < 60 or not math.isfinite(seconds):
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} h" if hours else f"{minutes}:{rest:02} min"


_PAGE = Template("""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>$name</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em; color: #222; }
h2 { margin: 2em 0 0.4em; border-bottom: 1px solid #ddd; }
table { border-collapse: collapse; margin: 0.6em 0; }
td, th { text-align: left; padding: 0.15em 1.2em 0.15em 0; border-bottom: 1px solid #eee; vertical-align: top; }
img { max-width: 100%; display: block; }
pre { background: #f6f6f6; padding: 0.8em; overflow-x: auto; font-size: 12px; }
pre.error { background: #fdecea; white-space: pre-wrap; }
.gallery { display: flex; flex-wrap: wrap; gap: 1em; }
figure { margin: 0; }
figcaption { font-size: 12px; color: #666; }
video { width: 240px; image-rendering: pixelated; background: #eee; }
</style></head>
<body><h1>$name</h1>
$end
$body
</body></html>
""")
