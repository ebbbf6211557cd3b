"""The Linux device mapper in user space, in a Python program: pure Python over libudm.

A :class:`Stack` is devices in this process, made from device mapper tables; any thread may use it. A :class:`Queue` is one
thread's way to one device::

    with udm.Stack() as stack:
        stack.create("disk", "0 2097152 ram")
        with stack.open("disk") as disk:
            disk.write(0, b"x" * 4096)
            assert disk.read(0, 4096) == b"x" * 4096

What goes wrong raises :class:`UdmError`, an :class:`OSError` with the kernel's number and udm's words.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple, TypeVar, Union

from . import _library
from ._library import FOREVER, CompletionStruct, DeviceInfoStruct, Iovec, RequestStruct

__all__ = [
    "Completion",
    "DeviceInfo",
    "Queue",
    "Stack",
    "UdmError",
    "READ",
    "WRITE",
    "FLUSH",
    "DISCARD",
    "WRITE_ZEROES",
    "FUA",
    "HIPRI",
    "NO_UNMAP",
]

#: Operations.
READ, WRITE, FLUSH, DISCARD, WRITE_ZEROES = range(5)
#: A write is durable when it completes.
FUA = 1
#: A request is to be polled for.
HIPRI = 2
#: Zeroes stay allocated.
NO_UNMAP = 4

#: What has the buffer protocol.
Buffer = Union[bytes, bytearray, memoryview, Any]

_lib = _library.load()


class UdmError(OSError):
    """What udm refuses, or what a device answers. ``errno`` is the kernel's number."""


def _check(answer: int) -> int:
    if answer < 0:
        text = _lib.udm_error() or b""
        raise UdmError(-answer, text.decode("utf-8", "replace"))
    return answer


@dataclass(frozen=True)
class DeviceInfo:
    """What a device is like; sizes in bytes."""

    size: int
    logical_block_size: int
    memory_alignment: int
    #: 0 when it takes no discards.
    discard_granularity: int
    read_only: bool
    discard: bool
    poll: bool


@dataclass(frozen=True)
class Completion:
    """A request that has ended."""

    #: What :meth:`Queue.submit` was given.
    token: Any
    #: ``None`` when it went well.
    error: Optional[UdmError]


_Self = TypeVar("_Self", bound="_Closing")


