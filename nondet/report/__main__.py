"""python -m nondet.report STUDY [STUDY...] [--out DIR] [--seed N] [--serve no|PORT]"""

from __future__ import annotations

import argparse
import functools
import http.server
import sys
from collections.abc import Sequence
from pathlib import Path

from nondet.report.terminal import print_report
from nondet.report.write import write_report
from nondet.study import StudyError


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m nondet.report",
        description="Tables, figures and one HTML page from stored runs; several folders merge.",
    )
    top.add_argument("folders", nargs="+", type=Path, metavar="STUDY")
    top.add_argument("--out", type=Path, help="default: report/ in the first study")
    top.add_argument("--seed", type=int, default=0, help="of every resampling (default 0)")
    top.add_argument("--serve", default="no", metavar="PORT", help="show it on this port, or: no")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0, or 2 with one line where there is nothing to report on."""
    args = parser().parse_args(argv)
    out = args.out or args.folders[0] / "report"
    if args.serve != "no" and not (args.serve.isdigit() and int(args.serve) < 65536):
        print(f"serve={args.serve}: must be no or a port number", file=sys.stderr)
        return 2
    try:
        result = write_report(args.folders, out, args.seed)
    except (StudyError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print_report(result)
    if args.serve != "no":
        serve(out, int(args.serve))
    return 0


def serve(folder: Path, port: int) -> None:
    """Serve a folder to this machine until interrupted."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        print(f"http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


if __name__ == "__main__":
    sys.exit(main())
