"""What synchronisation events do, one at a time: the same as the units of the emulator make them do."""

from __future__ import annotations

from typing import NamedTuple

from kingpost.emulate.skeleton import (
    Arrive,
    AwaitStarts,
    Complete,
    Event,
    Init,
    Invalidate,
    MeetArrive,
    MeetWait,
    PhaseWait,
    Skeleton,
    Start,
)


class Phase(NamedTuple):
    """An mbarrier: what its phase under way lacks, and how many phases have completed."""

    wanted: int
    pending: int
    bytes: int = 0
    number: int = 0

    def passes(self, parity: int) -> bool:
        return self.number & 1 != parity


class State(NamedTuple):
    """places: each agent's next event. phases, meetings (who has come), starts: by number of barrier or action."""

    places: tuple[int, ...]
    phases: tuple[Phase | None, ...]
    meetings: tuple[frozenset[int], ...]
    starts: tuple[int, ...]


class Wrong(Exception):
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind, self.message = kind, message


class Step(NamedTuple):
    """An event, and the number of the barrier or action that it is about."""

    event: Event
    of: int


class Synchronisation:
    """What events do: the same as the units of the emulator make them do."""

    def __init__(self, skeleton: Skeleton) -> None:
        self.agents = skeleton.agents
        self.phases: dict[object, int] = {}
        self.meetings: dict[object, int] = {}
        self.actions: dict[object, int] = {}
        self.steps = [[self._step(event) for event in agent.events] for agent in skeleton.agents]
        comings = [(event, of) for steps in self.steps for event, of in steps if isinstance(event, MeetArrive)]
        numbers = range(len(self.meetings))
        self.smallest = [min((e.warps for e, of in comings if of == number), default=1) for number in numbers]
        self.alike = self._alike({event.participants for event, _ in comings if event.participants is not None})
        self.start = State(
            (0,) * len(self.agents),
            (None,) * len(self.phases),
            (frozenset(),) * len(self.meetings),
            (0,) * len(self.actions),
        )

    def _step(self, event: Event) -> Step:
        if isinstance(event, (Start, AwaitStarts)):
            numbers, key = self.actions, event.action
        elif isinstance(event, (MeetArrive, MeetWait)):
            numbers, key = self.meetings, event.barrier
        else:
            assert isinstance(event, (Init, Invalidate, PhaseWait, Arrive, Complete)), event
            numbers, key = self.phases, event.barrier
        return Step(event, numbers.setdefault(key, len(numbers)))

    def _alike(self, groups: set[frozenset[int]]) -> list[list[int]]:
        """Agents that do the same and meet in the same groups, so that they can change places."""
        same: dict[tuple, list[int]] = {}
        for number, agent in enumerate(self.agents):
            membership = tuple(sorted(tuple(sorted(group)) for group in groups if number in group))
            same.setdefault((agent.events, membership), []).append(number)
        return [agents for agents in same.values() if len(agents) > 1]

    def sorted(self, state: State) -> tuple[State, list[int]]:
        """The state with agents that are alike in order of their progress; and who is in each one's place."""
        who = list(range(len(self.agents)))
        for agents in self.alike:
            in_order = sorted(agents, key=lambda a: (state.places[a], [a in come for come in state.meetings]))
            for agent, other in zip(agents, in_order):
                who[agent] = other
        if who == list(range(len(who))):
            return state, who
        places = tuple(state.places[other] for other in who)
        meetings = tuple(frozenset(a for a, other in enumerate(who) if other in come) for come in state.meetings)
        return state._replace(places=places, meetings=meetings), who

    def next(self, state: State, agent: int) -> Step | None:
        steps, place = self.steps[agent], state.places[agent]
        return steps[place] if place < len(steps) else None

    def enabled(self, state: State) -> list[int]:
        return [agent for agent in range(len(self.agents)) if self.may(state, agent)]

    def may(self, state: State, agent: int) -> bool:
        """Whether an agent has a next event that may happen (even if it would be wrong)."""
        step = self.next(state, agent)
        if step is None:
            return False
        event, of = step
        if isinstance(event, PhaseWait):
            phase = state.phases[of]
            return phase is None or phase.passes(event.parity)
        if isinstance(event, AwaitStarts):
            return state.starts[of] >= event.starts
        return not (isinstance(event, MeetWait) and agent in state.meetings[of])

    def after(self, state: State, agent: int) -> State:
        """The state after an agent's next event; raises `Wrong` if that must not happen now."""
        step = self.next(state, agent)
        assert step is not None
        event, of = step
        places = _put(state.places, agent, state.places[agent] + 1)
        state = state._replace(places=places)
        if isinstance(event, Start):
            return state._replace(starts=_put(state.starts, of, state.starts[of] + 1))
        if isinstance(event, MeetArrive):
            return state._replace(meetings=_put(state.meetings, of, self._meet(state, agent, event, of)))
        if isinstance(event, (AwaitStarts, MeetWait)):
            return state
        return state._replace(phases=_put(state.phases, of, self._phase(state, event, of)))

    def _meet(self, state: State, agent: int, event: MeetArrive, of: int) -> frozenset[int]:
        come = state.meetings[of]
        if agent in come:
            raise Wrong("meeting", f"it has come to {event.barrier} before, and nobody was let go since")
        come |= {agent}
        for other in come:
            wanted = self._came(state, other, of).warps
            if wanted != event.warps:
                raise Wrong("meeting", f"{event.barrier} is for {event.warps}; {self.agents[other].name} has {wanted}")
        if len(come) < event.warps:
            return come
        for other in come:
            wanted_agents = self._came(state, other, of).participants
            if wanted_agents is not None and wanted_agents != come:
                names = ", ".join(self.agents[i].name for i in sorted(come))
                raise Wrong("meeting", f"{event.barrier} lets go {names}, which is not one group")
        return frozenset()

    def _came(self, state: State, agent: int, of: int) -> MeetArrive:
        """An agent's last coming to a named barrier."""
        for event, number in reversed(self.steps[agent][: state.places[agent]]):
            if isinstance(event, MeetArrive) and number == of:
                return event
        raise AssertionError("it never came")

    def _phase(self, state: State, event: Event, of: int) -> Phase | None:
        phase = state.phases[of]
        if isinstance(event, Init):
            if phase is not None:
                raise Wrong("lifetime", f"{event.barrier} is in use")
            return Phase(event.count, event.count)
        assert isinstance(event, (Invalidate, PhaseWait, Arrive, Complete))
        if phase is None:
            raise Wrong("lifetime", f"{event.barrier} is not initialised")
        if isinstance(event, Invalidate):
            return None
        if isinstance(event, PhaseWait):
            return phase
        if isinstance(event, Complete):
            phase = phase._replace(bytes=phase.bytes - event.bytes)
        else:
            if event.count > phase.pending:
                raise Wrong("arrivals", f"{event.count} more at {event.barrier}, whose phase lacks {phase.pending}")
            phase = phase._replace(pending=phase.pending - event.count, bytes=phase.bytes + event.expect)
        if phase.pending or phase.bytes:
            return phase
        self._refuse_lap(state, phase, of)
        return Phase(phase.wanted, phase.wanted, 0, phase.number + 1)

    def _refuse_lap(self, state: State, phase: Phase, of: int) -> None:
        """A phase completes: nobody may still be about to pass a wait for the one before."""
        for agent in range(len(self.agents)):
            step = self.next(state, agent)
            if step and step.of == of and isinstance(step.event, PhaseWait) and phase.passes(step.event.parity):
                raise Wrong(
                    "lap",
                    f"{self.agents[agent].name} has yet to look at {step.event.barrier} for a phase that has completed "
                    f"(parity {step.event.parity}), and now the next completes, so that the parity is wrong again",
                )

    def refuse_end(self, state: State) -> None:
        """Nothing may happen any more: everyone must be done, and no bytes missing."""
        if stuck := self.unfinished(state):
            raise Wrong("deadlock", f"{len(stuck)} agents wait, and nobody can go on")
        for name, of in self.phases.items():
            phase = state.phases[of]
            if phase and phase.bytes:
                raise Wrong("bytes", f"in the end {name} lacks {phase.bytes} bytes")

    def unfinished(self, state: State) -> list[int]:
        """The agents that have a next event and are not idle."""
        nexts = ((agent, self.next(state, number)) for number, agent in enumerate(self.agents))
        return [
            number
            for number, (agent, step) in enumerate(nexts)
            if step and not (agent.engine and isinstance(step.event, AwaitStarts))
        ]

    def line(self, state: State, agent: int) -> str:
        step = self.next(state, agent)
        assert step is not None
        where = f" ({step.event.source})" if step.event.source else ""
        return f"{self.agents[agent].name}: {step.event}{where}"


def _put(values: tuple, index: int, value: object) -> tuple:
    return (*values[:index], value, *values[index + 1 :])
