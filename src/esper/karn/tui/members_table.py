"""Members in their newest step: score, last operation, and what each slot holds."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from esper.karn.stages import stage_name
from esper.karn.tui.formats import known
from esper.karn.tui.panel import Panel, not_yet, plain_table
from esper.karn.tui.reader import RunShot
from esper.karn.tui.stage_marks import stage_mark, stage_style
from esper.karn.views import MemberState, SlotState
from esper.leyline.stages import SeedStage
from esper.plotting.numbers import UNKNOWN, fixed

_NAMED_SLOT: int = 24
"""Columns of a slot that leave room for stage and blueprint."""
_FIGURES: int = 22
"""Columns of member, score, accuracy and size."""
_OPERATION: int = 8
"""Columns of the last operation, at least; it is left out where names would be cut."""
_MARK: int = 2
"""Columns of the mark of a stage."""


class MembersTable(Panel):
    """One row per member, one column per slot."""

    TITLE = "Members"

    def content(self, shot: RunShot, width: int, height: int) -> RenderableType:
        """When, then the table."""
        members = shot.members
        if not members:
            return not_yet(shot, "members are recorded at the end of the first round")
        first = members[0]
        when = "end of the episode" if first.step is None else f"step {first.step + 1}"
        slots = [one.slot for one in first.slots]
        ops = max(_OPERATION - 1, *(len(_operation(one)) for one in members)) + 1
        names = [len(one.blueprint) for member in members for one in member.slots]
        held = sum(max(len(slot), _MARK + max(names, default=0)) + 1 for slot in slots)
        acts = any(one.op for one in members) and width >= _FIGURES + ops + held
        heads = ["", "score", "acc.", "added"] + (["last op"] if acts else [])
        ops = ops if acts else 0
        room = (width - _FIGURES - ops) // max(1, len(slots)) - 1
        table = plain_table(*heads, *slots, right=(0, 1, 2, 3))
        for column, slot in zip(table.columns[len(heads) :], slots, strict=True):
            column.min_width = min(len(slot), 6)
        for member in members:
            cells: list[RenderableType] = [
                str(member.member),
                fixed(member.score),
                fixed(member.val_accuracy),
                _added(member),
            ]
            cells += [_operation(member)] if acts else []
            table.add_row(*cells, *(_slot(one, room) for one in member.slots))
        return Group(Text(f"round {first.round + 1}, {when}", style="dim"), table)


def _added(member: MemberState) -> str:
    share = member.params_over_host
    return f"{100 * share:+.0f} %" if known(share) else UNKNOWN


def _operation(member: MemberState) -> Text:
    """The last operation; why it was refused, if it was."""
    if not member.op:
        return Text(UNKNOWN)
    words = f"{member.op.lower().replace('_', ' ')} {member.op_slot}".strip()
    refused = f" ({member.veto.lower().replace('_', ' ')})" if member.veto else ""
    found = Text(words + refused)
    found.truncate(16, overflow="ellipsis")
    return found


def _slot(slot: SlotState, room: int) -> Text:
    """Stage as a letter and, with room, in words; then the blueprint."""
    stage = SeedStage[slot.stage]
    mark = stage_mark(stage)
    if stage is SeedStage.DORMANT:
        return mark
    if room < 5:
        return mark
    if room < _NAMED_SLOT:
        found = Text.assemble(mark, f" {slot.blueprint or stage_name(stage)}")
    else:
        word = Text(f" {stage_name(stage)} ", style=stage_style(stage))
        found = Text.assemble(mark, word, f" {slot.blueprint}")
    found.truncate(max(room, 2), overflow="ellipsis")
    return found
