"""Runs tests by pytest and writes which call in a package reached which of its functions.

    python call_trace.py PACKAGE_FOLDER OUTPUT.json SECONDS TESTS...

A row is [caller's file, its qualified name, (line, end line, column, end column) of the call, callee's file, its qualified name].
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


signal.signal(signal.SIGALRM, over)
signal.alarm(seconds)
threading.setprofile(profile)
sys.setprofile(profile)
try:
    pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore", *sys.argv[4:]])
finally:
    sys.setprofile(None)
    threading.setprofile(None)
    signal.alarm(0)
    calls = []
    for caller, place, callee in seen:
        where = list(caller.co_positions())[place // 2]  # an instruction has two bytes
        calls.append([caller.co_filename, caller.co_qualname, where, callee.co_filename, callee.co_qualname])
    Path(output).write_text(json.dumps(calls))
