"""Tensors over addresses that torch did not allocate, by DLPack."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

_CPU, _CUDA = 1, 2
_UNSIGNED = 1


class _DLTensor(ctypes.Structure):
    """`DLTensor` of dlpack.h, version 0.8."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _DLManagedTensor(ctypes.Structure):
    """`DLManagedTensor` of dlpack.h without a deleter: the addresses live as long as the process."""

    _fields_ = [("dl_tensor", _DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_KEPT: list[Any] = []
"""What the tensors point to; the ranges are never freed before the process ends."""


def bytes_at(address: int, size: int, device: torch.device) -> torch.Tensor:
    """A tensor of `size` bytes at an address of this device. Nothing is read or written."""
    shape = (ctypes.c_int64 * 1)(size)
    managed = _DLManagedTensor()
    tensor = managed.dl_tensor
    tensor.data = address
    tensor.device_type = _CUDA if device.type == "cuda" else _CPU
    tensor.device_id = device.index or 0
    tensor.ndim = 1
    tensor.code, tensor.bits, tensor.lanes = _UNSIGNED, 8, 1
    tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    _KEPT.append((managed, shape))
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return torch.utils.dlpack.from_dlpack(new(ctypes.addressof(managed), b"dltensor", None))
