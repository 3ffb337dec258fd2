"""The help of a command: settings by topic, the usual ones first.

--help shows what is set most often and names the rest; --help TOPIC shows one topic in full and
--help-all everything. Commands with few settings show all of them at once.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from esper.leyline.errors import EsperError

HELP_ALL: Final = "--help-all"
HELP_FLAGS: Final = ("-h", "--help", HELP_ALL)
"""Flags that print help."""
RUN: Final = "run"
"""Topic of settings that no other one names."""
TOPICS: Final[dict[str, tuple[str, ...]]] = {
    RUN: (),
    "budget": ("params", "macs", "minutes", "host-runs", "flops"),
    "data": ("train", "val", "test", "loss", "metric"),
    "task": (
        "task", "contexts", "rent", "blueprints", "episode-length", "batch-size",
        "batches-per-step", "host", "data", "data-dir",
    ),
    "search": ("slots", "widths", "lr", "optimizer", "weight-decay", "amp"),
    "population": (
        "envs", "rollout-steps", "counterfactual-stride", "frozen-heads", "processes",
    ),
    "device": (
        "device", "profile", "executor", "precision", "kernels", "graphs", "data-placement",
    ),
    "learner": (
        "learning-rate", "epochs", "minibatches", "gamma", "gae-lambda", "clip", "value-clip",
        "value-coef", "entropy", "head-entropy", "exploration", "max-grad-norm", "target-kl",
        "curve-dropout", "normalize-advantages", "normalize-observations", "normalize-rewards",
        "updates-per-rollout", "use-amp", "width", "attention-heads", "embedding", "core",
        "op-prior",
    ),
    "reward": (),
    "records": (
        "out", "runs", "run-name", "folder", "name", "checkpoint-every", "keep", "keep-members",
        "telemetry", "telemetry-dir", "quiet", "track",
    ),
}  # fmt: skip
"""Topic -> its settings, in the order shown. A setting with a prefix (`reward.mode`) belongs to the
topic of that name."""
USUAL: Final = {
    "task", "contexts", "rent", "blueprints", "rounds", "seed", "seeds", "preset", "config",
    "resume", "dry-run", "envs", "device", "profile", "learning-rate", "reward.mode",
    "out", "quiet", "track", "train", "test", "demo", "params",
    "minutes",
}  # fmt: skip
"""Settings that the short help describes."""
FITS: Final = 24
"""Settings that fit on a screen: a command with no more shows all of them."""
WORTH_A_TOPIC: Final = 3
"""Settings that make a heading worth its line."""
FORM_WIDTH: Final = 26
WIDEST: Final = 100
Raw = Callable[[], object]
"""Prints tyro's help and exits."""


def add_topic(topic: str, settings: tuple[str, ...], usual: Iterable[str] = ()) -> None:
    """Add settings of a command of another package to a topic, which may be new."""
    known = TOPICS.get(topic, ())
    TOPICS[topic] = (*known, *(name for name in settings if name not in known))
    USUAL.update(usual)


@dataclass(frozen=True, slots=True)
class _Setting:
    """A flag or a positional argument."""

    form: str
    """How it is written, as `--rounds INT`."""
    says: str
    default: str

    @property
    def name(self) -> str:
        """Name without dashes; empty if it is positional."""
        found = re.match(r"--([\w.-]+)", self.form)
        return found[1] if found else ""

    @property
    def is_off(self) -> bool:
        """Whether it is a switch that is off unless it is given."""
        return self.default == "False" and "--no-" in self.form.replace(".no-", "--no-")

    @property
    def topic(self) -> str:
        """The topic it belongs to."""
        prefix = self.name.rpartition(".")[0]
        if prefix in TOPICS:
            return prefix
        return next((topic for topic, names in TOPICS.items() if self.name in names), RUN)


@dataclass(frozen=True, slots=True)
class Help:
    """What a command says about itself."""

    usage: str
    intro: tuple[str, ...]
    """Paragraphs."""
    settings: tuple[_Setting, ...]

    def flags(self) -> list[str]:
        """Names of all flags."""
        options = [name for setting in self.settings for name in setting.form.split(", ")]
        return [name.split()[0][2:] for name in options if name.startswith("--")]

    def topics(self) -> list[str]:
        """Topics of the flags, in order."""
        return list(self.by_topic())

    def by_topic(self) -> dict[str, list[_Setting]]:
        """Settings of each topic, in its order; topics of one or two settings are left to `run`."""
        flags = [setting for setting in self.settings if setting.name]
        counts = Counter(setting.topic for setting in flags)
        found: dict[str, list[_Setting]] = {topic: [] for topic in TOPICS}
        for setting in flags:
            found[setting.topic if counts[setting.topic] >= WORTH_A_TOPIC else RUN].append(setting)
        for topic, names in TOPICS.items():
            order = {name: number for number, name in enumerate(names)}
            found[topic].sort(key=lambda setting: order.get(setting.name, -1))
        return {topic: settings for topic, settings in found.items() if settings}


def wanted_help(argv: Sequence[str]) -> str | None:
    """What help a command line asks for: "", "all" or a topic; None: none.

    >>> wanted_help(["--envs", "3", "--help", "learner"])
    'learner'
    """
    for number, argument in enumerate(argv):
        if argument == HELP_ALL:
            return "all"
        if argument in HELP_FLAGS:
            following = argv[number + 1 : number + 2]
            return following[0] if following and not following[0].startswith("-") else ""
    return None


