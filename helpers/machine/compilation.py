"""Counts the XLA compilations and host transfers of a training run by phase."""

from __future__ import annotations

from . import xla

TRAINING = ("step", "between")  # an optimizer step, and what happens between two (the loader)
# XLA compiles the first step and what follows the first log; the rest of a run reuses these programs.
WARMUP_RUNS = {"step": 1, "between": 3}


class CompilationCounter:
    """Assigns what XLA did since the last call to a phase; the first runs of each phase are its warm-up.

    Phases are "step", "between", "log", "evaluate" and "save". A log, an evaluation and a save must bring values to the
    host; between two of them none may leave the device.
    """

    def __init__(self, *, enabled: bool):
        self.enabled = enabled
        self.compiles = self.compiles_after_warmup = self.steps = self.transfers = 0
        self._runs: dict[str, int] = {}
        self._last: dict | None = None  # counters at the end of the last phase; None outside the training loop

    def start(self) -> None:
        """Enters the training loop."""
        self._last = xla.counters() if self.enabled else None

    def stop(self) -> None:
        """Leaves the training loop; what follows is not counted."""
        self._last = None

    def book(self, phase: str) -> None:
        """Assigns everything since the last call to `phase`."""
        if self._last is None:
            return
        now, before = xla.counters(), self._last
        self._last = now
        runs = self._runs[phase] = self._runs.get(phase, 0) + 1
        compiles = int(now["compiles"] - before["compiles"])
        self.compiles += compiles
        if runs <= WARMUP_RUNS.get(phase, 1):
            return
        self.compiles_after_warmup += compiles
        if phase in TRAINING:
            self.steps += phase == "step"
            self.transfers += int(now["host_transfers"] - before["host_transfers"])

    def results(self) -> dict:
        """The `xla` part of results.json."""
        return {
            "compiles": self.compiles,
            "compiles_after_warmup": self.compiles_after_warmup,
            "host_syncs_per_step": self.transfers / max(self.steps, 1),
        }
