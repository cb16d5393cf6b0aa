"""Runs tests by pytest and writes which call in a package reached which of its functions.

    python call_trace.py PACKAGE_FOLDER/ OUTPUT.json SECONDS TESTS...

SECONDS are of processor time; after ten times as much by the clock it ends as well. A row is [caller's file, its qualified name,
(line, end line, column, end column) of the call, callee's file, its qualified name].
"""

import json
import signal
import sys
import threading
from pathlib import Path

import pytest

root, output, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3])
seen: dict[tuple, None] = {}
known: dict = {}  # code -> whether it is of the package


def ours(code) -> bool:
    if code not in known:
        known[code] = code.co_filename.startswith(root)
    return known[code]


def profile(frame, event, argument) -> None:
    if event == "call":
        back, code = frame.f_back, frame.f_code
        if back is not None and ours(code) and ours(back.f_code):
            seen.setdefault((back.f_code, back.f_lasti, code))


def over(*_) -> None:
    raise KeyboardInterrupt  # pytest ends


for name in (signal.SIGALRM, signal.SIGPROF):
    signal.signal(name, over)
signal.setitimer(signal.ITIMER_REAL, 10 * seconds, 10)  # again and again, where a test catches it
signal.setitimer(signal.ITIMER_PROF, seconds, 5)
threading.setprofile(profile)
sys.setprofile(profile)
try:
    plain = [
        "-o",
        "addopts=",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-W",
        "ignore",
        "--continue-on-collection-errors",
    ]
    pytest.main(["-q", *plain, *sys.argv[4:]])
finally:
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    sys.setprofile(None)
    threading.setprofile(None)
    calls = []
    for caller, place, callee in seen:
        where = list(caller.co_positions())[place // 2]  # an instruction has two bytes
        calls.append([caller.co_filename, caller.co_qualname, where, callee.co_filename, callee.co_qualname])
    Path(output).write_text(json.dumps(calls))
