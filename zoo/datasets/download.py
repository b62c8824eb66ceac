"""A connection that fails fast, and that nobody on the way can read or change."""

import queue
import threading
import urllib.parse
import urllib.request

SCHEMES = ("https",)  # also behind a redirect
SECONDS = 10  # ours: for a connection, and for each wait after it


class DownloadError(RuntimeError):
    """The data are not here and could not be fetched; the message has the ways out."""


class Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only to an address that `check` allows."""

    def redirect_request(self, request, answer, code, message, headers, url):
        check(url)
        return super().redirect_request(request, answer, code, message, headers, url)


OPENER = urllib.request.build_opener(Redirects)


def check(url):
    """Raises OSError if `url` is not of `SCHEMES`.

    Example:

    >>> check("http://example.org")
    Traceback (most recent call last):
    OSError: Expected an address of https. Received: http://example.org
    """
    if urllib.parse.urlsplit(url).scheme not in SCHEMES:
        raise OSError(f"Expected an address of {', '.join(SCHEMES)}. Received: {url}")


def connect(url):
    """The open answer of `url`, to be closed by who asked.

    Raises:
        OSError: if it is not of https, or there is none within `SECONDS`, or an error.
    """
    check(url)
    answers = queue.SimpleQueue()

    def ask():
        try:
            answers.put(OPENER.open(url, timeout=SECONDS))
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
