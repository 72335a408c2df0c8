"""Which number format to train in."""

from __future__ import annotations

import logging

from sentsmith.errors import SettingsError

logger = logging.getLogger(__name__)


def resolve_precision(wanted: str, device_type: str) -> str:
    """Return ``"fp32"``, ``"bf16"`` or ``"fp16"`` for ``wanted`` (which may be ``"auto"``) on a device.

    ``auto`` is bf16 where the hardware multiplies bf16 matrices natively (GPUs from Ampere on, processors with AMX or
    AVX-512 bf16) and fp32 elsewhere: emulated bf16 is slower than fp32.

    Raises:
        SettingsError: fp16 on a processor, which has no fp16 arithmetic worth training in.
    """
    if wanted == "fp16" and device_type == "cpu":
        raise SettingsError("training.precision fp16 needs a GPU; use fp32, bf16 or auto on a processor")
    if wanted != "auto":
        if wanted == "bf16" and not has_native_bf16(device_type):
            logger.warning("this %s has no native bf16: expect it to be slower than fp32", device_type)
        return wanted
    return "bf16" if has_native_bf16(device_type) else "fp32"


def has_native_bf16(device_type: str) -> bool:
    """Whether the hardware multiplies bf16 matrices natively."""
    import torch

    if device_type == "cuda":
        return torch.cuda.get_device_capability()[0] >= 8
    if device_type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())  # noqa: SLF001 - the only door
    return False
