"""Mutants: a launch with one decision weakened, which the checker must notice.

What may be weakened, instructions say themselves (`operation(..., decides=...)`), also whether they want a mask around
them, which is then dropped. Tensor maps of another swizzle or box come on top. A mutant changes one site of the
program, which a loop may run often.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from kingpost.program import (
    EVERY_LANE,
    Instruction,
    Launch,
    Mask,
    Node,
    Program,
    Source,
    TensorMap,
    TensorMapType,
    Weakening,
)
from kingpost.program.control import instructions
from kingpost.program.memory import SWIZZLES

Site = tuple[int, ...]  # the place of a node: its index in the program's body, then in that of the node there, ...
Instead = Callable[[Node], Sequence[Node]]


class Refused(ValueError):
    """An instruction's own check refuses what a mutant makes of it."""


@dataclass(frozen=True, eq=False)
class Mutant:
    """One weakened decision. what: its class, as in "delete fence.proxy.async.shared::cta". source: the Python line
    that emitted it.

    apply(launch): the weakened launch, of any launch of the same program; the given one stays as it is. Raises Refused
    where the weaker instruction cannot be emitted, ValueError for a launch of another program. harmless(program): why
    an instruction set says that it makes no difference, or None.
    """

    what: str
    source: Source
    apply: Callable[[Launch], Launch] = field(repr=False)
    harmless: Callable[[Program], str | None] = field(default=lambda program: None, repr=False)

    def __str__(self) -> str:
        return f"{self.what}, {self.source}"


def mutants(launch: Launch) -> list[Mutant]:
    """All mutants of a launch: of its tensor maps, then in the order of the program's text."""
    return [*_of_maps(launch), *_of_body(launch.program.body, ())]


def sample(mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """`count` of the mutants, drawn from `seed`, in their order: as equally many of each `what` as there are."""
    drawn, strata = random.Random(seed), defaultdict(list)
    for place, mutant in enumerate(mutants):
        strata[mutant.what].append(place)
    for places in strata.values():
        drawn.shuffle(places)
    turns = [(turn, drawn.random(), place) for places in strata.values() for turn, place in enumerate(places)]
    return [mutants[place] for place in sorted(place for _, _, place in sorted(turns)[:count])]


# Sites of the program


def _of_body(body: Sequence[Node], outer: Site) -> Iterator[Mutant]:
    for index, node in enumerate(body):
        site = (*outer, index)
        if isinstance(node, Instruction):
            yield from (
                _weakened(node, site, each) for each in node.operation.decides if each.instead(node) is not None
            )
            continue
        if isinstance(node, Mask) and any(EVERY_LANE in each.operation.decides for each in instructions(node.body)):
            yield Mutant(f"every lane, not those of {_maker(node)}", node.source, _at(site, _unmasked))
        yield from _of_body(node.body, site)


def _weakened(instruction: Instruction, site: Site, weakening: Weakening) -> Mutant:
    name = instruction.operation.name

    def same(node: Node) -> Instruction:
        if not isinstance(node, Instruction) or node.operation.name != name:
            raise ValueError(f"launch is of another program: {name} is wanted where it has {node}")
        return node

    def instead(node: Node) -> Sequence[Node]:
        weaker = weakening.instead(same(node))
        assert weaker is not None
        for each in weaker:
            _check(each)
        return weaker

    return Mutant(
        f"{weakening.what} {name}",
        instruction.source,
        _at(site, instead),
        lambda program: weakening.harmless(program, same(_node(program.body, site))),
    )


def _check(instruction: Instruction) -> None:
    """What the instruction's definition asks of its fields, as when it is emitted."""
    if instruction.operation.check is not None:
        writes = instruction.writes
        into = writes if len(writes) > 1 else writes[0] if writes else None
        try:
            instruction.operation.check(*instruction.reads, into=into, **instruction.fields)
        except ValueError as error:
            raise Refused(str(error)) from error


def _maker(mask: Mask) -> str:
    """The operation that made a mask's condition."""
    return mask.condition.storage.writers[-1].operation.name


def _unmasked(node: Node) -> Sequence[Node]:
    if not isinstance(node, Mask):
        raise ValueError(f"launch is of another program: a mask is wanted where it has {node}")
    return node.body


def _at(site: Site, instead: Instead) -> Callable[[Launch], Launch]:
    """What puts something in the place of the node at a site."""

    def replaced(body: Sequence[Node], site: Site) -> list[Node]:
        index, deeper = site[0], site[1:]
        node = _node(body, site[:1])
        new = [_with_body(node, replaced(_body(node), deeper))] if deeper else instead(node)
        return [*body[:index], *new, *body[index + 1 :]]

    def apply(launch: Launch) -> Launch:
        body = tuple(replaced(launch.program.body, site))
        return replace(launch, program=replace(launch.program, body=body))

    return apply


def _node(body: Sequence[Node], site: Site) -> Node:
    """The node at a site."""
    index, deeper = site[0], site[1:]
    if index >= len(body):
        raise ValueError(f"launch is of another program: it has {len(body)} nodes where node {index} is wanted")
    return _node(_body(body[index]), deeper) if deeper else body[index]


def _body(node: Node) -> Sequence[Node]:
    if isinstance(node, Instruction):
        raise ValueError(f"launch is of another program: a body is wanted where it has {node}")
    return node.body


def _with_body(node: Node, body: list[Node]) -> Node:
    assert not isinstance(node, Instruction)
    return replace(node, body=body)


# Tensor maps: fixed by the program's parameters, bound by the launch's arguments


def _of_maps(launch: Launch) -> Iterator[Mutant]:
    for parameter in launch.program.parameters:
        if isinstance(parameter.type, TensorMapType):
            source = parameter.register.storage.writers[0].source
            for what, type in _other_types(parameter.type):
                yield Mutant(f"{what} in a tensor map", source, _mapped(parameter.name, type))


def _other_types(type: TensorMapType) -> Iterator[tuple[str, TensorMapType]]:
    """Other swizzles, and a row more or less in the box: those that there are."""
    others = [(f"swizzle {span}", type.box, span) for span in SWIZZLES if span != type.swizzle]
    if len(type.box) > 1:
        *planes, rows, width = type.box
        others += [(f"rows {step:+d}", (*planes, rows + step, width), type.swizzle) for step in (1, -1)]
    for what, box, span in others:
        try:
            yield what, TensorMapType(type.format, box, span)
        except ValueError:
            continue


def _mapped(name: str, type: TensorMapType) -> Callable[[Launch], Launch]:
    def apply(launch: Launch) -> Launch:
        parameters = tuple(replace(p, type=type) if p.name == name else p for p in launch.program.parameters)
        argument = launch.arguments[name]
        assert isinstance(argument, TensorMap)
        return replace(
            launch,
            program=replace(launch.program, parameters=parameters),
            arguments={**launch.arguments, name: replace(argument, type=type)},
        )

    return apply
