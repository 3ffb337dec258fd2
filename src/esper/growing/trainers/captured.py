"""Trains many runs at a time on a GPU: each batch of a run is a CUDA graph, replayed on its lane.

The first batch of a run is computed eagerly, which warms up kernels, shows how much memory it takes
and counts like any other; then the batch is captured, and replayed to its end. Runs share nothing
but data, so each is the same whatever trains beside it. Networks that cannot be captured (`kinds`)
train eagerly in between.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import torch

from esper.device.graphs import Recording
from esper.device.rng import forked_rng
from esper.device.streams import any_stream
from esper.growing.runs import How
from esper.growing.trainers.data import Samples, StreamReader
from esper.growing.trainers.determinism import deterministic_kernels, tolerate_others
from esper.growing.trainers.eager import CHECKPOINT_SECONDS, TICK_SECONDS
from esper.growing.trainers.feeds import Feed
from esper.growing.trainers.job import OUT_OF_MEMORY, Job, Outcome, Tick, failed_outcome
from esper.growing.trainers.kinds import Kinds, first_line
from esper.growing.trainers.lanes import CudaMachine, Machine, Mark, Queue
from esper.growing.trainers.program import Program
from esper.growing.trainers.task import Task
from esper.leyline.user_errors import is_out_of_memory

LANES: Final = 8
"""As many runs at a time, where memory allows: more of them would only end later, all of them."""
URGENT_LANES: Final = 2
"""Further ones, for runs that come before the others."""
STREAM_RUNS: Final = 24
"""Runs at a time that read one stream of data together, where memory allows."""
HEADROOM: Final = 1.3
"""Free memory that a further run must find, relative to the largest so far."""
TRIM_BYTES: Final = 2**29
"""Memory of ended runs that is kept before it is given back."""
SHARE_OF_FREE: Final = 0.1
"""Of the free memory, that a second copy of the images may take."""
IDLE_SECONDS: Final = 0.0003
QUEUED_SECONDS: Final = 0.04
"""Work that a lane may have before it: a stop takes effect after that."""
STARTING_SECONDS: Final = 0.1
"""The same while a run starts or is judged, which takes about as long."""
STREAM_BURST: Final = 4
"""Batches that runs on a stream of data may be apart; the stream keeps more."""


class CapturedRun:
    """A run on one of the streams that work side by side."""

    def __init__(self, program: Program, lane: int, machine: Machine) -> None:
        self.program, self.lane, self._machine = program, lane, machine
        self.began = self.saved = time.monotonic()
        self.paused = self.stopped = False
        """Nothing more is queued: until it is saved or judged; for good."""
        self.bytes = 0
        self._earlier = program.seconds
        self._feed: Feed | None = None
        self._recording: Recording | None = None
        self._notes: deque[tuple[int, torch.Tensor, Mark]] = deque()
        self._tail: Mark | None = None

    def start(self, alone: bool) -> None:
        """Train on one batch eagerly, and capture the next; call it beside the lanes.

        `alone`: without other runs, whose end would leave more memory for the capture.
        """
        program = self.program
        if program.done:
            return
        self._feed = program.make_feed() if program.kind.captured else None
        prepared = self._machine.mark()
        with self._machine.on(self.lane), self._kernels():
            self._machine.follow(prepared)
            if self._feed is None:
                self._count(self._run_eager())
            else:
                self._feed.ready(program.trained)
                program.step_static(self._feed)
                self._count(1)
                if not program.done:
                    self._capture(self._feed, alone)
            self._tail = self._machine.mark()

    def _capture(self, feed: Feed, alone: bool) -> None:
        """Capture the next batch; where that fails, go on without."""
        program = self.program
        try:
            self._recording = program.record(feed, self._machine.capture)
        except Exception as error:
            if is_out_of_memory(error) and not alone:
                raise
            self._feed = None
            program.kind = replace(
                program.kind, captured=False, note=f"a capture failed: {first_line(error)}"
            )

    def _kernels(self) -> contextlib.AbstractContextManager[None]:
        return tolerate_others(not self.program.kind.bitwise)

    def advance(self, batches: int) -> int:
        """Queue some batches on the current lane; how many it were."""
        count = min(batches, self.program.until_due)
        if self._recording is None:
            count = self._run_eager()
        else:
            assert self._feed is not None
            count = min(count, self._feed.ready(self.program.trained))
            for _ in range(count):
                self._recording.replay()
        self._count(count)
        self._tail = self._machine.mark()
        return count

    def _run_eager(self) -> int:
        with self._kernels():
            self.program.step_eager()
        self.program.trained -= 1  # counted with the captured ones
        return 1

    def _count(self, batches: int) -> None:
        program = self.program
        program.trained += batches
        program.add_to_average()
        if program.due:
            total = program.total
            held = torch.empty_like(total, device="cpu", pin_memory=total.is_cuda)
            held.copy_(total, non_blocking=True)
            self._notes.append((program.trained, held, self._machine.mark()))
            program.restart_total()

    def look(self) -> None:
        """Note the losses that have arrived."""
        while self._notes and self._notes[0][2].query():
            number, total, _ = self._notes.popleft()
            self.program.note_loss(number, float(total))

    @property
    def wants_work(self) -> bool:
        """Whether more may be queued."""
        return not self.paused and not self.stopped and not self.program.done

    @property
    def to_judge(self) -> bool:
        """Whether it waits to be judged on the way."""
        return self.paused and not self.program.done and self.program.wants_judging

    @property
    def idle(self) -> bool:
        """Whether all that was queued is done, and noted."""
        self.look()
        return not self._notes and (self._tail is None or self._tail.query())

    def wait(self) -> None:
        """Wait for all that was queued."""
        if self._tail is not None:
            self._tail.synchronize()  # SYNC: at a stop
        self.look()

    def save(self) -> None:
        """Write its checkpoint; all that was queued is done."""
        self.program.seconds = self._earlier + time.monotonic() - self.began
        self.program.save()
        self.saved, self.paused = time.monotonic(), False

    def outcome(self) -> Outcome:
        """Judge it; all that was queued is done."""
        return self.program.outcome(self._how())

    def judge_on_the_way(self) -> list[Outcome]:
        """Judge it, and go on; all that was queued is done."""
        self.paused = False
        return self.program.judge_on_the_way(self._how())

    def _how(self) -> How:
        self.program.seconds = self._earlier + time.monotonic() - self.began
        return self.program.how("captured" if self.program.kind.captured else "eager")

    def release(self) -> None:
        """Free its graph, and the graph's memory."""
        if isinstance(self._recording, torch.cuda.CUDAGraph):
            self._recording.reset()
        self._recording = self._feed = None
        self.program.optimizer.zero_grad()


