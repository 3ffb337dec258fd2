"""`esper audit`: train many topologies of a task in many contexts, and keep every curve.

esper audit digits_impaired
esper audit digits_baseline --contexts 8 --topologies 16 --preset harder --grown 4
esper audit digits_impaired --live closed_loop patience regression

An interrupted audit resumes where the same command is given again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import tyro

from esper.jobs.settings import JobSettings
from esper.leyline.compute import ComputeSettings
from esper.leyline.limits import MAX_MEMBERS
from esper.scripts.cli.command import run_command
from esper.scripts.cli.help import add_topic
from esper.scripts.cli.output import say
from esper.simic.agent.config import NO_PREFIX
from esper_lab.progress.moving import moving

if TYPE_CHECKING:
    from esper.jobs.messages import StepDone
    from esper.jobs.worker import Reporter
    from esper.tasks.spec import TaskSpec
    from esper.tasks.task_data import TaskData
    from esper_lab.audit.folder import AuditFolder
    from esper_lab.audit.live import LivePiece, LiveResult, LiveRun, LiveSettings
    from esper_lab.audit.live_policies import LiveMaker
    from esper_lab.audit.presets import Preset
    from esper_lab.audit.records import Audit, AuditInfo
    from esper_lab.audit.rows import ContextRows
    from esper_lab.audit.run import AuditSettings, Piece
    from esper_lab.progress.audit import AuditProgress

add_topic("task", ("host-shape",))
add_topic("population", ("hosts",), usual=("topologies", "hosts"))
add_topic("live", ("live", "live-draws", "live-static", "live-picture-hosts"), usual=("live",))

MAX_NUMBER: Final = 9999
"""Most contexts and topologies; files of contexts have four digits."""


@dataclass(frozen=True)
class RunAudit(ComputeSettings):
    """Train planted topologies of a task in drawn contexts, at equal compute; keep every curve."""

    task: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TASK")]
    """A name that `esper tasks` lists, or your own as FILE.py[:NAME]."""
    contexts: int = 16
    """Contexts to draw. A finished audit may be continued with more."""
    topologies: int = 24
    """Topologies to train, the host included."""
    hosts: int = 4
    """Hosts per topology, each with its own initial weights and batches."""
    envs: int = 32
    """Members of a population; on a GPU results depend on it by rounding."""
    jobs: Annotated[JobSettings, NO_PREFIX] = field(default_factory=JobSettings)
    """Where contexts are trained; each is a job."""
    preset: str = "small"
    """Contexts: small (2 to 8 host runs, all that is hidden differs), harder (stronger
    corruptions), fixed (the task as it is at 1, 2, 4 and 8 host runs), a JSON file or JSON text of
    a ContextSpec."""
    grown: int = 0
    """Topologies that are also grown instead of planted, at equal compute."""
    live: tuple[str, ...] = ()
    """Policies to train in all contexts, beside those judged from records: closed_loop,
    closed_loop_generous, closed_loop_fill, closed_loop_prune, closed_loop_stop, one of the bench
    (one, table, regression, table_stop, regression_stop, patience, predict), or a trained
    controller: the folder of a run, of a checkpoint or of a saved agent, also as NAME=FOLDER."""
    live_draws: int = 4
    """Episodes of each live policy in each context, each with its own price and caps."""
    live_static: bool = False
    """Also train what each live policy ends with, planted from the start, in the same cases."""
    live_picture_hosts: int = 2
    """Hosts per context that each live policy is also trained on at the three prices of the
    picture; 0: it is not in the picture."""
    seed: int = 0
    """Seed of contexts, hosts and the choice of topologies."""
    blueprints: tuple[str, ...] = ()
    """Blueprints of the topologies; default: all of the task's."""
    episode_length: int | None = None
    """Steps per episode; default: the task's."""
    batch_size: int | None = None
    """Samples per batch and member; default: the task's."""
    batches_per_step: int | None = None
    """Training batches per step at a budget of 1; default: the task's."""
    host_shape: str | None = None
    """Shape of the task's CNN host as WIDTHxBLOCKSkKERNEL; default: the task's."""
    data: Literal["files", "synthetic"] = "files"
    """files: the task's data; synthetic: generated data of the same shape."""
    data_dir: Path | None = None
    """Folder of the data sets; default $ESPER_DATA_DIR, then ./data."""
    out: Path | None = None
    """Output folder; default out/audit_TASK_PRESET. Contexts already in it are kept."""
    quiet: bool = False
    """Show no progress."""

    def check(self) -> None:
        """Check the settings before anything is loaded."""
        from esper.leyline.errors import EsperError
        from esper.leyline.limits import require_counts
        from esper.leyline.seeds import require_training_seed

        require_counts(MAX_NUMBER, contexts=self.contexts, topologies=self.topologies)
        require_counts(MAX_MEMBERS, hosts=self.hosts, envs=self.envs)
        self.jobs.check()
        if self.grown < 0:
            raise EsperError(f"--grown {self.grown}: must be 0 or more")
        require_training_seed(self.seed, "--seed")
        require_counts(MAX_NUMBER, live_draws=self.live_draws)
        if self.live_picture_hosts < 0:
            raise EsperError(f"--live-picture-hosts {self.live_picture_hosts}: must be 0 or more")
        if self.live:
            self._check_live()
        elif self.live_static:
            raise EsperError("--live-static without --live: name the policies it is for")

    def _check_live(self) -> None:
        from esper.leyline.errors import EsperError
        from esper_lab.audit.live_controllers import parse_live

        parse_live(self.live)
        if min(self.contexts, self.hosts) < 2:
            raise EsperError(
                f"--live with --contexts {self.contexts} and --hosts {self.hosts}: policies are "
                f"fitted on other contexts and judged beside other hosts, so 2 of both or more"
            )

    def spec(self) -> TaskSpec:
        """The task with its changes."""
        from esper.simic.training.config import TaskConfig

        return TaskConfig(
            self.task,
            blueprints=self.blueprints,
            episode_length=self.episode_length,
            batch_size=self.batch_size,
            batches_per_step=self.batches_per_step,
            host=self.host_shape,
            data=self.data,
        ).spec()

    def settings(self) -> AuditSettings:
        """Size of the audit."""
        from esper_lab.audit.run import AuditSettings

        return AuditSettings(
            contexts=self.contexts,
            topologies=self.topologies,
            hosts=self.hosts,
            grown=self.grown,
            seed=self.seed,
            envs=self.envs,
            data=self.data,
            compute=self,
        )

    def live_settings(self) -> LiveSettings:
        """Episodes of live policies."""
        from esper_lab.audit.live import LiveSettings

        return LiveSettings(draws=self.live_draws, picture_hosts=self.live_picture_hosts)

    def folder(self, task: str, preset: str) -> Path:
        """The output folder."""
        return self.out if self.out is not None else Path("out") / f"audit_{task}_{preset}"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command."""
    argv = sys.argv[1:] if argv is None else argv
    return run_command(RunAudit, lambda config: audit(config, argv), argv)


def audit(config: RunAudit, argv: Sequence[str]) -> None:
    """Train and report. Imports are local, so that --help is fast.

    `argv`: the command line, to be repeated when the audit is interrupted.
    """
    config.check()
    from esper.karn.resuming import command_line, resumable
    from esper.scripts.cli.run_page import write_run_page
    from esper_lab.audit.presets import read_preset

    preset, task = read_preset(config.preset), config.spec()
    _announce(config, task, preset)
    with moving("reading data, choosing topologies", config.quiet):
        from esper_lab.audit.folder import AuditFolder

        spec, info, data = _prepare(config)
        policies = _live_policies(config, spec, info)
    path, command = config.folder(spec.name, preset.name), command_line("audit", argv)
    with AuditFolder(path, info, command) as folder:
        with resumable(command, lambda: _progress(folder)):
            _run_everything(config, spec, folder, data, policies)
        report(path)
    write_run_page(path)


def _run_everything(
    config: RunAudit,
    spec: TaskSpec,
    folder: AuditFolder,
    data: TaskData,
    policies: dict[str, LiveMaker],
) -> None:
    if policies:
        from esper_lab.audit.live import check_live

        check_live(folder.path, folder.info, policies, config.live_settings())
    _run(config, spec, folder, data)
    if policies:
        _run_live(config, spec, folder, data, policies)
    if config.live_static:
        _run_live(config, spec, folder, data, policies, static=True)


def _progress(folder: AuditFolder) -> str:
    return f"{folder.done} of {folder.info.contexts} contexts done, saved in {folder.path}"


def _prepare(config: RunAudit) -> tuple[TaskSpec, AuditInfo, TaskData]:
    """The task, what will be run, and the data."""
    from esper.tolaria.runtime import set_deterministic_cublas
    from esper_lab.audit.presets import read_preset
    from esper_lab.audit.run import describe_audit

    set_deterministic_cublas()
    task = config.spec()
    data = task.load(config.data_dir)
    spec, info = describe_audit(task, config.settings(), read_preset(config.preset), data)
    return spec, info, data


def _announce(config: RunAudit, spec: TaskSpec, preset: Preset) -> None:
    """Print what will be run, before the first second of silence."""
    if not config.quiet:
        print(
            f"audit of {spec.name}: {config.contexts} contexts ({preset.name}), "
            f"{config.topologies} topologies, {config.hosts} hosts, "
            f"{config.envs} members at a time{_processes(config)}",
            flush=True,
        )
    if preset.notes:
        print(f"contexts: {', '.join(preset.notes)}; the analysis sets prices and caps")


def _processes(config: RunAudit) -> str:
    if config.jobs.inline:
        return ""
    place = "" if config.jobs.on == "local" else f" on {config.jobs.on}"
    return f" in each of {config.jobs.processes} processes{place}"


def _run(config: RunAudit, spec: TaskSpec, folder: AuditFolder, data: TaskData) -> None:
    """Run what is missing in the folder."""
    from esper.karn.terminal import console_for_report
    from esper_lab.audit.run import plan_pieces
    from esper_lab.progress.audit import AuditProgress

    info = folder.info
    pieces = plan_pieces(spec, info, config.envs, folder)
    if not pieces:
        return
    missing = len({piece.context for piece in pieces})
    shown = AuditProgress(
        sum(piece.work for piece in pieces), missing, info.steps, console_for_report()
    )
    with nullcontext() if config.quiet else shown:
        _train(config, spec, folder, data, pieces, None if config.quiet else shown)


def _train(
    config: RunAudit,
    spec: TaskSpec,
    folder: AuditFolder,
    data: TaskData,
    pieces: Sequence[Piece],
    shown: AuditProgress | None,
) -> None:
    """Train the pieces, in one process or in several."""
    from esper.jobs.run import run_jobs
    from esper_lab.audit.job_list import JobList
    from esper_lab.audit.run import AuditRunner, grouped_pieces, run_pieces

    listener = None if shown is None else _Listener(shown, folder.info.contexts)
    done = None if listener is None else listener.on_context_end
    if config.jobs.inline:
        runner = AuditRunner(spec, folder.info, config.settings(), data)
        run_pieces(runner, folder, pieces, listener, done)
        return

    def keep(result: tuple[ContextRows, bool]) -> None:
        folder.write(*result)
        if done is not None:
            done(*result)

    groups = grouped_pieces(pieces)
    groups.sort(key=lambda group: -sum(piece.work for piece in group))  # the longest first
    jobs = JobList(groups, lambda group: _label(group[0], folder.info.contexts), keep)
    worker = partial(_RecordWorker, config)
    places = config.jobs.on_device(config.device)
    run_jobs(worker, jobs, places, _shower(shown), None if shown is None else shown.say)


def _shower(shown: AuditProgress | None) -> Callable[[StepDone], None] | None:
    """Function that shows the steps of processes."""
    if shown is None:
        return None
    return lambda step: shown.advance(step.label, step.work, step.accuracy_E)


def _live_policies(config: RunAudit, spec: TaskSpec, info: AuditInfo) -> dict[str, LiveMaker]:
    """Live policies by name; raises if a controller does not fit."""
    if not config.live:
        return {}
    from esper_lab.audit.live_controllers import live_makers, parse_live

    return live_makers(parse_live(config.live), spec, info, config.device)


def _run_live(
    config: RunAudit,
    spec: TaskSpec,
    folder: AuditFolder,
    data: TaskData,
    policies: dict[str, LiveMaker],
    static: bool = False,
) -> None:
    """Train the live policies, as far as they are missing; `static`: what they ended with."""
    from esper.jobs.run import run_jobs
    from esper.karn.terminal import console_for_report
    from esper_lab.audit.job_list import JobList
    from esper_lab.audit.live import LiveRunner
    from esper_lab.audit.records import read_audit
    from esper_lab.progress.audit import AuditProgress

    audit = read_audit(folder.path)
    live = _live_run(config, folder.path, audit, policies, static)
    pieces = live.missing()
    if not pieces:
        return
    work = sum(piece.work for piece in pieces)
    shown = AuditProgress(work, len(pieces), audit.info.steps, console_for_report())
    with nullcontext() if config.quiet else shown:
        try:
            if config.jobs.inline:
                runner = LiveRunner(spec, folder.info, config.settings(), data)
                listener = None if config.quiet else _LiveListener(shown, audit.info.contexts)
                live.run(runner, listener)
            else:
                worker = partial(_LiveWorker, config, static)
                jobs = JobList(
                    pieces, partial(_live_label, contexts=audit.info.contexts), live.keep
                )
                loud = None if config.quiet else shown
                say = None if config.quiet else shown.say
                run_jobs(worker, jobs, config.jobs.on_device(config.device), _shower(loud), say)
        except KeyboardInterrupt:
            shown.say(
                f"{len(pieces) - len(live.missing())} of {len(pieces)} live runs done, saved in "
                f"{folder.path}"
            )
            raise


def _live_run(
    config: RunAudit, path: Path, audit: Audit, policies: dict[str, LiveMaker], static: bool
) -> LiveRun:
    """Episodes of the policies, or of what they ended with; these are not in the picture."""
    from esper_lab.audit.bench import Bench
    from esper_lab.audit.live import LiveRun
    from esper_lab.audit.live_static import static_makers

    settings = config.live_settings()
    if not static:
        return LiveRun(path, audit, policies, settings)
    makers = static_makers(path, Bench(audit, settings.terms), policies)
    return LiveRun(path, audit, makers, replace(settings, picture_hosts=0))


def _label(piece: Piece, contexts: int) -> str:
    how = "grown" if piece.grown else "planted"
    return f"context {piece.context + 1}/{contexts}, {len(piece.chunk.topologies)} {how}"


def _live_label(piece: LivePiece, contexts: int) -> str:
    return f"{piece.policy}, context {piece.context + 1}/{contexts}"


class _EngineListener:
    """Shows the steps of an engine."""

    def __init__(self, shown: AuditProgress, contexts: int) -> None:
        self._shown, self._contexts = shown, contexts
        self.on_round_start = shown.on_round_start
        self.on_slot_events = shown.on_slot_events
        self.on_step = shown.on_step
        self.on_round_end = shown.on_round_end


class _LiveListener(_EngineListener):
    """Shows the episodes of live policies."""

    def on_live(self, piece: LivePiece) -> None:
        """Say which policy begins, because it may have to be fitted first."""
        if piece.first:
            self._shown.say(f"live: fitting {piece.policy}")
        self._shown.begin(_live_label(piece, self._contexts), piece.work)


class _Listener(_EngineListener):
    """Shows the pieces of an audit."""

    def on_piece(self, piece: Piece) -> None:
        """Show which one begins."""
        self._shown.begin(_label(piece, self._contexts), piece.work)

    def on_context_end(self, rows: ContextRows, grown: bool) -> None:
        """Print a line on a finished context."""
        final_K = rows.accuracy_HKT[..., -1].mean(axis=0)
        drawn, how = rows.drawn, " grown" if grown else ""
        self._shown.say(
            f"context {drawn.context + 1}{how}: budget {drawn.budget:.1f}, {drawn.groups} classes, "
            f"{drawn.samples} samples; accuracy {final_K.min():.3f} to {final_K.max():.3f}"
        )


# ---- in processes of their own -----------------------------------------------------------------


class _RecordWorker:
    """Trains topologies in one of several processes."""

    def __init__(self, config: RunAudit) -> None:
        from esper_lab.audit.run import AuditRunner

        spec, info, data = _prepare(config)
        self._runner = AuditRunner(spec, info, config.settings(), data)

    def do(self, job: Sequence[Piece], reporter: Reporter) -> tuple[ContextRows, bool]:
        """Train the pieces of a context."""
        from esper_lab.audit.run import run_group

        contexts = self._runner.info.contexts

        def begin(piece: Piece) -> None:
            reporter.begin(_label(piece, contexts), piece.work)

        return run_group(self._runner, job, reporter, begin), job[0].grown


class _LiveWorker:
    """Trains live policies in one of several processes."""

    def __init__(self, config: RunAudit, static: bool) -> None:
        from esper_lab.audit.live import LiveRunner
        from esper_lab.audit.presets import read_preset
        from esper_lab.audit.records import read_audit

        spec, info, data = _prepare(config)
        path = config.folder(spec.name, read_preset(config.preset).name)
        policies = _live_policies(config, spec, info)
        self._live = _live_run(config, path, read_audit(path), policies, static)
        self._runner = LiveRunner(spec, info, config.settings(), data)

    def do(self, job: LivePiece, reporter: Reporter) -> LiveResult:
        """Train a policy in a context."""
        reporter.begin(_live_label(job, self._runner.info.contexts), job.work)
        return self._live.run_piece(self._runner, job, reporter)


# ---- at the end --------------------------------------------------------------------------------


def report(path: Path) -> None:
    """Print the folder and what was found."""
    from rich.console import Console
    from rich.table import Table

    from esper.karn.terminal import console_for_report
    from esper.leyline.statistics import student_estimate
    from esper_lab.audit.records import read_audit, read_grown
    from esper_lab.audit.summary import planted_minus_grown, spread, summary_rows

    found = read_audit(path)
    console: Console = console_for_report()
    table = Table("", "topology", "parameters", "accuracy", "test")
    for row in summary_rows(found):
        numbers = (f"{row.params:.0f}", f"{row.accuracy:.4f}", f"{row.test:.4f}")
        table.add_row(row.label, row.topology, *numbers)
    console.print(table)
    sd = spread(found)
    print(f"s.d. of the final accuracy: {sd.topologies:.4f} topologies, {sd.hosts:.4f} hosts")
    if found.info.grown:
        gain_C = planted_minus_grown(found, read_grown(path))
        gain = student_estimate(gain_C)
        ends = f"{gain.low:+.4f} to {gain.high:+.4f}, over {len(gain_C)} contexts"
        print(f"planted minus grown: {gain.value:+.4f} ({ends})")
    _report_regrets(path, found)
    print(f"records: {path}")


def _report_regrets(path: Path, found: Audit) -> None:
    """Print what deciding is worth, if there is enough data."""
    from esper.leyline.errors import EsperError
    from esper_lab.audit.report import write_report

    try:
        with moving("computing what choosing is worth"):
            made = write_report(path, found)
    except EsperError as error:
        say(f"no regrets: {error}")
        return
    say(made.text)
    print(f"report: {', '.join(str(file) for file in made.files)}")
