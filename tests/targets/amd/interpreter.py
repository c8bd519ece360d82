"""AMDGCN text, run: an independent check of lowering, allocation and waits, from the assembler's own words.

Written from the CDNA3 ISA and not from the lowering. Registers in flight are refused until a wait that covers them;
wait states that the chip does not keep by itself are counted (LLVM's hazard recogniser, gfx940); a barrier with
stores in flight is refused; whatever was never written holds a pattern.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from kingpost.formats import E4M3, E4M3FNUZ
from kingpost.targets.amd.arithmetic import matrix_product
from kingpost.targets.amd.isa.layouts import (
    contiguous_operand,
    halved_operand,
    lane_bytes,
    result_matrix,
    result_registers,
)

from .instructions import ALL, F32, LANES, RELATIONS, S32, SCALAR, SIZES, U32, U64, VECTOR

Reg = tuple[str, int]
_TRANSCENDENTAL = ("v_rcp_f32", "v_rcp_iflag_f32")


class Refused(AssertionError):
    """The text does what the chip would not wait for."""


def bits_of(mask: int) -> np.ndarray:
    return np.array([mask >> lane & 1 for lane in range(LANES)], bool)


def mask_of(lanes: np.ndarray) -> int:
    return sum(1 << lane for lane in range(LANES) if lanes[lane])


class Memory:
    """Host arrays at their own addresses."""

    def __init__(self, arrays: list[np.ndarray]) -> None:
        self.ranges = [(a.ctypes.data, a.ctypes.data + a.nbytes) for a in arrays]

    def bytes(self, address: int, size: int) -> np.ndarray:
        if not any(start <= address and address + size <= end for start, end in self.ranges):
            raise Refused(f"touches {size} bytes at {address:#x}")
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


class Lds:
    def __init__(self, size: int) -> None:
        self.data = np.full(size, 0xA5, np.uint8)

    def bytes(self, address: int, size: int) -> np.ndarray:
        if address < 0 or address + size > len(self.data):
            raise Refused(f"touches {size} bytes at {address} of LDS")
        return self.data[address : address + size]


class Wave:
    def __init__(self, code: Code, index: int, block: int, arguments: np.ndarray, memory: Memory, lds: Lds) -> None:
        self.code, self.memory, self.lds = code, memory, lds
        self.files = {"v": np.full((256, LANES), 0xA5A5A5A5, U32), "a": np.full((256, LANES), 0xA5A5A5A5, U32)}
        self.files["v"][0] = np.arange(LANES) + LANES * index
        self.s = [0xA5A5A5A5] * 104
        self.s[0], self.s[1], self.s[2] = arguments.ctypes.data & 0xFFFFFFFF, arguments.ctypes.data >> 32, block
        self.special = {"vcc": 0, "exec": ALL}
        self.scc = False
        self.flying: dict[str, list[tuple[str, list[tuple[Reg, Any]]]]] = {"vm": [], "lgkm": []}
        self.clock = 0
        self.wrote: dict[tuple[str, Reg], int] = {}
        self.line = ""

    # Registers

    def registers(self, operand: str) -> list[Reg]:
        if operand in self.special:
            return [(operand, 0)]
        found = re.fullmatch(r"-?([vsa])(?:(\d+)|\[(\d+):(\d+)\])", operand)
        if not found:
            return []
        first = int(found[2] or found[3])
        return [(found[1], n) for n in range(first, int(found[4] or first) + 1)]

    def check(self, operands: list[str]) -> None:
        for reg in {reg for operand in operands for reg in self.registers(operand)}:
            for queue in self.flying.values():
                if any(reg == target for _, targets in queue for target, _ in targets):
                    raise Refused(f"{self.line}: {reg} is in flight")

    def word(self, operand: str, index: int = 0) -> Any:
        """32 bits of an operand: an array of lanes or an int."""
        regs = self.registers(operand)
        if regs and regs[0][0] in ("v", "a"):
            return self.files[regs[0][0]][regs[index][1]]
        if regs and regs[0][0] == "s":
            return self.s[regs[index][1]]
        if regs:
            return self.special[regs[0][0]] >> 32 * index & 0xFFFFFFFF
        if re.fullmatch(r"-?\d+\.\d+", operand):
            return int(np.float32(operand).view(U32))
        return int(operand, 0) >> 32 * index & 0xFFFFFFFF

    def lanes(self, operand: str) -> np.ndarray:
        return np.broadcast_to(np.asarray(self.word(operand), U32), (LANES,))

    def wide(self, operand: str) -> np.ndarray:
        low, high = (np.broadcast_to(np.asarray(self.word(operand, i), U32), (LANES,)) for i in (0, 1))
        return low.astype(U64) | high.astype(U64) << U64(32)

    def mask(self, operand: str) -> int:
        return self.word(operand) | self.word(operand, 1) << 32

    def put(self, operand: str, value: Any, index: int = 0) -> None:
        """32 bits into a vector register, where EXEC is set."""
        file, number = self.registers(operand)[index]
        assert file in ("v", "a"), self.line
        active = bits_of(self.special["exec"])
        self.files[file][number] = np.where(active, np.asarray(value).astype(U32, copy=False), self.files[file][number])

    def put_wide(self, operand: str, value: np.ndarray) -> None:
        self.put(operand, value & U64(0xFFFFFFFF))
        self.put(operand, value >> U64(32), 1)

    def put_scalar(self, operand: str, value: int) -> None:
        regs = self.registers(operand)
        if regs[0][0] in self.special:
            self.special[regs[0][0]] = value & ALL
            return
        for index, (file, number) in enumerate(regs):
            assert file == "s", self.line
            self.s[number] = value >> 32 * index & 0xFFFFFFFF

    # Wait states

    def distance(self, kind: str, reg: Reg) -> int:
        return self.clock - self.wrote.get((kind, reg), -1000) - 1

    def want(self, states: int, kind: str, reg: Reg) -> None:
        if self.distance(kind, reg) < states:
            raise Refused(f"{self.line}: {states} wait states after {reg} was written by {kind}")

    def hazards(self, name: str, writes: list[str], reads: list[str]) -> None:
        read = {reg for operand in reads for reg in self.registers(operand)}
        vector = name.startswith("v_")
        for reg in read:
            scalar = reg[0] in ("s", "vcc")
            if vector and scalar:
                self.want(4 if name.startswith("v_div_fmas") else 2, "valu", reg)
            if name.startswith("global_") and scalar:
                self.want(5, "valu", reg)
            if name.startswith("v_readfirstlane"):
                self.want(1, "valu", reg)
            if vector and name not in _TRANSCENDENTAL:
                self.want(1, "trans", reg)
            if vector:
                self.want(1, "op_sel", reg)
            if name.startswith("v_mfma"):
                self.want(2, "valu", reg)
        if vector:
            for operand in writes:
                for reg in self.registers(operand):
                    self.want(2, "store x4", reg)

    def note(self, name: str, suffix: str, writes: list[str], reads: list[str]) -> None:
        for reg in (reg for operand in writes for reg in self.registers(operand)):
            if name.startswith("v_") and not name.startswith("v_mfma"):
                self.wrote["valu", reg] = self.clock
                if name in _TRANSCENDENTAL:
                    self.wrote["trans", reg] = self.clock
                if "op_sel:" in suffix:
                    self.wrote["op_sel", reg] = self.clock
        if name == "global_store_dwordx4":
            for reg in self.registers(reads[1]):
                self.wrote["store x4", reg] = self.clock

    # In flight

    def issue(self, counter: str, kind: str, targets: list[tuple[Reg, Any]]) -> None:
        self.flying[counter].append((kind, targets))

    def wait(self, counter: str, left: int) -> None:
        queue = self.flying[counter]
        if counter == "lgkm" and left and any(kind == "scalar" for kind, _ in queue):
            return  # out of order: nothing is proved
        while len(queue) > left:
            for (file, number), value in queue.pop(0)[1]:
                if file == "s":
                    self.s[number] = value
                else:
                    self.files[file][number] = value

    def run(self) -> Iterator[None]:
        at = 0
        while True:
            name, operands, suffix, target = self.code.lines[at]
            self.line, at = f"{name} {', '.join(operands)}{suffix}", at + 1
            if name == "s_endpgm":
                return
            if name == "s_barrier":
                for queue in self.flying.values():
                    if any("store" in kind or kind == "lds" for kind, _ in queue):
                        raise Refused("s_barrier with accesses in flight")
                yield
            elif name == "s_setprio":
                pass
            elif name == "s_nop":
                self.clock += int(operands[0])
            elif name == "s_waitcnt":
                for counter, left in re.findall(r"(vm|lgkm)cnt\((\d+)\)", suffix):
                    self.wait(counter, int(left))
            elif name.startswith(("s_cbranch", "s_branch")):
                taken = {"scc0": not self.scc, "scc1": self.scc, "execz": not self.special["exec"], "s_branch": True}
                if taken[name.rpartition("cbranch_")[2]]:
                    at = self.code.labels[target]
            else:
                self.execute(name, operands, suffix)
            self.clock += 1

    def execute(self, name: str, operands: list[str], suffix: str) -> None:
        count = 0 if re.match(r"s_cmp|.*_store_|ds_write", name) else 1
        if re.match(r"v_(mad_u64|div_scale|sub_co|subb_co|add_co|addc_co)", name):
            count = 2
        writes, reads = operands[:count], operands[count:]
        hidden = ["vcc"] if name.startswith("v_div_fmas") else []
        self.check([*operands, *hidden])
        self.hazards(name, writes, [*reads, *hidden])
        self.note(name, suffix, writes, reads)
        with np.errstate(all="ignore"):
            if name.startswith(("global_", "ds_read", "ds_write")):
                self.access(name, writes, reads, suffix)
            elif name.startswith("s_"):
                self.scalar(name, writes, reads)
            else:
                self.vector(name, writes, reads, suffix)

    # Memory

    def access(self, name: str, writes: list[str], reads: list[str], suffix: str) -> None:
        size = SIZES[name.rpartition("_")[2]]
        found = re.search(r"offset:(-?\d+)", suffix)
        offset = int(found[1]) if found else 0
        if name.startswith("ds_"):
            space: Memory | Lds = self.lds
            assert 0 <= offset < 1 << 16
            at, counter, kind = [int(x) + offset for x in self.lanes(reads[0])], "lgkm", "lds"
        else:
            space, base, counter, kind = self.memory, reads[-1], "vm", "load"
            assert -4096 <= offset < 4096
            places = self.wide(reads[0]) if base == "off" else self.lanes(reads[0]).astype(U64) + self.wide(base)
            at = [int(x) + offset for x in places]
        active = [lane for lane in range(LANES) if self.special["exec"] >> lane & 1]
        words = max(1, size // 4)
        assert all(at[lane] % size == 0 for lane in active), f"{self.line}: misaligned"
        if writes:
            assert len(self.registers(writes[0])) == words, self.line
            values = [self.files[file][number].copy() for file, number in self.registers(writes[0])]
            for lane in active:
                data = np.zeros(4 * words, np.uint8)
                data[:size] = space.bytes(at[lane], size)
                for index, word in enumerate(data.view(U32)):
                    values[index][lane] = word
            self.issue(counter, kind, list(zip(self.registers(writes[0]), values)))
            return
        assert len(self.registers(reads[1])) == words, self.line
        data = np.stack([self.files[file][number] for file, number in self.registers(reads[1])], 1)
        for lane in active:
            space.bytes(at[lane], size)[:] = np.ascontiguousarray(data[lane]).view(np.uint8)[:size]
        self.issue(counter, "store", [])

    # The two units

    def scalar(self, name: str, writes: list[str], reads: list[str]) -> None:
        if name.startswith("s_load"):
            data = self.memory.bytes(self.mask(reads[0]) + int(reads[1], 0), 8 if name.endswith("x2") else 4)
            self.issue("lgkm", "scalar", [(r, int(x)) for r, x in zip(self.registers(writes[0]), data.view(U32))])
            return
        if name.startswith("s_cmp"):
            _, _, relation, type = name.split("_")
            if type == "i32":
                a, b = (int(S32(U32(self.word(x)))) for x in reads)
            else:
                a, b = (self.word(x) if type == "u32" else self.mask(x) for x in reads)
            self.scc = bool(RELATIONS[relation](a, b))
        elif name.startswith("s_cselect"):
            chosen = reads[0] if self.scc else reads[1]
            wide = name.endswith("b64")
            self.put_scalar(writes[0], self.mask(chosen) if wide else self.word(chosen))
        elif name == "s_and_saveexec_b64":
            old = self.special["exec"]
            self.special["exec"] = self.mask(reads[0]) & old
            self.scc = self.special["exec"] != 0
            self.put_scalar(writes[0], old)
        else:
            wide = name.endswith("64")
            values = [self.mask(x) if wide and not (name.startswith("s_lsh") and i) else self.word(x)
                      for i, x in enumerate(reads)]  # fmt: skip
            result, carry = SCALAR[name.rpartition("_")[0].removeprefix("s_")](self.scc, *values)
            limit = ALL if wide else 0xFFFFFFFF
            if name[2:5] in ("add", "sub"):
                self.scc = carry
            elif name[2:5] not in ("mov", "mul"):
                self.scc = (result & limit) != 0 if name[2:5] not in ("min", "max") else carry
            self.put_scalar(writes[0], result & limit)

    def vector(self, name: str, writes: list[str], reads: list[str], suffix: str) -> None:
        constant = {reg for x in reads for reg in self.registers(x) if reg[0] in ("s", "vcc")}
        bases = {x for x in reads for reg in self.registers(x) if reg[0] in ("s", "vcc")}
        assert len(bases) <= 1, f"{self.line}: reads {constant}"
        d, u, f = writes[0], self.lanes, lambda x: self.lanes(x).view(F32)
        active = bits_of(self.special["exec"])
        if name == "v_readfirstlane_b32":
            self.put_scalar(d, int(u(reads[0])[active.argmax()]))
        elif name.startswith("v_cmp_"):
            _, _, relation, type = name.split("_")
            read = {"u32": u, "i32": lambda x: u(x).view(S32), "f32": f, "u64": self.wide}[type]
            self.put_scalar(d, mask_of(RELATIONS[relation](*map(read, reads)) & active))
        elif name == "v_cndmask_b32":
            self.put(d, np.where(bits_of(self.mask(reads[2])), u(reads[1]), u(reads[0])))
        elif name in ("v_sub_co_u32", "v_subb_co_u32"):
            borrow = bits_of(self.mask(reads[2])).astype(np.int64) if len(reads) > 2 else 0
            value = u(reads[0]).astype(np.int64) - u(reads[1]).astype(np.int64) - borrow
            self.put(d, (value & 0xFFFFFFFF).astype(U32))
            self.put_scalar(writes[1], mask_of((value < 0) & active))
        elif name == "v_mad_u64_u32":
            self.put_wide(d, u(reads[0]).astype(U64) * u(reads[1]).astype(U64) + self.wide(reads[2]))
        elif name == "v_lshl_add_u64":
            self.put_wide(d, (self.wide(reads[0]) << U64(self.word(reads[1]))) + self.wide(reads[2]))
        elif name in ("v_lshlrev_b64", "v_lshrrev_b64"):
            by = (u(reads[0]) & 63).astype(U64)
            self.put_wide(d, self.wide(reads[1]) << by if "lshl" in name else self.wide(reads[1]) >> by)
        elif name == "v_div_scale_f32":
            # no scaling: v_div_fixup below divides exactly, so what lies between is only checked to be legal
            self.put(d, u(reads[0]))
            self.put_scalar(writes[1], 0)
        elif name == "v_div_fixup_f32":
            exact = f(reads[2]) / f(reads[1])
            near = np.isclose(f(reads[0]), exact, rtol=1e-6) | ~np.isfinite(exact) | ~np.isfinite(f(reads[0]))
            small = (np.abs(exact) < 1e-30) | (np.abs(f(reads[1])) < 1e-30) | (np.abs(f(reads[1])) > 1e30)
            assert (near | small | ~active | (np.abs(f(reads[2])) < 1e-30)).all(), "a quotient that is not one"
            self.put(d, exact.view(U32))
        elif name == "v_cvt_pk_fp8_f32":
            codes = [f(x).astype(self.code.float8).view(np.uint8).astype(U32) for x in reads]
            pair, high = codes[0] | codes[1] << 8, "op_sel:[0,0,1]" in suffix
            self.put(d, (u(d) & 0xFFFF) | pair << 16 if high else (u(d) & 0xFFFF0000) | pair)
        elif name == "v_cvt_f32_fp8_sdwa":
            byte = int(suffix.rpartition("BYTE_")[2])
            codes = (u(reads[0]) >> U32(8 * byte)).astype(np.uint8).view(self.code.float8)
            self.put(d, codes.astype(F32).view(U32))
        elif name in ("ds_swizzle_b32", "ds_bpermute_b32"):
            if name == "ds_swizzle_b32":
                pattern = int(re.search(r"offset:(\S+)", suffix)[1], 0)  # type: ignore[index]
                low = (np.arange(LANES) & pattern & 31 | pattern >> 5 & 31) ^ pattern >> 10 & 31
                source, value = low | np.arange(LANES) & 32, u(reads[0])
            else:
                source, value = (u(reads[0]) >> 2 & 63).astype(int), u(reads[1])
            self.issue("lgkm", "lds", [(self.registers(d)[0], np.where(active, value[source], u(d)))])
        elif name.startswith("v_mfma"):
            self.matrix(name, d, reads)
        else:
            self.put(d, VECTOR[name](*map(u, reads)))

    def matrix(self, name: str, d: str, reads: list[str]) -> None:
        side = int(re.search(r"f32_(\d+)x", name)[1])  # type: ignore[index]
        a, b = (np.stack([self.files[f][n] for f, n in self.registers(x)]) for x in reads[:2])
        operand = halved_operand if name.endswith("f8f6f4") else contiguous_operand
        a, b = (operand(lane_bytes(x), side).view(self.code.float8) for x in (a, b))
        c = np.zeros((side, side), F32)
        if reads[2] != "0":
            c = result_matrix(np.stack([self.files[f][n] for f, n in self.registers(reads[2])]).view(F32))
        result = result_registers(matrix_product(self.code.target, a, b, c))
        for (file, number), value in zip(self.registers(d), result):
            self.files[file][number] = np.asarray(value, F32).view(U32)


class Code:
    """A kernel's text, taken apart."""

    def __init__(self, text: str) -> None:
        self.target = re.search(r'amdhsa--(gfx\w+)"', text)[1]  # type: ignore[index]
        self.float8 = (E4M3FNUZ if self.target == "gfx942" else E4M3).dtype
        self.shared = int(re.search(r"group_segment_fixed_size (\d+)", text)[1])  # type: ignore[index]
        self.lines: list[tuple[str, list[str], str, str]] = []
        self.labels: dict[str, int] = {}
        for line in text[text.index(",@function") : text.index(".size ")].splitlines()[2:]:
            line = line.partition(";")[0].strip()
            if line.endswith(":"):
                self.labels[line[:-1]] = len(self.lines)
            elif line:
                self.lines.append(self._taken_apart(line))

    @staticmethod
    def _taken_apart(line: str) -> tuple[str, list[str], str, str]:
        name, _, rest = line.partition(" ")
        if name == "s_waitcnt":
            return name, [], rest, ""
        found = re.match(r"((?:[^\s,]+(?:, )?)*)(.*)", rest)
        assert found
        operands = found[1].split(", ") if found[1] else []
        if name.startswith(("s_cbranch", "s_branch")):
            return name, [], "", operands[0]
        return name, operands, found[2], ""


def run(text: str, arguments: dict[str, Any], places: dict[str, int], grid: int, warps: int, arrays: list[Any]) -> None:
    """A launch: arguments (numpy scalars) by name at their places, memory limited to the arrays."""
    code, block = Code(text), np.zeros(places[""] + 8, np.uint8)
    for name, value in arguments.items():
        data = np.frombuffer(np.asarray(value).tobytes(), np.uint8)
        block[places[name] : places[name] + len(data)] = data
    block[places[""] : places[""] + 4] = np.frombuffer(U32(grid).tobytes(), np.uint8)
    memory = Memory([*arrays, block])
    for index in range(grid):
        lds = Lds(code.shared)
        waves = [Wave(code, wave, index, block, memory, lds).run() for wave in range(warps)]
        while waves:
            waves = [wave for wave in waves if next(wave, waves) is None]
