"""Runs one program of a compiled kernel on a CPU, all threads an instruction at a time, and looks for races.

The interpreter runs the source of a kernel; what the compiler made of it, layouts, shuffles and shared
memory, is seen here. PTX as Triton emits it for integers: what is not known is refused by name. Branches must
be taken by all threads of a program.

A race: a byte of memory that threads of two warps touch between two barriers, one of them writing.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
_WARP = 32
_COMPARE = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
_BITS = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
_SUMS = {"add": np.sum, "min": np.min, "max": np.max}


class Memory:
    """Device memory: arrays at addresses far from each other."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._arrays: list[tuple[int, npt.NDArray[np.uint8]]] = []

    def add(self, array: npt.NDArray[np.generic]) -> int:
        """The address of a contiguous ``array``, which the program reads and writes in place."""
        start = 1 << 20 << len(self._arrays)
        self._arrays.append((start, array.view(np.uint8).reshape(-1)))
        return start

    def find(self, at: int, size: int) -> npt.NDArray[np.uint8]:
        """The ``size`` bytes at ``at``; raises IndexError where nothing lies."""
        for start, held in self._arrays:
            if start <= at and at + size <= start + len(held):
                return held[at - start : at - start + size]
        raise IndexError(f"{size} bytes at {at:#x}: nothing lies there")


def _program(ptx: str) -> tuple[list[str], dict[str, int]]:
    """Instructions, and the place of every label."""
    body = ptx[ptx.index("{", ptx.index(".reqntid")) + 1 :]
    lines: list[str] = []
    labels: dict[str, int] = {}
    for text in body.splitlines():
        line = text.partition("//")[0].strip()
        if line == "}":
            break
        if label := re.fullmatch(r"(\$L\w+):", line):
            labels[label[1]] = len(lines)
        elif line and not line.startswith("."):
            lines += [one.strip() for one in line.split(";") if one.strip()]
    return lines, labels


