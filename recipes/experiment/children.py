"""Recipes that run recipes.

A recipe imports it from beside itself.
"""

import signal
import subprocess


def run(command, environment=None):
    """Runs a command to its end and returns its exit status; who ends us ends it.

    Args:
        command: Words.
        environment: Instead of this process's.
    """
    with subprocess.Popen(command, env=environment) as child:
        before = signal.signal(signal.SIGTERM, lambda *_: child.terminate())
        try:
            return child.wait()
        except KeyboardInterrupt:  # which the terminal sent to the child, too
            return child.wait()
        finally:
            signal.signal(signal.SIGTERM, before)
