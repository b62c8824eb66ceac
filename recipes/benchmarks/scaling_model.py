"""Predicted images per second of highway_resnet50 on n accelerators: the tables of docs/scaling.md.

    python recipes/benchmark.py scaling_model --images_per_second 2500

The program (weights, operations, collectives) is read from results/benchmark_scaling.jsonl. The
machine is described by the flags, which are assumptions until they are measured: `benchmark.py
vision` gives the images per second of one accelerator.
"""

import json
import math
import pathlib

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results" / "benchmark_scaling.jsonl"
NUMBERS = (1, 8, 64, 512)
BATCH = 256  # Greff et al. (2017) after fb.resnet.torch
HEAD = (
    "| accelerators | images each | compute, ms | gradient, ms | normalisations, ms | step, ms | "
    "images/s | of n times one |\n| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
)


def add_flags(parser):
    """Add the machine's numbers as flags."""
    add = parser.add_argument
    speed = "Images per second of one accelerator in training; assumed."
    add("--images_per_second", type=float, default=2500, help=speed)
    add("--full_at", type=float, default=32, help="Images that keep an accelerator busy; assumed.")
    inside = "GB/s between the accelerators of a host; NVLink 4."
    add("--inside", type=float, default=450, help=inside)
    between = "GB/s of an accelerator to those of other hosts; 400 Gb/s."
    add("--between", type=float, default=50, help=between)
    add("--per_host", type=int, default=8, help="Accelerators per host.")
    latency = "Microseconds of a message; an all-reduce has log2 n of them; assumed."
    add("--latency", type=float, default=5, help=latency)


def main(options):
    """Print the tables."""
    print(tables(options))


def tables(machine):
    """Return the predictions as Markdown: for the paper's batch, and for one that grows with n."""
    each = int(machine.full_at)
    return (
        f"The paper's batch of {BATCH}:\n\n{table(machine, lambda number: BATCH)}\n\n"
        f"{each} images each:\n\n{table(machine, lambda number: each * number)}\n"
    )


def table(machine, batch):
    """Return one table; `batch` is a function of the number of accelerators."""
    rows = [HEAD]
    single = batch(1) / step(machine, 1, batch(1))[-1]
    for number in NUMBERS:
        images = batch(number)
        cells = [str(number), f"{images / number:g}"]
        if images < number:
            cells += [""] * 6
        else:
            times = step(machine, number, images)
            rate = images / times[-1]
            cells += [f"{1e3 * seconds:.2f}" for seconds in times]
            cells += [f"{rate:,.0f}", f"{rate / (number * single):.2f}"]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows).replace("|  |", "| |").replace("|  |", "| |")


def program():
    """Return bytes of the gradient and number of the other all-reduces, of XLA's program."""
    lines = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    found = [line["found"] for line in lines if line["found"]["all_reduces"]][-1]
    return 4 * found["weights"], found["all_reduces"] - 1


def step(machine, number, batch):
    """Return seconds of a step: compute, the gradient's all-reduce, the others', and in all."""
    gradient, others = program()
    compute = max(batch / number, machine.full_at) / machine.images_per_second
    speed = 1e9 * (machine.inside if number <= machine.per_host else machine.between)
    latency = 1e-6 * machine.latency * math.log2(number)
    reduced = 2 * (number - 1) / number * gradient / speed + latency
    waiting = others * latency
    hidden = 2 / 3 * compute  # the backward pass, during which a gradient is all-reduced
    return compute, reduced, waiting, compute + waiting + max(0.0, reduced - hidden)
