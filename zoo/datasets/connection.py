"""A connection that fails fast."""

import queue
import threading
import urllib.request

SECONDS = 10  # ours: for a connection, and for each wait after it


class DownloadError(RuntimeError):
    """The data are not here and could not be fetched; the message has the ways out."""


def connect(url):
    """The open answer of `url`, to be closed by who asked.

    Raises:
        OSError: if there is none within `SECONDS`, or an error.
    """
    answers = queue.SimpleQueue()

    def ask():
        try:
            answers.put(urllib.request.urlopen(url, timeout=SECONDS))
        except Exception as error:  # of whatever kind: it is raised where it is waited for
            answers.put(error)

    # In a thread because name servers, and each of a host's addresses, have timeouts of their own.
    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=SECONDS)
    except queue.Empty:
        raise TimeoutError(f"no answer from {url} within {SECONDS} seconds") from None
    if isinstance(answer, Exception):
        raise answer
    return answer
