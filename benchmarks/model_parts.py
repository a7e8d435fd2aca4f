"""What benchmarks of models share: clocks, kernel times, the command line, and the report that is written after each part."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlvla.networks.graphs import Graphs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Call = Callable[[], Any]
Part = Callable[[Any, argparse.Namespace], Any]
"""Measures something of a model."""


# ---- what is measured -------------------------------------------------------------------------------------------------


def timed(call: Call, repeats: int) -> float:
    """Return the median seconds of a call, after two calls of warm-up."""
    for _ in range(2):
        call()
    seconds = []
    for _ in range(repeats):
        synchronise()
        began = time.perf_counter()
        call()
        synchronise()
        seconds.append(time.perf_counter() - began)
    return sorted(seconds)[len(seconds) // 2]


def synchronise() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def peak_gib(call: Call) -> float:
    """Return the most memory that was in use during a call, weights included."""
    if DEVICE.type != "cuda":
        return 0.0
    torch.cuda.reset_peak_memory_stats()
    call()
    synchronise()
    return torch.cuda.max_memory_allocated() / 2**30


def matmul_flops(rows: int, columns: int, inner: int, repeats: int) -> float:
    """Return the rate of one product of these sizes, FLOP a second."""
    a, b = (torch.randn(size, inner, device=DEVICE, dtype=torch.bfloat16) for size in (rows, columns))
    return 2 * rows * columns * inner / timed(lambda: a @ b.T, repeats)


def replay(graphs_: Graphs, words: Any) -> tuple[Tensor, ...]:
    """Replay the graph of these shapes, whichever of both was faster; call where there is no GPU."""
    if DEVICE.type != "cuda":
        return graphs_._function(*words)
    key = tuple((tuple(one.shape), one.dtype) if one is not None else None for one in words)
    if graphs_._captured.get(key) is None:
        out = graphs_(*words)
        if key not in graphs_._captured:
            return out
        graphs_._captured[key] = graphs_._capture(words)
    return graphs_._replay(graphs_._captured[key], words)  # type: ignore[arg-type]


def profiled(call: Call, top: int) -> list[dict[str, Any]]:
    """Return the kernels (on a CPU: operators) of one call with the most time, milliseconds."""
    from torch.profiler import ProfilerActivity, profile

    on_gpu = DEVICE.type == "cuda"
    call()
    synchronise()
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiler:
        call()
        synchronise()
    events = profiler.key_averages()

    def ms(event: Any) -> float:
        return float(event.self_device_time_total if on_gpu else event.self_cpu_time_total) / 1e3

    whole = sum(map(ms, events))
    chosen = sorted(events, key=ms, reverse=True)[:top]
    lines = [
        {"kernel": event.key[:100], "calls": event.count, "ms": ms(event), "share": ms(event) / whole}
        for event in chosen
    ]
    return [*lines, {"kernel": "all", "calls": sum(one.count for one in events), "ms": whole, "share": 1.0}]


# ---- report -----------------------------------------------------------------------------------------------------------


def table(rows: list[dict[str, Any]]) -> str:
    """Return rows as a markdown table."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = ["| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]
    lines += ["| " + " | ".join(shown(row.get(name)) for name in names) + " |" for row in rows]
    return "\n".join(lines)


def shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {shown(one)}" for name, one in value.items())
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value).replace("|", "/")


def markdown(found: dict[str, Any]) -> str:
    """Return the report for people."""
    lines = [f"# {found['title']} on {found['machine']}", ""]
    lines += [f"torch {found['torch']}, {found['date']}; times a chunk in ms.", ""]
    lines += [found["note"], ""] if "note" in found else []
    for part in ("floors", "training_floors", "numerics", "graphs", "failed"):
        if part in found:
            values = table([{"what": k, "value": v} for k, v in found[part].items()])
            lines += [*heading(found, part), values, ""]
    if "inference" in found:
        lines += [
            *heading(found, "inference"),
            ACTING,
            "",
            table([acting_first(row) for row in found["inference"]]),
            "",
        ]
    if "training" in found:
        lines += [*heading(found, "training"), table(found["training"]), ""]
    for name, rows in found.get("kernels", {}).items():
        lines += [*heading(found, "kernels", f"kernels: {name}"), table(rows), ""]
    return "\n".join(lines)


