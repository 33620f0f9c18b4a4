"""Hostile programs: none passes, none harms, and the verdicts do not depend on load.

Each program is asked for a secret that it must not be able to read: the text of a file of the
user's, an environment variable, the expected value of the test. A program passes if it returns
the secret.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nondet.marking.jail import wire
from nondet.marking.jail.watch import End, Watch, classify, reap
from nondet.marking.sandbox import LEVELS, VERDICTS, Limits, Sandbox, SandboxError

SECRET = "hunter2-5f1c"
LIMITS = Limits(cpu_s=1, idle_s=1, memory_bytes=2**28)
TEST = f"def check(candidate):\n    value = candidate()\n    assert value == {SECRET!r}, value\n"


def body(text: str) -> str:
    """A function ``answer`` with that body."""
    return "def answer():\n" + "".join(f"    {line}\n" for line in text.splitlines())


# name: program and verdict. Where a name says what is tried, the verdict says how it ends.
HOSTILE: dict[str, tuple[str, str]] = {
    "fork bomb": (body("import os\nwhile True: os.fork()"), "error"),
    "fork bomb at import": ("import os\nwhile True: os.fork()\n" + body("pass"), "error"),
    "subprocess": (body("import subprocess\nreturn subprocess.getoutput('id')"), "error"),
    "os.system": (body("import os\nreturn os.system('touch /tmp/owned')"), "wrong"),
    "exec": (body("import os\nos.execv('/bin/sh', ['sh', '-c', 'exit 0'])"), "error"),
    "threads without end": (
        body(
            "import threading, time\n"
            "while True: threading.Thread(target=time.sleep, args=(99,)).start()"
        ),
        "error",
    ),
    "memory hog": (body("x = [0]\nwhile True: x += x"), "memory_limit"),
    "memory hog in one piece": (body("return bytearray(10**12)"), "memory_limit"),
    "memory hog that hides": (
        body("try:\n    x = bytearray(10**12)\nexcept MemoryError:\n    return 'fine'"),
        "wrong",
    ),
    "endless loop": (body("while True: pass"), "cpu_limit"),
    "endless loop in C": (body("return 9 ** 9 ** 9 % 7"), "cpu_limit"),
    "backtracking": (body("import re\nre.match('(a+)+$', 'a' * 60 + 'b')"), "cpu_limit"),
    "loop that ignores signals": (
        body(
            "import signal\n"
            "for n in range(1, 32):\n"
            "    try: signal.signal(n, signal.SIG_IGN)\n"
            "    except (OSError, ValueError): pass\n"
            "while True: pass"
        ),
        "cpu_limit",
    ),
    "loop that raises its limit": (
        body(
            "import resource\n"
            "try: resource.setrlimit(resource.RLIMIT_CPU, (-1, -1))\n"
            "except (OSError, ValueError): pass\n"
            "while True: pass"
        ),
        "cpu_limit",
    ),
    "sleep": (body("import time\ntime.sleep(10**6)"), "cpu_limit"),
    "sleep in pieces": (body("import time\nwhile True: time.sleep(0.05)"), "cpu_limit"),
    "wait for a lock": (
        body("import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()"),
        "cpu_limit",
    ),
    "wait for input": (body("import sys, os\nr, w = os.pipe()\nos.read(r, 1)"), "cpu_limit"),
    "stop itself": (body("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"), "cpu_limit"),
    "write outside": (body("open('/tmp/owned', 'w').write('x')"), "error"),
    "write to the library": (body("import os\nopen(os.__file__, 'a').write('#')"), "error"),
    "climb out": (body("return open('../' * 30 + 'CANARY').read()"), "error"),
    "symlink": (body("import os\nos.symlink('CANARY', 'x')\nreturn open('x').read()"), "error"),
    "hard link": (body("import os\nos.link('CANARY', 'x')\nreturn open('x').read()"), "error"),
    "read the user's file": (body("return open('CANARY').read()"), "error"),
    "read passwd": (body("return open('/etc/passwd').read()"), "error"),
    "list the root's home": (body("import os\nreturn os.listdir('/root')"), "error"),
    "read the environment": (
        body("import os\nreturn os.environ.get('NONDET_SECRET', str(os.environ))"),
        "wrong",
    ),
    "environment of the parent": (
        body("import os\nreturn open(f'/proc/{os.getppid()}/environ').read()"),
        "error",
    ),
    "memory of the parent": (
        body("import os\nreturn open(f'/proc/{os.getppid()}/mem', 'rb').read(10)"),
        "error",
    ),
    "socket": (body("import socket\nsocket.create_connection(('127.0.0.1', PORT), 1)"), "error"),
    "datagram": (
        body(
            "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            "s.sendto(b'x', ('127.0.0.1', PORT))"
        ),
        "error",
    ),
    "kill the parent": (body("import os\nos.kill(os.getppid(), 9)"), "error"),
    "kill everybody": (body("import os\nos.kill(-1, 9)"), "error"),
    "kill the group": (body("import os\nos.killpg(os.getppid(), 9)"), "error"),
    "kill itself": (body("import os\nos.kill(os.getpid(), 9)"), "crash"),
    "trace the parent": (
        body(
            "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
            "assert libc.ptrace(16, os.getppid(), 0, 0) == 0, ctypes.get_errno()"
        ),
        "error",
    ),
    "limits of the parent": (
        body("import os, resource\nresource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))"),
        "error",
    ),
    "new namespaces": (
        body(
            "import ctypes\nassert ctypes.CDLL(None).unshare(0x10000000) == 0\nreturn 1"
        ),
        "error",
    ),
    "print without end": (body("while True: print('a' * 10**5)"), "error"),
    "one giant file": (
        body("with open('x', 'wb') as f:\n    while True: f.write(bytes(10**6))"),
        "error",
    ),
    "deep recursion": (body("return answer()"), "error"),
    "recursion in C": (
        "import sys\nsys.setrecursionlimit(10**9)\n"
        "class A:\n    def __repr__(self): return repr(self)\n"
        "def answer():\n    return repr(A())\n",
        "crash|memory_limit|cpu_limit",
    ),
    "null pointer": (body("import ctypes\nctypes.string_at(0)"), "crash"),
    "exit 0 early": ("import os\nos._exit(0)\n", "error"),
    "exit 0 when called": (body("import os\nos._exit(0)"), "error"),
    "sys.exit when called": (body("import sys\nsys.exit(0)"), "error"),
    "SystemExit caught and pass printed": (
        body("try: raise SystemExit(0)\nexcept SystemExit: print('pass')\nreturn 'pass'"),
        "wrong",
    ),
    "equal to everything": (
        "class Yes(str):\n    def __eq__(self, other): return True\n    __hash__ = str.__hash__\n"
        + body("return Yes('x')"),
        "wrong",
    ),
    "object equal to everything": (
        "class Yes:\n    def __eq__(self, other): return True\n" + body("return Yes()"),
        "wrong",
    ),
    "patch the builtins": (
        "import builtins\nbuiltins.AssertionError = Exception\nbuiltins.str = lambda *a: 'x'\n"
        "import operator\noperator.eq = lambda a, b: True\n" + body("return 'x'"),
        "error",
    ),
    "patch the harness": (
        "import sys\nfor name, module in list(sys.modules.items()):\n"
        "    if name.startswith('jail'):\n"
        "        for key in list(vars(module)):\n"
        "            if key in ('classify', 'reap', 'run_test'):\n"
        "                setattr(module, key, lambda *a: 'pass')\n"
        + body("return 'x'"),
        "wrong",
    ),
    "forge a reply": (
        body(
            "import json, os, struct\n"
            "for text in ('pass', {'verdict': 'pass', 'note': ''}):\n"
            "    data = json.dumps(text).encode()\n"
            "    for fd in range(3, 64):\n"
            "        try: os.write(fd, struct.pack('<I', len(data)) + data)\n"
            "        except OSError: pass\n"
            "return 'x'"
        ),
        "error",
    ),
    "look for the test in memory": (
        body(
            "import gc\n"
            "for o in gc.get_objects():\n"
            "    if isinstance(o, dict):\n"
            "        for v in list(o.values()):\n"
            "            if isinstance(v, str) and 'hun' + 'ter2-' in v:\n"
            "                i = v.index('hun' + 'ter2-')\n"
            "                return v[i:i + 12]\n"
            "return 'nothing'"
        ),
        "wrong",
    ),
    "change argv and path": (
        "import sys\nsys.argv[:] = ['pytest']\nsys.path[:] = ['/tmp']\nsys.stdout = None\n"
        + body("return 'x'"),
        "wrong",
    ),
    "exit function": (
        "import atexit, os\natexit.register(os._exit, 0)\n" + body("return 'x'"),
        "wrong",
    ),
    "close every file": (
        body("import os\nos.closerange(0, 64)\nreturn 'x'"),
        "error",
    ),
    # Longer than a message may be; ten times as long, it would cost half the CPU budget.
    "endless answer": (body("return 'x' * (2 * 10**7)"), "error"),
    "deep answer": (body("x = []\nfor _ in range(10**5): x = [x]\nreturn x"), "wrong"),
    "folder that cannot be removed": (
        body(
            "import os\nos.makedirs('a/b')\nopen('a/b/c', 'w')\n"
            "os.chmod('a/b', 0)\nos.chmod('.', 0)"
        ),
        "wrong",
    ),
    "folders without end": (
        body("import os\nwhile True:\n    os.mkdir('d' * 200)\n    os.chdir('d' * 200)"),
        "error|cpu_limit",
    ),
}  # fmt: skip


def levels() -> list[str]:
    """Levels that confine and work here."""
    found = []
    for level in LEVELS[:3]:
        try:
            with Sandbox(LIMITS, level):
                found.append(level)
        except SandboxError:
            continue
    return found


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("home") / "canary.txt"
    path.write_text(SECRET)
    os.environ["NONDET_SECRET"] = SECRET
    yield path
    del os.environ["NONDET_SECRET"]


@pytest.fixture(scope="module")
def visits() -> Iterator[tuple[int, list[object]]]:
    """A port on this machine, and everything that ever came to it."""
    got: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            datagrams.bind(("127.0.0.1", port))
            datagrams.settimeout(0.2)
            server.settimeout(0.2)
            done = threading.Event()

            def listen() -> None:
                while not done.is_set():
                    for receive in (server.accept, lambda: datagrams.recv(10)):
                        try:
                            got.append(receive())
                        except TimeoutError:
                            continue

            thread = threading.Thread(target=listen)
            thread.start()
            yield port, got
            done.set()
            thread.join()


def run(sandbox: Sandbox, name: str, canary: Path, port: int = 9) -> str:
    code = HOSTILE[name][0].replace("CANARY", str(canary)).replace("PORT", str(port))
    return sandbox.run_check(code, "answer", "", TEST).kind


def test_there_are_enough_of_them() -> None:
    assert len(HOSTILE) >= 25
    wanted = {kind for _, kinds in HOSTILE.values() for kind in kinds.split("|")}
    assert wanted == set(VERDICTS) - {"pass"}


def each_level() -> list[object]:
    """The best level, and the others marked slow."""
    best, *others = levels()
    return [best, *(pytest.param(level, marks=pytest.mark.slow) for level in others)]


@pytest.mark.parametrize("level", each_level())
def test_none_passes_and_none_harms(
    level: str, canary: Path, visits: tuple[int, list[object]]
) -> None:
    port, got = visits
    before = canary.stat()
    with Sandbox(LIMITS, level) as sandbox:
        verdicts = {name: run(sandbox, name, canary, port) for name in HOSTILE}
        bad = {
            name: (kind, HOSTILE[name][1])
            for name, kind in verdicts.items()
            if kind not in HOSTILE[name][1].split("|")
        }
        good = sandbox.run_check(body(f"return {SECRET!r}"), "answer", "", TEST)
        root = Path(sandbox._root)
    assert bad == {}
    assert good.kind == "pass"  # the sandbox is still whole, and a right answer passes
    assert canary.read_text() == SECRET
    after = canary.stat()
    assert (after.st_mtime_ns, after.st_nlink) == (before.st_mtime_ns, before.st_nlink)
    assert not Path("/tmp/owned").exists()
    assert got == []
    assert not root.exists()


def test_the_attacks_are_real_where_nothing_confines(canary: Path) -> None:
    """Without the layers the same programs do read the secret: the tests above can fail."""
    with Sandbox(LIMITS, "limits") as sandbox:
        for name in ("read the user's file", "symlink", "hard link", "climb out"):
            assert run(sandbox, name, canary) == "pass"


@pytest.mark.parametrize("level", levels())
def test_scripts_see_an_empty_folder_and_no_environment(level: str) -> None:
    with Sandbox(LIMITS, level) as sandbox:
        shown = sandbox.run_script("import os; print(os.listdir('.'), sorted(os.environ))", "")
        again = sandbox.run_script("open('left', 'w'); import os; print(os.listdir('.'))", "")
        third = sandbox.run_script("import os; print(os.listdir('.'))", "")
    allowed = {"LANG", "PATH", "PWD", "PYTHONHASHSEED", "LC_CTYPE", "OLDPWD"}
    assert shown.stdout.startswith("[] ")
    assert set(eval(shown.stdout[3:])) <= allowed
    assert again.stdout == "['left']\n"
    assert third.stdout == "[]\n"


def test_what_is_in_force_is_said() -> None:
    for level in levels():
        with Sandbox(LIMITS, level) as sandbox:
            said = sandbox.describe()
        assert said.startswith(level)
        assert "seccomp" in said
    with Sandbox(LIMITS, "limits") as sandbox:
        assert "NOT safe" in sandbox.describe()
    with pytest.raises(SandboxError, match="must be one of bubblewrap"):
        Sandbox(LIMITS, "none")


def test_bubblewrap_comes_first_where_it_is_installed() -> None:
    with Sandbox(LIMITS) as sandbox:
        assert sandbox.level == levels()[0]
    if shutil.which("bwrap") is None:
        with pytest.raises(SandboxError, match="bwrap is not installed"):
            Sandbox(LIMITS, "bubblewrap")


def test_without_a_safe_level_no_program_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sandbox, "_start", lambda _self, level: f"{level} is missing")
    with pytest.raises(SandboxError) as caught:
        Sandbox(LIMITS)
    assert "landlock is missing" in str(caught.value)
    assert "limits" not in str(caught.value)


def test_a_dead_server_is_an_error_once_and_then_replaced() -> None:
    with Sandbox(LIMITS) as sandbox:
        assert sandbox._process is not None
        sandbox._process.kill()
        sandbox._process.wait()
        with pytest.raises(SandboxError, match="the sandbox ended"):
            sandbox.run_script("print(1)", "")
        assert sandbox.run_script("print(1)", "").stdout == "1\n"


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        (End(0, 0.1, False, False), "ok"),
        (End(0, 1.0, False, False), "cpu_limit"),
        (End(9, 0.1, False, True), "cpu_limit"),
        (End(24, 0.99, False, False), "cpu_limit"),
        (End(9, 1.7, False, False), "cpu_limit"),
        (End(9, 0.1, False, False), "crash"),
        (End(11, 0.1, True, False), "crash"),
        (End(9, 0.1, True, False), "ok"),
        (End(66 << 8, 0.1, False, False), "memory_limit"),
        (End(1 << 8, 0.1, False, False), "error"),
    ],
)
def test_how_an_end_is_read(end: End, kind: str) -> None:
    assert classify(end, {"cpu_s": 1})[0] == kind


def burn() -> None:
    while True:
        sum(range(10**5))


def under_load(rounds: int, names: list[str], canary: Path) -> list[dict[str, str]]:
    busy = [
        multiprocessing.get_context("spawn").Process(target=burn, daemon=True) for _ in range(4)
    ]
    for process in busy:
        process.start()
    try:
        with Sandbox(LIMITS) as sandbox:
            return [{name: run(sandbox, name, canary) for name in names} for _ in range(rounds)]
    finally:
        for process in busy:
            process.kill()
            process.join()


def test_verdicts_are_the_same_under_load_once(canary: Path) -> None:
    names = [
        "endless loop",
        "sleep",
        "memory hog",
        "exit 0 early",
        "kill the parent",
        "deep recursion",
    ]
    with Sandbox(LIMITS) as sandbox:
        calm = {name: run(sandbox, name, canary) for name in names}
    assert under_load(1, names, canary) == [calm]


@pytest.mark.skipif("namespaces" not in levels(), reason="namespaces are not allowed here")
def test_folders_run_out_long_before_the_budget() -> None:
    # Landlock walks to the root at every mkdir, so n folders cost n * n: with the limit at 4096
    # a slow machine ended now here, now at the CPU budget, and the verdict was a matter of speed.
    count = (
        "import os, time\nn = 0\ntry:\n    while True:\n        os.mkdir('d' * 200)\n"
        "        os.chdir('d' * 200)\n        n += 1\n"
        "except OSError as error:\n    print(n, error.errno, time.process_time())"
    )
    # The budget of the marker, and not these tests' short one: seconds are the machine's.
    limits = Limits()
    with Sandbox(limits, "namespaces") as sandbox:
        shown = sandbox.run_script(count, "").stdout.split()
    assert int(shown[0]) < 1024
    assert int(shown[1]) == errno.ENOSPC
    assert float(shown[2]) < 0.5 * limits.cpu_s


def fork_busy(core: int, seconds: float, policy: int) -> int:
    """A process that wants ``seconds`` of one core, by a policy of the scheduler."""
    pid = os.fork()
    if pid == 0:
        os.sched_setaffinity(0, {core})
        os.sched_setscheduler(0, policy, os.sched_param(0))
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass
        os._exit(0)
    return pid


def test_waiting_for_a_processor_is_not_idleness() -> None:
    # A queued thread's waiting is accounted only when it runs again. SCHED_IDLE: it gets some
    # thousandths of the core while the other wants all of it.
    core = min(os.sched_getaffinity(0))
    greedy = fork_busy(core, 60, os.SCHED_OTHER)
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    took = 0.0
    try:
        # How much it gets at a time is the kernel's: more is wanted until it has to wait for it.
        for wanted in (0.006, 0.02, 0.06):
            pid = fork_busy(core, wanted, os.SCHED_IDLE)
            began = time.monotonic()
            end = Watch(proc).wait(pid, {"idle_s": 0.2})
            took = time.monotonic() - began
            assert (end.idle, end.status) == (False, 0)
            if took > 0.5:
                break
    finally:
        os.close(proc)
        reap(greedy, killed=True)
    assert took > 0.5, "the process was not starved: this shows nothing"


def test_a_caller_that_is_slow_costs_a_program_nothing() -> None:
    request = {"kind": "calls", "code": "def answer():\n    return 1\n", "entry": "answer"}
    test = {"setup": "", "test": "def check(f):\n    assert f() == 1\n", "entry": "answer"}
    with Sandbox(LIMITS) as sandbox:
        wire.send(sandbox._handle("stdin"), {**request, "limits": sandbox.limits})
        time.sleep(1.5 * LIMITS.idle_s)
        wire.send(sandbox._handle("stdin"), test)
        assert wire.receive(sandbox._handle("stdout"))["verdict"] == "pass"


BUDGET = [name for name, (_, kinds) in HOSTILE.items() if "cpu_limit" in kinds]
QUICK = [name for name in HOSTILE if name not in BUDGET]
# A machine of many cores may split the rounds over several pytest processes, each on two of them.
SOAK_ROUNDS = int(os.environ.get("SOAK_ROUNDS", "50"))


@pytest.mark.parametrize(
    ("names", "rounds"),
    [
        pytest.param(QUICK, 10, marks=pytest.mark.slow, id="quick, 10 times"),
        pytest.param(BUDGET, 2, marks=pytest.mark.slow, id="budget, twice"),
        pytest.param(QUICK, SOAK_ROUNDS, marks=pytest.mark.soak, id="quick, 50 times"),
        pytest.param(BUDGET, SOAK_ROUNDS, marks=pytest.mark.soak, id="budget, 50 times"),
    ],
)
def test_verdicts_are_the_same_under_load(names: list[str], rounds: int, canary: Path) -> None:
    with Sandbox(LIMITS) as sandbox:
        calm = {name: run(sandbox, name, canary) for name in names}
    for loaded in under_load(rounds, names, canary):
        assert loaded == calm
