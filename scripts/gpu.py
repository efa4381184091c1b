"""Everything that needs a GPU, in three parts of less than eight minutes each.

    python -m scripts.gpu           # gpu.json, tiles.json and cuda.json, in benchmarks/results
    python -m scripts.gpu --part truth      # are the kernels right, and what does each take?
    python -m scripts.gpu --part variants   # other tiles; the best go into their table
    python -m scripts.gpu --part verdict    # with those: a graph, torch.compile, the benchmark
    python -m scripts.gpu --only tests bench
    python -m scripts.gpu --out DIR --commit 1a2b3c4 --main-job Jsb16thSeparated.json

A part has stages. Each is a process with its own limit of time, and a failed one stops no other.
What is known is in the JSON after each stage; with `--resume` those that went well are not run
again. A table is printed at the end. relpos need not be installed. Exits 1 if a stage failed, 2
without a GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer

import torch

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
CHECKS = ("-m", "scripts.gpu_checks")
GRACE = 10  # seconds between asking a stage to end and ending it
PARTS = ("truth", "variants", "verdict")
LINES = 60  # of a stage's output that are kept, and as many of those that name a failure
FAILURE = re.compile(r"FAILED|ERROR|Error|Invalid |hazard|missed:|left out")


@dataclass(frozen=True)
class Stage:
    """One process.

    Args:
        name: for `--only`.
        part: that it belongs to.
        command: what is run.
        seconds: its limit.
        note: what its result does not say.
        environment: variables beside those of all stages.
        missing: why it cannot run here, or None.
    """

    name: str
    part: str
    command: tuple[str, ...]
    seconds: float
    note: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    missing: str | None = None


def stages(out: Path, main_job: str | None) -> list[Stage]:
    """All stages in their order."""
    python = sys.executable
    check = (python, *CHECKS)
    jobs = ("--jobs", "8")  # what takes time is to compile
    sweep = (python, "-m", "scripts.sweep_tiles", "--out", str(out / "tiles.json"))
    quick = ("-k", "triton and (output_and_gradients or opcheck)")
    found = [
        Stage("facts", "truth", (python, "-m", "benchmarks.measure.machine"), 30),
        Stage("terms", "truth", (*check, "terms", *jobs), 60),
        Stage("determinism", "truth", (*check, "determinism", *jobs), 45),
        Stage("tests", "truth", (python, "-m", "pytest", *pytest_options(), "-k", "triton"), 115),
        sanitizer("memcheck", ""),
        sanitizer(
            "racecheck",
            "It sees shared memory only, and tells of threads that write the same number, too.",
        ),
        Stage(
            "kernels", "truth", (*sweep, "--usual", "--dims", "64", "--minutes", "{minutes}"), 75
        ),
        Stage("tiles", "variants", (*sweep, "--minutes", "{minutes}"), 360),
        Stage("table", "variants", (*sweep, "--write"), 30),
        Stage("long", "variants", (*check, "long", *jobs), 60),
        Stage("again", "verdict", (python, "-m", "pytest", *pytest_options(), *quick), 60),
        Stage("capture", "verdict", (*check, "capture", *jobs), 75),
        Stage("bench", "verdict", bench(out), 300),
        several_gpus(),
    ]
    if main_job is not None:
        data = ("--data", main_job) if main_job else ()
        runs = ("--name", "gpu", "--runs", str(out / "runs"))
        how = ("--preset", "paper", "--precision", "bf16-mixed")  # 16 bits, so that triton runs
        job = (python, "-m", "relpos_tasks", "music", "compare", *how, *runs, *data)
        found.append(Stage("main-job", "verdict", job, 480))
    return found


def pytest_options() -> tuple[str, ...]:
    """The suite of the triton backend, in several processes where pytest can."""
    several = ("-n", "8") if importlib.util.find_spec("xdist") else ()
    # pytest-benchmark, which nothing here uses, warns beside xdist, and warnings are errors.
    plugins = ("-p", "no:benchmark", "-p", "no:cacheprovider")
    # What is costly in Triton's interpreter is not on a GPU.
    return ("-q", "-rfE", "--tb=short", "--thorough", *plugins, *several, "tests/ops")


def several_gpus() -> Stage:
    """Sequences that all GPUs share, against one of them."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    ranks = ("-m", "torch.distributed.run", "--nproc-per-node", str(count))
    return Stage(
        "ranks",
        "verdict",
        (sys.executable, *ranks, "-m", "scripts.gpu_ranks"),
        33,
        missing=None if count > 1 else f"it needs several GPUs, of which there are {count}",
    )