def _stored(task: Task, free: int) -> Task:
    """A task whose images are channels-last in memory, where most networks gather them faster."""
    train = task.train
    if isinstance(train, StreamReader) or train.bytes > SHARE_OF_FREE * free:
        return task
    values = [
        v.contiguous(memory_format=torch.channels_last) if v.is_cuda and v.dim() == 4 else v
        for v in train.values
    ]
    return replace(task, train=Samples(values, train.targets))


class CapturedTrainer:
    """Many runs at a time on one GPU."""

    cores = at_once = 1  # how much they slow each other shows as they train
    prioritises = True

    def __init__(
        self,
        task: Task,
        lanes: int = LANES,
        most: int | None = None,
        machine: Machine | None = None,
    ) -> None:
        """`most`: runs at a time; `machine`: the GPU of the task."""
        every = lanes + URGENT_LANES
        self._machine = machine or CudaMachine(task.device, every, URGENT_LANES)
        self.task = _stored(task, self._machine.free())
        self._shares_stream = isinstance(task.train, StreamReader)
        self._most = most or (STREAM_RUNS if self._shares_stream else lanes)
        self._kinds = Kinds(self.task, self._machine.capture)
        self._lanes = lanes
        self._queues = [Queue() for _ in range(every)]
        self._runs: list[CapturedRun] = []
        self._turns: list[int] = [0] * every
        self._held: deque[Job] = deque()
        """Jobs that were taken and found no room."""
        self._failed: list[Outcome] = []
        """Of runs that find none by themselves."""
        self._room, self._more = self._most, True
        self._largest = 0
        self._released = 0

    def train(self, jobs: Iterator[Job], tick: Tick) -> Iterator[Outcome]:
        """Train jobs, as many at a time as memory allows, and yield them as they end."""
        ticked, stopped = time.monotonic(), False
        self._room, self._more = self._most, True
        try:
            while (self._more or self._runs or self._held) and not stopped:
                with self._settings():
                    self._admit(jobs)
                    self._feed_until(ticked + TICK_SECONDS)
                    ended = self._ended()
                yield from ended
                if time.monotonic() - ticked >= TICK_SECONDS:
                    stopped = tick([run.program.running for run in self._runs])
                    ticked = time.monotonic()
            for run in self._runs:
                run.stopped = True  # what is queued later would be computed in freed memory
            while self._runs:
                with self._settings():
                    cut = self._cut(self._runs[0])
                yield from cut
        finally:
            self._abandon()

    @contextlib.contextmanager
    def _settings(self) -> Iterator[None]:
        """Deterministic kernels and generators of its own, put back between outcomes."""
        device = self.task.device
        with forked_rng(0, device), deterministic_kernels(device), any_stream():
            yield

    # ---- admission ------------------------------------------------------------------------

    def _admit(self, jobs: Iterator[Job]) -> None:
        """Start runs while there are jobs, and room for them."""
        if self._shares_stream and self._held and self._runs:
            return  # it was taken too late to read the stream with those under way
        while len(self._runs) < self._room and self._has_memory():
            job = self._take(jobs)
            if job is None:
                return
            if not self._start(job):
                return
            self._feed_ahead()

    def _take(self, jobs: Iterator[Job]) -> Job | None:
        if self._held:
            return self._held.popleft()
        job = next(jobs, None) if self._more else None
        self._more = job is not None
        return job

    def _has_memory(self) -> bool:
        needed = int(HEADROOM * self._largest)
        if not self._runs or self._machine.free() > needed:
            return True
        if self._released:
            self._trim()
        return self._machine.free() > needed

    def _trim(self) -> None:
        self._machine.trim()
        self._released = 0

    def _start(self, job: Job) -> bool:
        """Start a run; False: there is no room for it, or not now."""
        try:
            run = self._started(job)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            error.__traceback__ = None  # its frames hold what was allocated
            self._no_room(job)
            return False
        if run is None:
            self._held.appendleft(job)
            return False
        self._largest = max(self._largest, run.bytes, 1)
        self._runs.append(run)
        return True

    def _started(self, job: Job) -> CapturedRun | None:
        """A run that has begun; None: it has to wait for those on the stream that all share."""
        with self._machine.on(None):
            program = self._program(job)
            before = self._machine.free()
            run = CapturedRun(program, self._next_lane(job.urgent), self._machine)
            if self._is_apart(run):
                return None
            run.start(alone=not self._runs)
        run.bytes = max(0, before - self._machine.free())
        return run

    def _program(self, job: Job) -> Program:
        trials = self._kinds.trials
        program = self._kinds.program(job)
        if self._kinds.trials > trials:
            self._trim()  # what the trial used is not part of a run
        return program

    def _is_apart(self, run: CapturedRun) -> bool:
        """Whether a run is at another place of the stream that all runs share."""
        if not self._shares_stream or not self._runs:
            return False
        places = [other.program.trained for other in self._runs]
        return not max(places) - STREAM_BURST <= run.program.trained <= min(places)

    def _no_room(self, job: Job) -> None:
        """Continue with as many runs as there are; without any, the job cannot be trained."""
        if self._runs:
            self._room = len(self._runs)
            self._held.appendleft(job)
        else:
            self._room = self._most
            self._failed.append(failed_outcome(job, self.task.device, OUT_OF_MEMORY))
        gc.collect()
        self._trim()

    def _next_lane(self, urgent: bool) -> int:
        """The lane with the fewest runs; those of urgent runs are the last."""
        counts = [0] * len(self._queues)
        for run in self._runs:
            counts[run.lane] += 1
        some = range(self._lanes, len(counts)) if urgent else range(self._lanes)
        return min(some, key=lambda lane: counts[lane])

    # ---- work -----------------------------------------------------------------------------

    def _feed_until(self, end: float) -> None:
        """Queue work on all lanes until a run ends, or the time is over."""
        lanes = self._by_lane()
        while self._runs:
            fed = [self._feed_lane(lane, runs) for lane, runs in enumerate(lanes) if runs]
            self._look()
            over = any((run.program.done or run.to_judge) and run.idle for run in self._runs)
            if over or self._failed or time.monotonic() >= end:
                return
            if not any(fed):
                time.sleep(IDLE_SECONDS)

    def _feed_ahead(self) -> None:
        """Queue work for the time that the start or the end of a run takes.

        Not where runs share a stream: those that start together read it together.
        """
        lanes, end = self._by_lane(), time.monotonic() + STARTING_SECONDS / 4
        fed = not self._shares_stream
        while fed and time.monotonic() < end:
            work = [self._feed_lane(n, runs, STARTING_SECONDS) for n, runs in enumerate(lanes)]
            fed = any(work)

    def _by_lane(self) -> list[list[CapturedRun]]:
        lanes: list[list[CapturedRun]] = [[] for _ in self._queues]
        for run in self._runs:
            lanes[run.lane].append(run)
        return lanes

    def _feed_lane(
        self, lane: int, runs: list[CapturedRun], seconds: float = QUEUED_SECONDS
    ) -> bool:
        """Queue some batches of a run, unless a lane has enough work for so many seconds."""
        queue = self._queues[lane]
        ready = [run for run in runs if run.wants_work]
        if not ready or not queue.has_room(seconds):
            return False
        if self._shares_stream:
            ready = self._hindmost(ready)
            if not ready:
                return False
        run = ready[self._turns[lane] % len(ready)]
        self._turns[lane] += 1
        burst = STREAM_BURST if self._shares_stream else queue.burst
        with self._machine.on(lane):
            batches = self._advance(run, burst)
            if batches:
                queue.add(self._machine.mark(), batches)
        return batches > 0

    def _advance(self, run: CapturedRun, burst: int) -> int:
        """Queue some batches of a run; 0: there is no memory for them, and it has been let go."""
        try:
            return run.advance(burst)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            error.__traceback__ = None  # its frames hold what was allocated
        self._let_go(run)
        return 0

    def _let_go(self, run: CapturedRun) -> None:
        """A run for which memory is short starts again from its checkpoint, when others ended."""
        run.stopped = True
        self._machine.mark().synchronize()  # SYNC: what was queued before it failed
        run.wait()
        self._drop(run)
        self._no_room(run.program.job)
        self._released += max(1, run.bytes)  # some of it is held until all lanes were fed

    def _hindmost(self, ready: list[CapturedRun]) -> list[CapturedRun]:
        """Runs that may read on without leaving others behind in the stream."""
        last = min(run.program.trained for run in self._runs if not run.program.done)
        return [run for run in ready if run.program.trained < last + STREAM_BURST]

    def _look(self) -> None:
        """Note losses, and save runs whose time has come."""
        now = time.monotonic()
        for run in self._runs:
            run.look()
            if run.program.done:
                continue
            if now - run.saved > CHECKPOINT_SECONDS:
                run.paused = True
                if run.idle:
                    with self._machine.on(None):
                        run.save()
            elif run.program.wants_judging:
                run.paused = True

    # ---- ends -----------------------------------------------------------------------------

    def _ended(self) -> list[Outcome]:
        failed, self._failed = self._failed, []
        ended = [run for run in self._runs if run.program.done and run.idle]
        waiting = [run for run in self._runs if run.to_judge and run.idle]
        judged = [one for run in waiting for one in self._judged(run)]
        return failed + judged + [one for run in ended for one in self._finish(run)]

    def _judged(self, run: CapturedRun) -> list[Outcome]:
        self._feed_ahead()
        return self._unless_short(run, run.judge_on_the_way)

    def _finish(self, run: CapturedRun) -> list[Outcome]:
        self._feed_ahead()
        found = self._unless_short(run, lambda: [run.outcome()])
        if found:
            self._drop(run)
        return found

    def _unless_short(self, run: CapturedRun, judge: Callable[[], list[Outcome]]) -> list[Outcome]:
        """Judging needs memory too: what is kept unused is given back if it is short, and the run
        goes on from a checkpoint later if it is short even so.
        """
        with self._machine.on(None):
            for _ in range(2):
                try:
                    return judge()
                except (RuntimeError, MemoryError) as error:
                    if not is_out_of_memory(error):
                        raise
                self._trim()
            run.save()
        self._let_go(run)
        return []

    def _cut(self, run: CapturedRun) -> list[Outcome]:
        """A run is stopped: saved and judged as it is."""
        run.wait()
        if not run.program.done:
            with self._machine.on(None):
                run.save()
        return self._finish(run)

    def _drop(self, run: CapturedRun) -> None:
        self._runs.remove(run)
        run.release()
        self._released += run.bytes
        if self._room < self._most and not self._held:
            self._room += 1
        if self._released > TRIM_BYTES:
            self._trim()

    def _abandon(self) -> None:
        """Let go of what is under way: an error, or the caller stopped."""
        for run in list(self._runs):
            run.wait()
            run.release()
        self._runs.clear()
        self._held.clear()
        self._failed.clear()

    def close(self) -> None:
        """Free its memory."""
        self._abandon()
        self._trim()
