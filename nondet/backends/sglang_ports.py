"""A port for each SGLang, that no engine started at the same moment also takes.

SGLang looks for a free port at its start, lets it go, and binds it again when its scheduler has
loaded, tens of seconds later. In 0.5.15 the port comes from the kernel's ephemeral range, so a
sibling or any outgoing connection may have it by then. (The other channels of an engine in
process are files, unless attention is data parallel, which is never asked for here.)
"""

from __future__ import annotations

import os
import socket

# Below the ephemeral range of Linux (32768 up) and that from which 0.5.23 draws (22000 up).
FIRST, COUNT = 12000, 8000


class PortClaim:
    """One TCP port that is this process's alone among all that claim theirs so, until ``close``.

    The claim is the name of an abstract Unix socket: like ports, names belong to one network
    namespace; the kernel grants each of them once and drops it with its process. The port itself
    stays unbound for the engine.
    """

    def __init__(self) -> None:
        """Raises OSError when every port of the range is claimed or bound."""
        # Neighbours in process ids start their search at neighbouring ports.
        for step in range(COUNT):
            self.port = FIRST + (os.getpid() + step) % COUNT
            claim = _claimed(self.port)
            if claim is None:
                continue
            if _unbound(self.port):
                self._claim = claim
                return
            claim.close()
        raise OSError(f"no free port from {FIRST} to {FIRST + COUNT - 1}")

    def close(self) -> None:
        """Give the port back. More than once is no error."""
        self._claim.close()


def _claimed(port: int) -> socket.socket | None:
    """The socket whose name claims a port; None if another process has it."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0nondet-sglang-port-{port}")
    except OSError:
        claim.close()
        return None
    return claim


def _unbound(port: int) -> bool:
    """Whether nobody has bound the port, on any address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
