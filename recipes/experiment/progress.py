"""How far a long pass over images is, and the time left; a recipe imports it from beside itself."""

import time


class Left:
    """`progress=` of the probes: a line every so many seconds, none for what is done before.

    Args:
        what: Is done.
        examples: Of one pass.
        passes: How many passes follow each other.
        seconds: Between two lines.
    """

    def __init__(self, what, examples, passes=1, seconds=20.0):
        self.what, self.total, self.seconds = what, examples * passes, seconds
        self.done, self.seen = 0, 0
        self.start = self.said = time.perf_counter()

    def __call__(self, seen):
        """`seen`: the examples of this pass so far; less, or as many, begin the next one."""
        from zoo.callbacks.training import clock

        self.done += seen - self.seen if seen > self.seen else seen
        self.seen, now = seen, time.perf_counter()
        if now - self.said > self.seconds:
            self.said = now
            left = (now - self.start) * (self.total / self.done - 1)
            print(f"{self.what}: {self.done / self.total:.0%}, {clock(left)} left", flush=True)
