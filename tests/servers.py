"""A web server of a folder on this machine."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder; the connection of an address ending in ``?short`` breaks off."""

    def copyfile(self, source: io.BufferedIOBase, outputfile: io.BufferedIOBase) -> None:
        content = source.read()
        outputfile.write(content[:500] if self.path.endswith("?short") else content)

    def log_message(self, format: str, *args: object) -> None:
        """Keeps quiet."""


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """The address of a server of the folder."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
