"""libudm as ctypes sees it: the declarations of udm.h, and nothing else."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from ctypes import POINTER, Structure, c_char_p, c_int, c_int32, c_size_t, c_uint, c_uint32, c_uint64, c_void_p


class Iovec(Structure):
    """``struct iovec``"""

    _fields_ = [("base", c_void_p), ("len", c_size_t)]


class DeviceInfoStruct(Structure):
    """``struct udm_device_info``"""

    _fields_ = [
        ("size", c_uint64),
        ("logical_block_size", c_uint32),
        ("memory_alignment", c_uint32),
        ("discard_granularity", c_uint32),
        ("flags", c_uint32),
    ]


class RequestStruct(Structure):
    """``struct udm_request``"""

    _fields_ = [
        ("op", c_uint32),
        ("flags", c_uint32),
        ("offset", c_uint64),
        ("length", c_uint64),
        ("iov", POINTER(Iovec)),
        ("iovcnt", c_uint32),
        ("reserved", c_uint32),
        ("token", c_uint64),
    ]


class CompletionStruct(Structure):
    """``struct udm_completion``"""

    _fields_ = [("token", c_uint64), ("result", c_int32), ("reserved", c_uint32)]


FOREVER = 2**64 - 1

_FUNCTIONS = {
    "udm_error": (c_char_p, []),
    "udm_stack_open": (c_int, [c_char_p, POINTER(c_void_p)]),
    "udm_stack_close": (None, [c_void_p]),
    "udm_command": (c_int, [c_void_p, POINTER(c_char_p), POINTER(c_void_p)]),
    "udm_text_free": (None, [c_void_p]),
    "udm_device_info": (c_int, [c_void_p, c_char_p, POINTER(DeviceInfoStruct)]),
    "udm_queue_open": (c_int, [c_void_p, c_char_p, c_uint, POINTER(c_void_p)]),
    "udm_queue_close": (None, [c_void_p]),
    "udm_queue_submit": (c_int, [c_void_p, POINTER(RequestStruct)]),
    "udm_queue_poll": (c_int, [c_void_p, POINTER(CompletionStruct), c_uint]),
    "udm_queue_wait": (c_int, [c_void_p, POINTER(CompletionStruct), c_uint, c_uint, c_uint64]),
}


def load() -> ctypes.CDLL:
    """The library: that of ``$UDM_LIBRARY``, else the installed one."""
    name = os.environ.get("UDM_LIBRARY") or ctypes.util.find_library("udm") or "libudm.so"
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise ImportError(
            f"{name} cannot be loaded: {error}; install it (make install), or set UDM_LIBRARY to its path"
        ) from error
    for function, (result, arguments) in _FUNCTIONS.items():
        declared = getattr(library, function)
        declared.restype, declared.argtypes = result, arguments
    return library
