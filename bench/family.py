"""Every member of the family beside DeepGEMM itself, in one process: `python bench/family.py OUT.json --only grouped`.

A member's results are compared before it is timed, by the method of harness.py. OUT.json is written after each, so
that a run cut short loses nothing. A member that raises is recorded with what it raised; the process that measures is
replaced where one ends or hangs, and goes on with the next. `speed` is DeepGEMM's time over kingpost's.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import typer
from harness import LARGE_FLOP, Call, copies, machine, measure, record
from members import CASES, Case, Source, Work, dense_bf16, dense_fp8, grouped, grouped_counts
from torch import Tensor

GOAL = 0.8  # of DeepGEMM's speed, at least
PATIENCE = 60  # seconds for one member, or for starting: what takes longer hangs
HOST_CALLS, HOST_LOOPS = 200, 5
SMALL = (  # what the GPU has done before the host has said what comes next
    dense_fp8(64, 576, 512),
    dense_bf16("nt", 64, 576, 512),
    grouped("fp8", "rows", 4, 100, 512, 512),
    grouped_counts("fp8", 4, 20, 512, 512),
)
Message = tuple[str, int, Any]


def raised(call: Call) -> str | None:
    """What it raised. The GPU has finished when this returns."""
    try:
        call()
        torch.cuda.synchronize()
    except Exception as error:  # whatever goes wrong in one member, the others are still to be measured
        return f"{type(error).__name__}: {str(error).strip()}"[:400]
    return None


def compared(ours: Tensor, theirs: Tensor) -> dict[str, Any]:
    """The error of ours relative to theirs, in the norm, and how many elements differ in a bit."""
    total = torch.linalg.vector_norm(theirs, dtype=torch.float64)
    error = torch.linalg.vector_norm(ours.float() - theirs.float(), dtype=torch.float64) / total
    bits = torch.int16 if ours.itemsize == 2 else torch.int32
    differing = int((ours.view(bits) != theirs.view(bits)).sum())
    return {"error": error.item(), "differing": differing, "elements": ours.numel()}


def checked(work: Work) -> tuple[dict[str, str], dict[str, Any]]:
    """What either raised, by name; and, if neither did, how their results compare."""
    start, results, failed = work.out.clone(), {}, {}
    for name, call in (("deepgemm", work.deepgemm), ("kingpost", work.kingpost)):
        work.out.copy_(start)
        if error := raised(call):
            failed[name] = error
        else:
            results[name] = work.result().clone()
    return failed, {} if failed else compared(results["kingpost"], results["deepgemm"])


def measured(case: Case) -> dict[str, Any]:
    """A case's entry in the results."""
    sustained = case.flop > LARGE_FLOP
    entry = {"member": case.member, **case.sizes, "flop": case.flop, "bytes": case.bytes}
    source = Source("cuda")
    sets = [case.make(source)]
    failed, comparison = checked(sets[0])
    entry |= comparison
    if failed:
        entry["failed"] = failed
    if "kingpost" in failed:
        return entry
    sets += [case.make(source) for _ in range(copies(case.bytes) - 1)]
    calls = {name: [getattr(work, name) for work in sets] for name in ("kingpost", "deepgemm") if name not in failed}
    times = measure(calls, sustained)
    entry |= {f"{name}_us": timing.median for name, timing in times.items()}
    entry |= {f"{name}_rounds_us": timing.rounds for name, timing in times.items()}
    if not failed:
        entry["speed"] = times["deepgemm"].median / times["kingpost"].median
    return entry | {"load": "sustained" if sustained else "burst", "sets": len(sets)}


def host_microseconds(case: Case) -> dict[str, Any]:
    """The host's time for one call of a small product, whose kernels wait for it: median of the loops."""
    work = case.make(Source("cuda"))
    entry = {"member": case.member, **case.sizes}
    for name, call in (("kingpost", work.kingpost), ("deepgemm", work.deepgemm)):
        if error := raised(call):
            entry.setdefault("failed", {})[name] = error
            continue
        loops = []
        for _ in range(HOST_LOOPS):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(HOST_CALLS):
                call()
            loops.append((time.perf_counter() - start) / HOST_CALLS * 1e6)
        entry[f"{name}_us"] = statistics.median(loops)
    return entry | {"host": True}


JOBS = [(host_microseconds, case) for case in SMALL] + [(measured, case) for case in CASES]


def nothing_of(case: Case, why: str) -> dict[str, Any]:
    return {"member": case.member, **case.sizes, "failed": {"both": why[:400]}}


