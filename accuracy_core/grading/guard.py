"""The loop of a submission's process that the submission cannot reach: inputs in, outputs and the profile out.

The submission shares the process and may replace any name of any module. So `serve` uses no global and no builtin name,
only what was put into `tools` before the submission was loaded: functions written in C, whose meaning Python cannot
change. It runs in the main thread, the submission in another, so that neither its frames, nor signal handlers, nor
finalizers of its objects lead here; between the two only numbers and bytes go, through pipes. The nonce before every
frame to the grader proves that it comes from here.
"""

from __future__ import annotations

import ctypes
import os
import struct
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torch._C import _autograd, _profiler

#: kinds of frames to the grader: nonce, kind, length, payload
STARTED, LOGITS, EVENTS, DONE, FAILED = b"S", b"L", b"E", b"D", b"F"
HEADER = "<cQ"
#: from the worker: failed or not, dtype, address, size; after a failure a text of `size` bytes
REPLY = "<qqqq"
#: start ns, duration ns, thread, on the device or not, length of the name that follows
EVENT = "<qqqqQ"
#: a step of more events than this is not one kernel; what is beyond it need not be sent
MOST_EVENTS = 20_000
TAMPERED = 70


@dataclass(frozen=True)
class Channels:
    """Descriptors: `source` and `sink` to the grader, the others to the thread of the submission."""

    source: int
    sink: int
    to_worker: int
    from_worker: int


def tools(channels: Channels, nonce: bytes, tokens: Any, device: str) -> SimpleNamespace:
    """All that `serve` touches. `tokens`: a ctypes array over the memory of the step's token ids."""
    kinds = {_profiler.ProfilerActivity.CPU}
    if device == "cuda":
        kinds.add(_profiler.ProfilerActivity.CUDA)
    every_thread = _profiler._ExperimentalConfig(profile_all_threads=True)
    config = _profiler.ProfilerConfig(
        _profiler.ProfilerState.KINETO, False, False, False, False, False, every_thread, ""
    )
    event = _autograd._KinetoEvent
    kinds_of_device: Any = _autograd.DeviceType
    return SimpleNamespace(
        channels=channels, nonce=nonce, tokens=tokens, width=len(tokens),
        read=os.read, write=os.write, leave=os._exit, join=b"".join, len=len, int=int, bytes=bytes, view=memoryview,
        enumerate=enumerate, pack=struct.pack, unpack=struct.unpack, reply_size=struct.calcsize(REPLY),
        memmove=ctypes.memmove, memset=ctypes.memset, room=ctypes.create_string_buffer, place=ctypes.addressof,
        config=config, kinds=kinds, prepare=_autograd._prepare_profiler, enable=_autograd._enable_profiler,
        disable=_autograd._disable_profiler, events=_autograd._ProfilerResult.events, name=event.name,
        start=event.start_ns, duration=event.duration_ns, thread=event.start_thread_id, where=event.device_type,
        number=kinds_of_device.__int__, host=int(kinds_of_device.CPU),
        header=HEADER, reply=REPLY, event=EVENT, most=MOST_EVENTS, tampered=TAMPERED,
        started=STARTED, logits=LOGITS, profile=EVENTS, done=DONE, failed=FAILED,
    )  # fmt: skip


def serve(t: SimpleNamespace, size: int) -> None:
    """Answer the grader until it closes its end, then leave the process. `size`: most bytes of a step's logits.

    Every answer ends with a frame DONE or FAILED. A counted step is profiled in all threads from before its tokens are
    there until after its logits are copied. The memory of the logits is overwritten with NaN after that: what the next
    step does not write shows.
    """
    try:
        c, pending = t.channels, b""
        room = t.room(size)
        place, copied = t.place(room), t.view(room)
        while True:
            while b"\n" not in pending:
                got = t.read(c.source, 65536)
                if not got:
                    t.leave(0)
                pending += got
            line, pending = pending.split(b"\n", 1)
            words = line.split()
            step = words[0] == b"step"
            counted = step and words[1] == b"1"
            if counted:
                t.prepare(t.config, t.kinds)
                t.enable(t.config, t.kinds)
            if step:
                t.write(c.sink, t.nonce + t.pack(t.header, t.started, 0))
                while b"\n" not in pending:
                    got = t.read(c.source, 65536)
                    if not got:
                        t.leave(0)
                    pending += got
                told, pending = pending.split(b"\n", 1)
                for index, word in t.enumerate(told.split()):
                    t.tokens[index] = t.int(word)
                line = b"step"
            t.write(c.to_worker, line + b"\n")
            reply = b""
            while t.len(reply) < t.reply_size:
                reply += t.read(c.from_worker, t.reply_size - t.len(reply))
            failed, dtype, address, length = t.unpack(t.reply, reply)
            if failed:
                text = b""
                while t.len(text) < length:
                    text += t.read(c.from_worker, length - t.len(text))
                t.write(c.sink, t.nonce + t.pack(t.header, t.failed, length) + text)
                t.leave(1)
            if step:
                length = length if length <= size else size
                t.memmove(place, address, length)
                t.write(c.sink, t.nonce + t.pack(t.header, t.logits, length + 8) + t.pack("<q", dtype))
                t.write(c.sink, copied[:length])
                t.memset(address, 255, length)
            if counted:
                rows = []
                for event in t.events(t.disable())[: t.most]:
                    name = t.name(event).encode()[:200]
                    device = t.number(t.where(event)) != t.host
                    rows.append(
                        t.pack(t.event, t.start(event), t.duration(event), t.thread(event), device, t.len(name)) + name
                    )
                payload = t.join(rows)
                t.write(c.sink, t.nonce + t.pack(t.header, t.profile, t.len(payload)) + payload)
            t.write(c.sink, t.nonce + t.pack(t.header, t.done, 0))
    except:  # noqa: E722 - no name may be looked up, and a traceback would show this frame
        t.leave(t.tampered)