class Machine:
    """The threads of one program."""

    def __init__(self, ptx: str, threads: int, parameters: list[int], memory: Memory) -> None:
        """``parameters`` are numbers and addresses, in the kernel's order."""
        self.lines, self.labels = _program(ptx)
        self.parameters, self.memory = parameters, memory
        self.tid = np.arange(threads, dtype=np.int64)
        self.registers: dict[str, Numbers] = {}
        self.shared = np.zeros(1 << 16, dtype=np.uint8)
        self.races: set[str] = set()
        self._touched: dict[tuple[bool, int], tuple[int, bool]] = {}

    def run(self) -> None:
        """To the end of the program; ``races`` says what was seen."""
        at = 0
        while True:
            line = self.lines[at]
            at += 1
            every = np.ones(len(self.tid), dtype=bool)
            if guard := re.match(r"@(!?)(%p\d+)\s+(.*)", line):
                held = self.value(guard[2]) != 0
                every, line = ~held if guard[1] else held, guard[3]
            name, _, rest = line.partition(" ")
            if name == "ret":
                return
            if name in ("bra", "bra.uni"):
                if every.any() and not every.all():
                    raise NotImplementedError(f"threads part ways: {line}")
                at = self.labels[rest.strip()] if every.any() else at
            elif name.startswith("bar."):
                self._touched.clear()
            elif not name.startswith("griddepcontrol"):
                self._step(name.split("."), _operands(rest), every)

    def value(self, operand: str) -> Numbers:
        """Of a register, a number or the start of shared memory, for every thread."""
        if operand == "%tid.x":
            return self.tid
        if operand.startswith("%"):
            zero = np.zeros(len(self.tid), dtype=np.int64)
            return zero if operand == "%ctaid.x" else self.registers.get(operand, zero - 0x5A5A5A)
        number = 0 if operand == "global_smem" else int(operand, 0)
        return np.full(len(self.tid), number if number < 1 << 63 else number - (1 << 64), dtype=np.int64)

    def _put(self, register: str, value: npt.NDArray[np.generic], every: npt.NDArray[np.bool_]) -> None:
        wide = value.astype(np.int64)
        if register.startswith("%rs"):
            wide = wide.astype(np.int16).astype(np.int64)
        elif not register.startswith(("%rd", "%p")):
            wide = wide.astype(np.int32).astype(np.int64)
        if register != "_":
            self.registers[register] = np.where(every, wide, self.value(register))

    def _touch(self, shared: bool, thread: int, at: int, size: int, write: bool) -> None:
        for byte in range(at, at + size):
            key, own = (shared, byte), (thread // _WARP, write)
            before = self._touched.setdefault(key, own)
            if before[0] != own[0] and (before[1] or write):
                self.races.add(
                    f"{'shared' if shared else 'device'} memory, byte {byte}, warps {before[0]}, {own[0]}"
                )
            if write and not before[1]:
                self._touched[key] = own

    def _bytes(self, shared: bool, thread: int, at: int, size: int, write: bool) -> npt.NDArray[np.uint8]:
        self._touch(shared, thread, at, size, write)
        return self.shared[at : at + size] if shared else self.memory.find(at, size)

    def _load(self, shared: bool, at: Numbers, size: int, every: npt.NDArray[np.bool_]) -> Numbers:
        found = np.zeros(len(self.tid), dtype=np.int64)
        for t in np.flatnonzero(every):
            held = self._bytes(shared, int(t), int(at[t]), size, False)
            found[t] = int.from_bytes(held.tobytes(), "little", signed=True)
        return found

    def _store(
        self, shared: bool, at: Numbers, value: Numbers, size: int, every: npt.NDArray[np.bool_]
    ) -> None:
        for t in np.flatnonzero(every):
            held = int(value[t]) & (1 << 8 * size) - 1
            self._bytes(shared, int(t), int(at[t]), size, True)[:] = list(held.to_bytes(size, "little"))

    def _address(self, operand: str) -> Numbers:
        base, _, offset = operand.strip("[] ").partition("+")
        return self.value(base.strip()) + int(offset or 0)

    def _step(self, op: list[str], o: list[str], every: npt.NDArray[np.bool_]) -> None:
        kind, last = op[0], op[-1]
        if kind in ("ld", "st") and op[1] == "param":
            number = self.parameters[int(o[1].strip("[]").rpartition("_")[2])]
            self._put(o[0], np.full(len(self.tid), number), every)
        elif kind in ("ld", "st"):
            shared, size = "shared" in op, int(last[1:]) // 8
            for i, register in enumerate(_parts(o[0] if kind == "ld" else o[1])):
                if kind == "ld":
                    found = self._load(shared, self._address(o[1]) + i * size, size, every)
                    self._put(register, found, every)
                else:
                    self._store(shared, self._address(o[0]) + i * size, self.value(register), size, every)
        elif kind == "ldmatrix":
            start, lane = self._address(o[1]), self.tid % _WARP
            for i, register in enumerate(_parts(o[0])):
                at = start[self.tid - lane + i * 8 + lane // 4] + lane % 4 * 4
                self._put(register, self._load(True, at, 4, every), every)
        elif kind == "mov" and "{" in o[0]:
            low, high = _parts(o[0])
            self._put(low, self.value(o[1]), every)
            self._put(high, self.value(o[1]) >> 16, every)
        elif kind == "mov" and "{" in o[1]:
            low, high = (self.value(part) & 0xFFFF for part in _parts(o[1]))
            self._put(o[0], low | high << 16, every)
        else:
            self._put(o[0], self._result(op, [self.value(x) for x in o[1:]]), every)

    def _result(self, op: list[str], v: list[Numbers]) -> npt.NDArray[np.generic]:
        kind, last = op[0], op[-1]
        bits = int(last[1:]) if last[1:].isdigit() else 64
        if last[0] in "ub" and bits < 64 and kind not in ("shfl", "redux", "selp"):
            v = [x & (1 << bits) - 1 for x in v]
        lane = self.tid % _WARP
        if kind == "shfl":
            source = lane ^ v[1] if op[2] == "bfly" else np.where(lane >= v[1], lane - v[1], lane)
            return v[0][self.tid - lane + source]
        if kind in ("redux", "vote"):
            rows = v[0].reshape(-1, _WARP)
            one = _SUMS[op[2]](rows, axis=1) if kind == "redux" else (rows << np.arange(_WARP)).sum(1)
            return np.repeat(one, _WARP)
        if kind == "setp":
            return _COMPARE[op[1]](v[0], v[1])
        if kind == "cvt":
            return v[0].astype(np.int16) if last == "s16" else v[0]
        if kind in _BITS:
            return _BITS[kind](v[0], v[1])
        if kind in ("mul", "mad"):
            product = v[0] * v[1] >> (32 if op[1] == "hi" else 0)
            return product + v[2] if kind == "mad" else product
        simple = {
            "mov": lambda: v[0],
            "add": lambda: v[0] + v[1],
            "sub": lambda: v[0] - v[1],
            "neg": lambda: -v[0],
            "not": lambda: v[0] == 0 if last == "pred" else ~v[0],
            "min": lambda: np.minimum(v[0], v[1]),
            "max": lambda: np.maximum(v[0], v[1]),
            "shl": lambda: v[0] << v[1],
            "shr": lambda: v[0] >> v[1],
            "bfe": lambda: v[0] >> v[1] & (1 << v[2]) - 1,
            "selp": lambda: np.where(v[2] != 0, v[0], v[1]),
            "popc": lambda: np.array([int(x).bit_count() for x in v[0]]),
        }
        if kind not in simple:
            raise NotImplementedError(".".join(op))
        return simple[kind]()


def _operands(text: str) -> list[str]:
    """Between commas that no bracket holds."""
    return [one.strip() for one in re.split(r",(?![^{\[]*[}\]])", text) if one.strip()]


def _parts(text: str) -> list[str]:
    """Registers of a vector, or the only one."""
    return [one.strip() for one in text.strip("{} ").split(",")]
