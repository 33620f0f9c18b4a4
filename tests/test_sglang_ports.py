"""Ports for engines that start at the same moment on one machine."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from nondet.backends import sglang_ports
from nondet.backends.sglang_ports import PortClaim

HOLD = """
import sys
from nondet.backends import sglang_ports
sglang_ports.FIRST, sglang_ports.COUNT = int(sys.argv[1]), int(sys.argv[2])
claim = sglang_ports.PortClaim()
print(claim.port, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """A range of two ports of its own for a test."""
    monkeypatch.setattr(sglang_ports, "FIRST", 21000)
    monkeypatch.setattr(sglang_ports, "COUNT", 2)
    return {21000, 21001}


def test_a_port_is_claimed_once_and_comes_back(two: set[int]) -> None:
    claims = [PortClaim(), PortClaim()]
    assert {claim.port for claim in claims} == two
    with pytest.raises(OSError, match="no free port from 21000 to 21001"):
        PortClaim()
    claims[0].close()
    claims[0].close()
    again = PortClaim()
    assert again.port == claims[0].port
    for claim in (again, claims[1]):
        claim.close()


def test_the_engine_can_bind_its_port_and_others_pass_over_it(two: set[int]) -> None:
    claim = PortClaim()
    with socket.create_server(("127.0.0.1", claim.port)):
        claim.close()
        other = PortClaim()
        assert {claim.port, other.port} == two
        other.close()


def test_a_process_holds_its_port_until_it_ends(two: set[int]) -> None:
    command = [sys.executable, "-c", HOLD, "21000", "2"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        theirs = int(child.stdout.readline())
        ours = PortClaim()
        assert {theirs, ours.port} == two
        with pytest.raises(OSError, match="no free port"):
            PortClaim()
        child.kill()
        child.wait()
        after = PortClaim()
        assert after.port == theirs
        for claim in (ours, after):
            claim.close()