ACTING = (
    "`act` is what a generator waits for: the whole call, from pictures and text to actions in the simulator's units, adapters "
    "included where the model has any. `network, graph` is the network alone, without adapters and with its inputs on the GPU "
    "already, as a CUDA graph replays it; other columns are parts and variants of that."
)
_NAMES = {"act_ms": "act, ms", "graph_ms": "network, graph, ms"}


def heading(found: dict[str, Any], part: str, title: str = "") -> list[str]:
    """Return a part's heading, with the commit that it was measured on."""
    commit = found.get("commits", {}).get(part)
    return [f"## {title or part}", "", *([f"Measured on commit {commit}.", ""] if commit else [])]


def acting_first(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of inference with the whole call before its parts, both by names that say so."""
    first = {name: row[name] for name in ("batch", *_NAMES) if name in row}
    return {_NAMES.get(name, name): one for name, one in (first | row).items()}


# ---- command line -----------------------------------------------------------------------------------------------------


def commit() -> str:
    """Return the commit that this file is of, ``-dirty`` where code differs from it."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]
    asked = subprocess.run(words, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return asked.stdout.strip() or "unknown"


def options(description: str | None, name: str, parts: Sequence[str]) -> argparse.ArgumentParser:
    """Return the command line of :func:`measure`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help=f"folder for {name}.json and {name}.md")
    parser.add_argument("--machine", default="", help="what the result says it was measured on")
    parser.add_argument("--commit", default=commit(), help="what the result says the code was, where git does not know")
    parser.add_argument("--tiny", action="store_true", help="small sizes, also on a CPU")
    parser.add_argument("--parts", default=",".join(parts))
    parser.add_argument("--batches", type=int, nargs="+", default=None, help="rows of a call, ascending")
    parser.add_argument("--repeats", type=int, default=None, help="timed calls, of which the median counts")
    parser.add_argument("--top", type=int, default=30, help="kernels in the table")
    return parser


def check(parser: argparse.ArgumentParser, chosen: argparse.Namespace, parts: Mapping[str, Part]) -> None:
    """End with a message where something is asked for that is not there; fill in what was not said."""
    if unknown := set(chosen.parts.split(",")) - set(parts):
        parser.error(f"--parts: got {', '.join(sorted(unknown))}, wanted some of {', '.join(parts)}")
    if DEVICE.type != "cuda" and not chosen.tiny:
        parser.error("no GPU here: the full size needs one; --tiny runs anywhere")
    chosen.batches = chosen.batches or ([1, 2] if chosen.tiny else [1, 8, 32])
    chosen.repeats = chosen.repeats or (2 if chosen.tiny else 9)


def measure(
    name: str,
    title: str,
    chosen: argparse.Namespace,
    make: Callable[[Path], Any],
    floors: Part,
    parts: Mapping[str, Part],
) -> None:
    """Measure what was asked for, and write it after each part."""
    torch.set_num_threads(min(8, os.cpu_count() or 1))
    found: dict[str, Any] = {
        "title": title,
        "machine": chosen.machine or (torch.cuda.get_device_name() if DEVICE.type == "cuda" else "a CPU"),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "options": {key: str(value) for key, value in vars(chosen).items() if key not in ("out", "machine")},
    }
    found["commits"] = {}
    chosen.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        model = make(Path(folder))
        parameters = model.network.named_parameters()
        found["parameters"] = sum(one.numel() for key, one in parameters if ".lora_" not in key)
        found["trainable"] = sum(one.numel() for one in model.trainable().values())
        for part in ("floors", *chosen.parts.split(",")):
            began = time.perf_counter()
            try:
                found[part] = (floors if part == "floors" else parts[part])(model, chosen)
            except Exception as error:  # the parts measured before, and those that follow, are worth keeping
                traceback.print_exc()
                found.setdefault("failed", {})[part] = f"{type(error).__name__}: {error}"
            found[f"{part}_seconds"] = time.perf_counter() - began
            found["commits"][part] = chosen.commit
            (chosen.out / f"{name}.json").write_text(json.dumps(found, indent=1))
            (chosen.out / f"{name}.md").write_text(markdown(found))
            print(f"{part}: {found[f'{part}_seconds']:.0f} s", flush=True)
    print(markdown(found))
    if "failed" in found:
        raise SystemExit(1)