def work_through(todo: list[int], results: Connection) -> None:
    """What the measuring process does, with a message before and after each job. It ends where the GPU's state does.

    The kinds of message: "machine"; of a job, "start" and "result".
    """
    torch.manual_seed(0)
    results.send(("machine", 0, machine()))
    for i in todo:
        results.send(("start", i, None))
        measure_one, case = JOBS[i]
        try:
            entry = measure_one(case)
        except Exception as error:
            entry = nothing_of(case, repr(error))
        results.send(("result", i, entry))
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def messages(todo: list[int]) -> Iterator[Message]:
    """Of as many measuring processes, one after another, as it takes to have gone through all jobs."""
    spawn, todo, before = multiprocessing.get_context("spawn"), list(todo), 0
    while todo and len(todo) != before:  # a process that starts no job is not followed by another
        before, current, end = len(todo), None, "hung"
        receiver, sender = spawn.Pipe(duplex=False)
        process = spawn.Process(target=work_through, args=(todo, sender), daemon=True)
        process.start()
        sender.close()
        try:
            while receiver.poll(PATIENCE):
                kind, i, value = receiver.recv()
                if kind == "start":
                    current = i
                    todo.remove(i)
                    continue
                if kind == "result":
                    current = None
                yield kind, i, value
        except EOFError:
            end = "ended"
        finally:
            process.kill()
            process.join()
        if current is not None:
            yield "result", current, nothing_of(JOBS[current][1], f"the process {end}, exit code {process.exitcode}")


def line(case: Case, entry: dict[str, Any]) -> str:
    text = f"{'host: ' * ('host' in entry)}{case!s:<70}"
    for name in ("kingpost", "deepgemm"):
        if f"{name}_us" in entry:
            text += f" {name} {entry[f'{name}_us']:8.2f} us"
    if "speed" in entry:
        rate = case.flop / entry["kingpost_us"] / 1e6
        bits = "bits equal" if not entry["differing"] else f"{entry['differing'] / entry['elements']:.1e} differ"
        text += f"  speed {entry['speed']:.3f} {rate:5.0f} TFLOP/s  error {entry['error']:.1e}, {bits}"
    return text + "".join(f"  {name} FAILED: {why}" for name, why in entry.get("failed", {}).items())


def summary(entries: list[dict[str, Any]]) -> Iterator[str]:
    for member in sorted({entry["member"] for entry in entries}):
        mine = [entry for entry in entries if entry["member"] == member]
        speeds = sorted(entry["speed"] for entry in mine if "speed" in entry)
        of = f"{len(speeds)} of {len(mine)}"
        if speeds:
            below = sum(speed < GOAL for speed in speeds)
            of += f", speed {speeds[0]:.3f} to {speeds[-1]:.3f}, median {statistics.median(speeds):.3f}"
            of += f", {below} below {GOAL}" if below else ""
        yield f"{member:<22} {of}"


def compile_share(share: int, of: int) -> None:
    """DeepGEMM's kernels of every `of`-th case: one call of each, on memory as it is."""
    source = Source("cuda" if torch.cuda.is_available() else "cpu", random=False)
    for case in [*CASES, *SMALL][share::of]:
        try:
            case.make(source).deepgemm()
        except Exception as error:
            print(f"{case}: {error!r}", flush=True)


def compile_all(processes: int) -> None:
    """DeepGEMM compiles in one thread of a process, and its cache is shared."""
    start = time.perf_counter()
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=compile_share, args=(i, processes)) for i in range(processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(f"DeepGEMM's kernels are compiled: {time.perf_counter() - start:.1f} s", flush=True)


def main(out: Path, only: str = "", seconds: float = 480, compile: int = 0) -> None:
    """only: words, comma-separated, one of which a member's name must hold. seconds: to stop after. compile: how many
    processes first compile DeepGEMM's kernels; where there is no GPU, that is all that is done."""
    end = time.perf_counter() + seconds
    if compile:
        compile_all(compile)
        if not torch.cuda.is_available():
            return
    words = [word.strip() for word in only.split(",")]
    todo = [i for i, (_, case) in enumerate(JOBS) if any(word in case.member for word in words)]
    entries: dict[int, dict[str, Any]] = {}
    where: dict[str, Any] = {}
    for kind, i, value in messages(todo):
        if kind == "machine":
            where = value
            continue
        entries[i] = value
        print(line(JOBS[i][1], value), flush=True)
        host, results = (
            [value for j, value in sorted(entries.items()) if (j < len(SMALL)) == of] for of in (True, False)
        )
        record(out, results, where, host=host, not_run=[str(JOBS[j][1]) for j in todo if j not in entries])
        if time.perf_counter() > end:
            print(f"{seconds:.0f} s are over; {len(todo) - len(entries)} not run", flush=True)
            break
    print(*summary([value for i, value in entries.items() if i >= len(SMALL)]), sep="\n", flush=True)


if __name__ == "__main__":
    typer.run(main)