def read_help(raw: Raw) -> Help:
    """Read tyro's help, which is a box per group."""
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # tyro draws boxes in this encoding
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit), _plain():
        raw()
    said.seek(0)
    text = said.read()
    head, _, boxes = text.partition("╭")
    usage, *intro = [" ".join(part.split()) for part in head.strip().split("\n\n")]
    return Help(usage, tuple(intro), tuple(_settings(boxes)))


@contextlib.contextmanager
def _plain() -> Iterator[None]:
    """A width at which tyro draws its boxes below each other."""
    before = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR")}
    os.environ.update(COLUMNS="100", NO_COLOR="1")
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _settings(boxes: str) -> list[_Setting]:
    """Entries of tyro's boxes: a form, and on the same line or indented below it a sentence."""
    entries: list[list[str]] = []
    positional = boxes.startswith("─ positional")
    for line in boxes.splitlines():
        if line.startswith(("╭", "╰")):
            positional = False
        inside = re.fullmatch(r"│ (.*) │", line)
        line_text = inside[1].rstrip() if inside else ""
        if line_text.startswith("-") or (positional and line_text[:1].strip()):
            form, _, says = line_text.partition("  ")
            entries.append([form, says.strip()])
        elif entries and line_text.startswith("  "):
            entries[-1][1] += f" {line_text.strip()}"
        elif entries and line_text and not line_text.startswith("─") and not entries[-1][1]:
            entries[-1][0] += line_text  # a form that is longer than a line
    return [_setting(form, says.strip()) for form, says in entries if not form.startswith("-h")]


def _setting(form: str, says: str) -> _Setting:
    default = re.search(r"\(default: (.*)\)$", says)
    sentence = says[: default.start()].strip() if default else says.removesuffix(" (required)")
    return _Setting(form, sentence, default[1] if default else "")


# ---- as text ------------------------------------------------------------------------------------


def render(shown: Help, wanted: str) -> str:
    """The help as text: the usual settings (""), those of a topic, or "all"."""
    if wanted not in ("", "all", *shown.topics()):
        raise EsperError(_no_topic(wanted, shown.topics()))
    width = min(WIDEST, shutil.get_terminal_size().columns)
    flags = [setting for setting in shown.settings if setting.name]
    short = not wanted and len(flags) > FITS
    lines = [_usage(shown), ""]
    topics = [wanted] if wanted in TOPICS else shown.topics()
    if wanted not in TOPICS:
        for paragraph in shown.intro:
            lines += [*textwrap.wrap(paragraph, width), ""]
        for setting in shown.settings:
            if not setting.name:
                lines += [*_lines(setting, width, short), ""]
    for topic in topics:
        lines += [f"{topic}:", *_topic_lines(shown, topic, width, short), ""]
    if short:
        more = f"More: --help-all, or --help with one of {', '.join(shown.topics())}."
        lines += textwrap.wrap(more, width, break_on_hyphens=False)
    return "\n".join(lines).rstrip()


def _usage(shown: Help) -> str:
    """The program, its settings in one word, and what must follow it."""
    program, found, _ = shown.usage.partition(" [-h]")
    if not found:
        return shown.usage
    settings = ["[settings]"] if any(setting.name for setting in shown.settings) else []
    positional = [setting.form for setting in shown.settings if not setting.name]
    return " ".join([program, *settings, *positional])


def _no_topic(wanted: str, topics: Sequence[str]) -> str:
    near = get_close_matches(wanted, topics, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"--help {wanted}: no such topic; {hint}topics: {', '.join(topics)}"


def _topic_lines(shown: Help, topic: str, width: int, short: bool) -> list[str]:
    settings = shown.by_topic()[topic]
    usual = [setting for setting in settings if setting.name in USUAL] if short else settings
    lines = [line for setting in usual for line in _lines(setting, width, short)]
    rest = [f"--{setting.name}" for setting in settings if setting not in usual]
    if rest:
        names = f"{'also ' if usual else ''}{', '.join(rest)}"
        lines += textwrap.wrap(
            names, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
        )
    return lines


def _lines(setting: _Setting, width: int, short: bool) -> list[str]:
    """A setting: its form, and beside it or below what it does and its default."""
    says, form = setting.says, setting.form.replace("{None}|", "")
    if setting.is_off:
        form = form.partition(",")[0]
    elif setting.default not in ("", "None", "''"):
        says = f"{says.rstrip('.')} [{setting.default}]"
    if short and setting.name:
        says, form = _shorter(setting, says), _short_form(form)
    margin = " " * (FORM_WIDTH + 2)
    wrapped = textwrap.wrap(
        says, width, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False
    )
    if len(form) > FORM_WIDTH - 2:
        return [f"  {form}", *wrapped]
    first, *more = wrapped or [""]
    return [f"  {form:<{FORM_WIDTH}}{first[FORM_WIDTH + 2 :]}", *more]


def _shorter(setting: _Setting, says: str) -> str:
    """The first clause, with the default if it is short."""
    clause = re.split(r"; |\. (?=[A-Z`])|: (?=fixed)", setting.says)[0].rstrip(".")
    default = re.search(r" \[[^]]{,30}\]$", says)
    return clause + (default[0] if default else "")


def _short_form(form: str) -> str:
    """A form that leaves room beside it."""
    return form if len(form) <= FORM_WIDTH - 2 else f"{form.split()[0].rstrip(',')} ..."
