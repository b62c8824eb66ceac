"""Images per second of highway_resnet50 on n accelerators, predicted: the tables of SCALING.md.

    python recipes/benchmark.py scaling_model --images_per_second 2500

The program's part (weights, operations, collectives) is read from results/benchmark_scaling.jsonl;
the machine's part is the flags, which are assumptions until somebody measures theirs:
benchmark_vision.py gives the images per second of one accelerator.
"""

import json
import math
import pathlib

from absl import app, flags

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results" / "benchmark_scaling.jsonl"
SCALING = RESULTS.parents[1] / "SCALING.md"
MARKS = "<!-- made by scaling_model.py -->", "<!-- end -->"
NUMBERS = (1, 8, 64, 512)
BATCH = 256  # Greff et al. (2017) after fb.resnet.torch
HEAD = (
    "| accelerators | images each | compute, ms | gradient, ms | normalisations, ms | step, ms | "
    "images/s | of n times one |\n| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
)

flags.DEFINE_float("images_per_second", 2500, "Of one accelerator in training; assumed.")
flags.DEFINE_float("full_at", 32, "Images that keep one accelerator busy; assumed.")
flags.DEFINE_float("inside", 450, "GB/s of an accelerator to the others of its host; NVLink 4.")
flags.DEFINE_float("between", 50, "GB/s of an accelerator to those of other hosts; 400 Gb/s.")
flags.DEFINE_integer("per_host", 8, "Accelerators in a host.")
flags.DEFINE_float("latency", 5, "Microseconds of a message; an all-reduce has log2 n; assumed.")
flags.DEFINE_bool("write", False, "Also put the tables into SCALING.md.")
FLAGS = flags.FLAGS


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1:]}. See --help.")
    text = tables()
    print(text)
    if FLAGS.write:
        before, rest = SCALING.read_text(encoding="utf-8").split(MARKS[0])
        whole = f"{before}{MARKS[0]}\n{text}{MARKS[1]}{rest.split(MARKS[1])[1]}"
        from zoo.io import replace

        replace(SCALING, lambda path: path.write_text(whole, encoding="utf-8"))


def tables():
    """Markdown: the paper's batch, and one that grows along."""
    kinds = (
        ("The paper's batch of 256", lambda n: BATCH),
        (f"{FLAGS.full_at:g} images each", grown),
    )
    return "".join(f"{title}:\n\n{table(batch)}\n\n" for title, batch in kinds)


def grown(number):
    """A batch that keeps every accelerator busy."""
    return int(FLAGS.full_at) * number


def program():
    """Of XLA's program for several devices: bytes of the gradient, all-reduces of anything else."""
    lines = map(json.loads, RESULTS.read_text(encoding="utf-8").splitlines())
    found = [line["found"] for line in lines if line["found"]["all_reduces"]][-1]
    return 4 * found["weights"], found["all_reduces"] - 1


def step(number, batch):
    """Seconds of a step: compute, the gradient's all-reduce, those of normalisations, in all."""
    gradient, blocking = program()
    each = batch / number
    compute = max(each, FLAGS.full_at) / FLAGS.images_per_second
    speed = 1e9 * (FLAGS.inside if number <= FLAGS.per_host else FLAGS.between)
    latency = 1e-6 * FLAGS.latency * math.log2(number)
    reduced = 2 * (number - 1) / number * gradient / speed + latency * (number > 1)
    waiting = blocking * latency
    hidden = 2 / 3 * compute  # the backward pass, behind which a gradient's all-reduce can go on
    return compute, reduced, waiting, compute + waiting + max(0.0, reduced - hidden)


def table(batch):
    """Markdown; `batch` is a function of the number of accelerators."""
    rows, one = [HEAD], None
    for number in NUMBERS:
        images = batch(number)
        if images < number:
            rows.append(f"| {number} | {images / number:g} |" + " |" * 6)
            continue
        *parts, whole = step(number, images)
        rate = images / whole
        one = one or rate
        cells = [number, f"{images / number:g}", *(f"{1e3 * part:.2f}" for part in parts)]
        cells += [f"{1e3 * whole:.2f}", f"{rate:,.0f}", f"{rate / (number * one):.2f}"]
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    app.run(main)
