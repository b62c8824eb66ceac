"""Recipes that run recipes.

A recipe imports it from beside itself.
"""

import signal
import subprocess


def run(command):
    """Runs a command to its end and returns its exit status; who ends us ends it."""
    with subprocess.Popen(command) as child:
        before = signal.signal(signal.SIGTERM, lambda *_: child.terminate())
        try:
            return child.wait()
        except KeyboardInterrupt:  # which the terminal sent to the child, too
            return child.wait()
        finally:
            signal.signal(signal.SIGTERM, before)
