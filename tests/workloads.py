"""Machines that are not here, and a plan made by hand for tests that are not about plans."""

from dataclasses import replace

from helpers.machine.runtime import Runtime, choose_precision
from helpers.plan.settings import Plan

CAPABILITY = {"Tesla T4": (7, 5), "NVIDIA A100-SXM4-40GB": (8, 0)}


def cpu_by_hand(precision: str = "fp32", name: str = "CPU", devices: int = 1, memory: int | None = None) -> Runtime:
    """A CPU, also under the name of a device that is not here: `detect` would settle for the whole process whether XLA is used."""
    return Runtime(
        kind="cpu",
        reason="",
        device_name=name,
        device_count=devices,
        memory=memory,
        compute_capability=None,
        precision=precision,
        precision_reason="by hand",
    )


def machine_by_hand(kind: str, name: str, *, devices: int = 1, memory: int | None = None) -> Runtime:
    """Another kind of device, in the precision that would be chosen for it."""
    capability = CAPABILITY.get(name)
    precision, why = choose_precision(kind, name, capability)
    here = cpu_by_hand(precision, name, devices, memory)
    return replace(here, kind=kind, compute_capability=capability, precision_reason=why)


def plan_by_hand(machine, *, batch_size: int, accumulation: int = 1, steps: int, length: int, **changes) -> Plan:
    """Settings as they are asked for."""
    settings = {
        "precision": machine.precision,
        "per_device_batch_size": batch_size // machine.device_count,
        "gradient_accumulation_steps": accumulation,
        "device_count": machine.device_count,
        "learning_rate": 1e-3,
        "max_steps": steps,
        "sequence_length": length,
        "warmup_steps": round(0.05 * steps),
        "weight_decay": 0.01,
        "max_grad_norm": 1.0,
        "optimizer": "adamw_torch_fused" if machine.kind == "cuda" else "adamw_torch",
        "gradient_checkpointing": False,
        "memory": {},
    }
    return Plan(**settings | changes)