class _Closing:
    """Something that a ``with`` closes at its end."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Stack(_Closing):
    """Devices in this process, with a registry of their own. They end when it is closed.

    ``concise``: the devices to begin with, as ``udm create --concise`` takes them; none unless given.
    """

    def __init__(self, concise: str = "") -> None:
        self._handle: Optional[int] = None
        self._queues = 0
        self._lock = threading.Lock()
        handle = ctypes.c_void_p()
        _check(_lib.udm_stack_open(concise.encode(), ctypes.byref(handle)))
        self._handle = handle.value

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None and self._queues == 0:
            self.close()

    def _open(self) -> int:
        if self._handle is None:
            raise ValueError("the stack is closed")
        return self._handle

    def close(self) -> None:
        """Takes the devices down. Its queues must be closed before."""
        with self._lock:
            if self._queues:
                raise ValueError(f"{self._queues} queues of the stack are open")
            handle, self._handle = self._handle, None
        if handle is not None:
            _lib.udm_stack_close(handle)

    def command(self, *words: Union[str, int]) -> str:
        """Runs one of dmsetup's commands, as ``command("message", "pool", 0, "create_thin 0")``; what it prints."""
        handle = self._open()
        argv = (ctypes.c_char_p * (len(words) + 1))(*[str(word).encode() for word in words], None)
        output = ctypes.c_void_p()
        _check(_lib.udm_command(handle, argv, ctypes.byref(output)))
        try:
            return (ctypes.cast(output, ctypes.c_char_p).value or b"").decode("utf-8", "replace")
        finally:
            _lib.udm_text_free(output)

    def create(self, name: str, table: Optional[str] = None, *, uuid: str = "", read_only: bool = False) -> None:
        """Makes a device; without a table, one to :meth:`load` and :meth:`resume` later."""
        words = ["create", name] + (["--uuid", uuid] if uuid else []) + (["--readonly"] if read_only else [])
        self.command(*words, *(["--notable"] if table is None else ["--table", table]))

    def load(self, name: str, table: str, *, read_only: bool = False) -> None:
        """Makes a table the inactive one."""
        self.command("load", name, *(["--readonly"] if read_only else []), "--table", table)

    def suspend(self, name: str, *, noflush: bool = False) -> None:
        """Holds the device's I/O back until :meth:`resume`, and waits until none is in flight."""
        self.command("suspend", name, *(["--noflush"] if noflush else []))

    def resume(self, name: str) -> None:
        """Makes the inactive table active, if there is one, and lets I/O go."""
        self.command("resume", name)

    def remove(self, name: str) -> None:
        """Removes a device that nobody has open."""
        self.command("remove", name)

    def message(self, name: str, text: str, *, sector: int = 0) -> str:
        """Sends a message to the target that the sector lies in; its answer."""
        return self.command("message", name, sector, text)

    def table(self, name: str, *, inactive: bool = False) -> str:
        """The device's table, as it loads again."""
        return self.command("table", name, *(["--inactive"] if inactive else []))

    def status(self, name: str) -> str:
        """What the device's targets have to say."""
        return self.command("status", name)

    def devices(self) -> List[str]:
        """The names of all devices."""
        found: Dict[str, Any] = json.loads(self.command("ls", "--json"))
        return [device["name"] for device in found["devices"]]

    def info(self, device: Optional[str] = None) -> DeviceInfo:
        """What a device is like now; without a name, the last of the specification."""
        found = DeviceInfoStruct()
        name = device.encode() if device is not None else None
        _check(_lib.udm_device_info(self._open(), name, ctypes.byref(found)))
        return DeviceInfo(
            size=found.size,
            logical_block_size=found.logical_block_size,
            memory_alignment=found.memory_alignment,
            discard_granularity=found.discard_granularity,
            read_only=bool(found.flags & 1),
            discard=bool(found.flags & 2),
            poll=bool(found.flags & 4),
        )

    def open(self, device: Optional[str] = None, depth: int = 32) -> "Queue":
        """A way to the device for this thread, with at most ``depth`` requests out."""
        return Queue(self, device, depth)


#: Memory as libudm takes it, and what has to stay as long as it is lent.
_Memory = Tuple[int, int, object]


def _memory(buffer: Buffer, writable: bool) -> _Memory:
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise BufferError("the buffer is not contiguous")
    if not view.readonly:
        array = (ctypes.c_char * view.nbytes).from_buffer(buffer)
        return ctypes.addressof(array), view.nbytes, array
    if writable:
        raise BufferError("the buffer cannot be written to")
    data = buffer if isinstance(buffer, bytes) else bytes(view)
    pointer = ctypes.c_char_p(data)
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0, len(data), (data, pointer)


