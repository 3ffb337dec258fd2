"""Reports of all slots of a population, made once per state of the slots."""

from __future__ import annotations

from esper.kasmina.costs.probe import HostProbe
from esper.kasmina.costs.seed_costs import SeedSizes
from esper.kasmina.lifecycle.lifecycle import Lifecycle
from esper.leyline.arrays import read_only
from esper.leyline.signals import SlotReports


class SlotReporter:
    """Makes the reports of a population; a step asks for them several times."""

    def __init__(
        self, slots: tuple[str, ...], blueprints: tuple[str, ...], sizes: SeedSizes
    ) -> None:
        self._slots, self._blueprints, self._sizes = slots, blueprints, sizes
        self._state: tuple[object, ...] = ()
        self._reports: SlotReports | None = None
        """The last reports, and the state of the slots that they are of."""

    def reports(self, life: Lifecycle, probe: HostProbe | None) -> SlotReports:
        """Return the state of every slot of every member; the same object until it changes."""
        state = probe, *life.content()
        if self._reports is None or state != self._state:
            self._state, self._reports = state, self._make(life, probe)
        return self._reports

    def _make(self, life: Lifecycle, probe: HostProbe | None) -> SlotReports:
        params_ES, macs_ES = self._sizes.per_slot(life.blueprint_ES, life.style_ES, probe)
        reports = SlotReports(
            slot_ids=self._slots,
            blueprints=self._blueprints,
            stage_ES=life.stage_ES.copy(),
            blueprint_ES=life.blueprint_ES.copy(),
            style_ES=life.style_ES.copy(),
            alpha_ES=life.alpha_ES.copy(),
            alpha_target_ES=life.target_ES.copy(),
            alpha_mode_ES=life.mode_ES.copy(),
            ramp_steps_left_ES=life.ramp_steps_left(),
            steps_in_stage_ES=life.steps_in_stage_ES.copy(),
            age_ES=life.age_ES.copy(),
            pruning_ES=life.pruning_ES.copy(),
            cooldown_left_ES=life.cooldown_left(),
            closed_ES=life.closed_ES.copy(),
            params_ES=params_ES,
            macs_ES=macs_ES,
            contribution_ES=life.signals.contribution_ES.copy(),
            contribution_se_ES=life.signals.contribution_se_ES.copy(),
        )
        return read_only(reports)