def sanitizer(tool: str, note: str) -> Stage:
    """Forward and backward of each kind of term under compute-sanitizer."""
    where = shutil.which("compute-sanitizer") or next(
        map(str, Path("/usr/local").glob("cuda*/bin/compute-sanitizer")), None
    )
    options = ("--tool", tool, "--error-exitcode", "1", "--target-processes", "application-only")
    return Stage(
        tool,
        "truth",
        (str(where), *options, sys.executable, *CHECKS, "touch"),
        70,
        note,
        # Else all tensors lie in one allocation, and a step beyond one of them is no error.
        {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        None if where else "compute-sanitizer is not installed",
    )


def bench(out: Path) -> tuple[str, ...]:
    """The benchmark; `{minutes}` is what the stage has."""
    options = ("--device", "cuda", "--skip-tests", "--minutes", "{minutes}")
    command = (sys.executable, "-m", "benchmarks.attention")
    return (*command, *options, "--out", str(out / "cuda.json"))


def perform(stage: Stage, seconds: float, environment: dict[str, str]) -> dict:
    """Run a stage for so many seconds at most; what came of it."""
    begun = {"name": stage.name, "note": stage.note} if stage.note else {"name": stage.name}
    if stage.missing is not None or seconds < GRACE:
        why = stage.missing or "no time was left"
        return begun | {"outcome": "skipped", "seconds": 0.0, "summary": why}
    minutes = f"{max(0.1, (seconds - 4 * GRACE) / 60):.2f}"
    command = [part.replace("{minutes}", minutes) for part in stage.command]
    print(f"--- {stage.name}: {' '.join(command)}", flush=True)
    start, lines = time.monotonic(), []
    with subprocess.Popen(
        command, cwd=ROOT, env=environment | stage.environment, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    ) as process:  # fmt: skip
        # pytest and Lightning, when they are interrupted, still say and save what they have.
        timers = [
            Timer(seconds - GRACE, end, (process, signal.SIGINT)),
            Timer(seconds, end, (process, signal.SIGKILL)),
        ]
        for timer in timers:
            timer.start()
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    for timer in timers:
        timer.cancel()
    lasted = time.monotonic() - start
    late = lasted >= seconds - GRACE
    outcome = "timed out" if late else "failed" if process.returncode else "ok"
    return (
        begun
        | {"outcome": outcome, "seconds": round(lasted, 1), "returncode": process.returncode}
        | read(lines)
    )


def end(process: subprocess.Popen[str], how: signal.Signals) -> None:
    """Signal a stage and all that it started."""
    if process.poll() is None:
        os.killpg(process.pid, how)


def read(lines: list[str]) -> dict:
    """What a stage's output says: its last line, its lines of JSON, its failures, its end."""
    told = [line for line in lines if line.strip()]
    return {
        "summary": told[-1].strip("= ") if told else "",
        "results": [found for line in told if (found := in_json(line)) is not None],
        "failures": [line for line in told if FAILURE.search(line)][:LINES],
        "output": told[-LINES:],
    }


def in_json(line: str) -> dict | None:
    """The object that a line holds, or None."""
    try:
        return json.loads(line) if line.startswith("{") else None
    except json.JSONDecodeError:
        return None


def earlier(path: Path, wanted: list[Stage], *, resume: bool) -> dict[str, dict]:
    """What the file has of other stages, and with `resume` of those that went well."""
    stages = json.loads(path.read_text())["stages"] if path.is_file() else []
    again = {stage.name for stage in wanted}
    return {
        one["name"]: one
        for one in stages
        if one["name"] not in again or (resume and one["outcome"] == "ok")
    }


def table(done: list[dict]) -> str:
    """A line for each stage."""
    head = f"{'stage':12} {'outcome':9} {'seconds':>7}"
    rows = [
        f"{one['name']:12} {one['outcome']:9} {one['seconds']:7.0f}  {one['summary'][:90]}"
        for one in done
    ]
    return "\n".join([head, *rows])


def main() -> None:
    """Runs the stages and prints the table."""
    names = [stage.name for stage in stages(RESULTS, "")]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS),
                        help="these alone (all)")  # fmt: skip
    parser.add_argument("--only", nargs="+", choices=names, metavar="STAGE", help=", ".join(names))
    parser.add_argument("--resume", action="store_true",
                        help="keep what went well, by gpu.json")  # fmt: skip
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of what is written")
    parser.add_argument("--minutes", type=float, default=7.8, help="for each part (7.8)")
    parser.add_argument("--limit", type=float, help="seconds of each stage, in place of its own")
    parser.add_argument("--commit", help="which this is, in a copy that is no repository")
    parser.add_argument(
        "--main-job", nargs="?", const="", metavar="DATA",
        help="train at the paper's sizes too, on this file of chorales (those of music21)",
    )  # fmt: skip
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("scripts.gpu: there must be a CUDA device, got none", file=sys.stderr)
        sys.exit(2)

    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
    if options.commit:
        environment["RELPOS_COMMIT"] = options.commit
    out, main_job = options.out.resolve(), options.main_job
    if main_job is None and "main-job" in (options.only or ()):
        main_job = ""
    if main_job:
        main_job = str(Path(main_job).resolve())
    out.mkdir(parents=True, exist_ok=True)
    wanted = [
        stage
        for stage in stages(out, main_job)
        if (stage.name in options.only if options.only else stage.part in options.part)
    ]
    kept, done = earlier(out / "gpu.json", wanted, resume=options.resume), []
    stops: dict[str, float] = {}
    for stage in wanted:
        stop = stops.setdefault(stage.part, time.monotonic() + 60 * options.minutes)
        if stage.name not in kept:
            seconds = min(options.limit or stage.seconds, stop - time.monotonic())
            kept[stage.name] = perform(stage, seconds, environment)
        done.append(kept[stage.name])
        (out / "gpu.json").write_text(json.dumps({"stages": [*kept.values()]}, indent=1) + "\n")
    print(f"\nwrote {out / 'gpu.json'}\n{table(done)}")
    sys.exit(any(one["outcome"] in ("failed", "timed out") for one in done))


if __name__ == "__main__":
    main()