class Queue(_Closing):
    """One thread's way to one device. Made by :meth:`Stack.open`; only the thread that made it may use it.

    :meth:`read`, :meth:`write` and the like do one thing and wait for it. :meth:`submit` and :meth:`wait` have many under way.
    Offsets and lengths are in bytes, multiples of 512.
    """

    def __init__(self, stack: Stack, device: Optional[str], depth: int) -> None:
        self._handle: Optional[int] = None
        self._stack = stack
        self._thread = threading.get_ident()
        self._next = 0
        # By number: the caller's token, and what has to stay until the request has ended.
        self._out: Dict[int, Tuple[Any, object]] = {}
        self._done = (CompletionStruct * min(depth, 1024))() if depth > 0 else (CompletionStruct * 1)()
        name = device.encode() if device is not None else None
        handle = ctypes.c_void_p()
        with stack._lock:
            _check(_lib.udm_queue_open(stack._open(), name, depth, ctypes.byref(handle)))
            stack._queues += 1
        self._handle = handle.value

    def _open(self) -> int:
        if self._handle is None:
            raise ValueError("the queue is closed")
        if threading.get_ident() != self._thread:
            raise ValueError("a queue is used by the thread that opened it alone")
        return self._handle

    def close(self) -> None:
        """Waits for what is out, and closes the queue."""
        if self._handle is None:
            return
        while self._out:
            self._take(1, FOREVER)
        handle, self._handle = self._open(), None
        _lib.udm_queue_close(handle)
        with self._stack._lock:
            self._stack._queues -= 1

    def submit(
        self,
        op: int,
        offset: int = 0,
        buffers: Union[None, Buffer, List[Buffer]] = None,
        *,
        length: Optional[int] = None,
        flags: int = 0,
        token: Any = None,
    ) -> None:
        """Submits a request. ``buffers``: one or a list of them, to read into or to write from; they are libudm's until the
        completion has been taken. Without, ``length`` says how long the range is."""
        self._start(op, offset, buffers, length, flags, token)

    def _start(
        self,
        op: int,
        offset: int,
        buffers: Union[None, Buffer, List[Buffer]],
        length: Optional[int],
        flags: int,
        token: Any,
    ) -> int:
        handle = self._open()
        lent = [] if buffers is None else buffers if isinstance(buffers, list) else [buffers]
        memory = [_memory(buffer, op == READ) for buffer in lent]
        total = sum(size for _, size, _ in memory) if memory else length or 0
        if offset < 0 or total < 0:
            raise ValueError("offsets and lengths are not negative")
        iov = (Iovec * max(len(memory), 1))(*[Iovec(address, size) for address, size, _ in memory])
        number = self._next
        request = RequestStruct(
            op=op, flags=flags, offset=offset, length=total, iov=iov, iovcnt=len(memory), reserved=0, token=number
        )
        _check(_lib.udm_queue_submit(handle, ctypes.byref(request)))
        self._next += 1
        self._out[number] = (token, (memory, iov))
        return number

    def _take(self, least: int, timeout_ns: int, most: Optional[int] = None) -> List[Tuple[int, Completion]]:
        handle = self._open()
        room = min(len(self._done), most or len(self._done))
        count = _check(_lib.udm_queue_wait(handle, self._done, min(least, room), room, timeout_ns))
        taken = []
        for done in self._done[:count]:
            token, _ = self._out.pop(done.token)
            error = UdmError(-done.result, os.strerror(-done.result)) if done.result < 0 else None
            taken.append((done.token, Completion(token, error)))
        return taken

    def poll(self) -> List[Completion]:
        """What has ended. Does not wait."""
        return [completion for _, completion in self._take(0, 0)]

    def wait(self, least: int = 1, timeout: Optional[float] = None) -> List[Completion]:
        """Waits until so many have ended, nothing is out, or the time in seconds has passed."""
        nanoseconds = FOREVER if timeout is None else max(0, int(timeout * 1e9))
        return [completion for _, completion in self._take(least, nanoseconds)]

    def _do(self, op: int, offset: int, buffer: Optional[Buffer], length: Optional[int], flags: int) -> None:
        if self._out:
            raise ValueError("requests are out: take them by wait() first")
        self._start(op, offset, buffer, length, flags, None)
        while self._out:
            for _, completion in self._take(1, FOREVER):
                if completion.error is not None:
                    raise completion.error

    def read(self, offset: int, length: int, *, flags: int = 0) -> bytes:
        """Reads a range."""
        buffer = bytearray(length)
        self.readinto(offset, buffer, flags=flags)
        return bytes(buffer)

    def readinto(self, offset: int, buffer: Buffer, *, flags: int = 0) -> None:
        """Reads into memory of the caller's, as much as it has."""
        self._do(READ, offset, buffer, None, flags)

    def write(self, offset: int, data: Buffer, *, flags: int = 0) -> None:
        """Writes memory of the caller's."""
        self._do(WRITE, offset, data, None, flags)

    def flush(self) -> None:
        """Makes durable what completed before."""
        self._do(FLUSH, 0, None, 0, 0)

    def discard(self, offset: int, length: int) -> None:
        """Says that nobody needs what is there."""
        self._do(DISCARD, offset, None, length, 0)

    def write_zeroes(self, offset: int, length: int, *, flags: int = 0) -> None:
        """Writes zeroes."""
        self._do(WRITE_ZEROES, offset, None, length, flags)
