"""Writing instructions whose operands are legal wherever their values lie.

A vector instruction reads one scalar register at most, and a literal only in its short form, in the first place
(CDNA3 ISA, "Scalar registers as operands"); a scalar instruction reads no vector register and one literal at most.
`vector` and `scalar` put what does not fit into a register of its own.
"""

from __future__ import annotations

from kingpost.targets.amd.machine import Code, Reg, Value, is_inline

INLINE_FLOATS = {
    0x3F000000: "0.5", 0x3F800000: "1.0", 0x40000000: "2.0", 0x40800000: "4.0",
    0xBF000000: "-0.5", 0xBF800000: "-1.0", 0xC0000000: "-2.0", 0xC0800000: "-4.0",
}  # fmt: skip
# The last operand is a mask of lanes, which must be scalar.
_LAST_IS_MASK = ("v_cndmask_b32", "v_addc_co_u32", "v_subb_co_u32")
# Those with a short form, whose first operand may be a literal if the second is a vector register.
_SHORT = {
    "v_mov_b32", "v_add_u32", "v_sub_u32", "v_subrev_u32", "v_and_b32", "v_or_b32", "v_xor_b32", "v_add_f32",
    "v_sub_f32", "v_mul_f32", "v_min_f32", "v_max_f32", "v_min_u32", "v_max_u32", "v_min_i32", "v_max_i32",
    "v_lshlrev_b32", "v_lshrrev_b32", "v_cvt_f32_u32", "v_cvt_u32_f32", "v_cndmask_b32",
}  # fmt: skip
_COMMUTE = {
    "v_add_u32", "v_and_b32", "v_or_b32", "v_xor_b32", "v_add_f32", "v_mul_f32", "v_min_f32", "v_max_f32",
    "v_min_u32", "v_max_u32", "v_min_i32", "v_max_i32",
}  # fmt: skip


class Lowering(Code):
    """Code that is written by `vector(...)` and `scalar(...)`, operands first made legal."""

    def vector(
        self, operation: str, writes: Value | tuple[Value, ...], *reads: Value, suffix: str = "",
        hidden: tuple[str, ...] = (), early: bool = False,
    ) -> None:  # fmt: skip
        """A vector instruction."""
        values = [_named(read) for read in reads]
        if operation in _COMMUTE and not _is_vector(values[1]):
            values = values[::-1]
        mask = values.pop() if operation in _LAST_IS_MASK else None
        scalar, legal = mask, []
        for place, value in enumerate(values):
            if isinstance(value, Reg) and value.bank == "s":
                fits = scalar in (None, value)
                scalar = value if fits else scalar
            elif is_inline(value):
                fits = not isinstance(value, Reg) or value.bank == "v"
            else:
                short = operation in _SHORT and place == 0 and all(_is_vector(other) for other in values[1:])
                fits = short and scalar is None and isinstance(value, int)
            legal.append(value if fits else self.in_vector(value))
        self.add(
            operation, writes, *legal, *([] if mask is None else [mask]), suffix=suffix, hidden=hidden, early=early
        )

    def scalar(self, operation: str, writes: Value | None, *reads: Value) -> None:
        """A scalar instruction, of operands that are scalar or numbers."""
        literals = [read for read in reads if not is_inline(read)]
        if len(set(literals)) > 1:
            reads = tuple(self.in_scalar(read) if read is literals[0] else read for read in reads)
        self.add(operation, writes, *reads)

    def in_vector(self, value: Value, words: int = 1) -> Reg:
        """The value in a vector register: itself if it lies in one."""
        if _is_vector(value):
            return value  # type: ignore[return-value]
        if isinstance(value, Reg):
            words = value.count
        copy = self.fresh("v", words)
        for index, word in enumerate(split(value, words)):
            self.move(copy[index], word)
        return copy

    def move(self, d: Reg, value: Value) -> None:
        """Copy 32 bits between registers of any banks; from vector to scalar, those of the first active lane."""
        if isinstance(value, Reg) and value.bank == "a":
            copy = d if d.bank == "v" else self.fresh("v")
            self.add("v_accvgpr_read_b32", copy, value)
            if d is copy:
                return
            value = copy
        if d.bank == "s":
            self.add("v_readfirstlane_b32" if _is_vector(value) else "s_mov_b32", d, value)
        elif d.bank == "a":
            self.add("v_accvgpr_write_b32", d, self.in_vector(value))
        else:
            self.add("v_mov_b32", d, _named(value))

    def in_scalar(self, value: Value, words: int = 1) -> Value:
        """The value in a scalar register, that of the first active lane if it lies in a vector one; numbers too."""
        if isinstance(value, Reg) and value.bank == "s":
            return value
        if isinstance(value, Reg):
            words = value.count
        copy = self.fresh("s", words)
        for index, word in enumerate(split(value, words)):
            self.move(copy[index], word)
        return copy

    def uniform(self, value: Value) -> Value:
        """An operand that a scalar instruction takes: a scalar register or a number."""
        return self.in_scalar(value) if isinstance(value, Reg) else value

    def temporary(self, words: int = 1) -> Reg:
        return self.fresh("v", words)


def split(value: Value, words: int) -> list[Value]:
    """A value's 32-bit words, lowest first."""
    if isinstance(value, Reg):
        return [value[index] for index in range(words)]
    if isinstance(value, int):
        return [(value >> (32 * index)) & 0xFFFFFFFF for index in range(words)]
    assert words == 1
    return [value]


def _is_vector(value: Value) -> bool:
    return isinstance(value, Reg) and value.bank == "v"


def _named(value: Value) -> Value:
    """A float32's bits under the name that makes them an inline constant, and other numbers as signed 32 bits."""
    if not isinstance(value, int):
        return value
    value = INLINE_FLOATS.get(value, value)
    return value - (1 << 32) if isinstance(value, int) and (1 << 32) - 16 <= value < 1 << 32 else value
