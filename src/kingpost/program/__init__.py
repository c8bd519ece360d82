"""The virtual machine: programs as data, no vendor in it."""

from kingpost.program.builder import Builder, Program, kernel
from kingpost.program.control import Loop, Mask, Node, Role, When
from kingpost.program.evaluate import NotConstant, evaluate
from kingpost.program.instruction import DELETE, EVERY_LANE, Instruction, Operation, Source, Weakening, operation
from kingpost.program.launch import Argument, Launch, Parameter, pack
from kingpost.program.memory import SharedArray, swizzle
from kingpost.program.rebinding import RebindingError
from kingpost.program.registers import Operand, Register, Registers
from kingpost.program.target import Fragment, Target
from kingpost.program.tensor_map import TensorMap, TensorMapType
from kingpost.program.types import Type, f32, pred, s32, u32, u64

__all__ = [
    "Argument",
    "Builder",
    "DELETE",
    "EVERY_LANE",
    "Fragment",
    "Instruction",
    "Launch",
    "Loop",
    "Mask",
    "Node",
    "NotConstant",
    "Operand",
    "Operation",
    "Parameter",
    "Program",
    "RebindingError",
    "Register",
    "Registers",
    "Role",
    "SharedArray",
    "Source",
    "Target",
    "TensorMap",
    "TensorMapType",
    "Type",
    "Weakening",
    "When",
    "evaluate",
    "f32",
    "kernel",
    "operation",
    "pack",
    "pred",
    "s32",
    "swizzle",
    "u32",
    "u64",
]
