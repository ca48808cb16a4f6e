"""The keys of a suite's file, checked one by one and against each other; an error names the file and the line."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from oomscope.config.load import read_file
from oomscope.config.problems import InvalidConfigError, Problem, shown
from oomscope.config.schema.section import Section
from oomscope.config.yaml_tree import Bounds, Items, Mapping, Tree, read_yaml
from oomscope.errors import InputError
from oomscope.gate.suite.metrics import METRICS, Band
from oomscope.probe.job import OWN_KINDS
from oomscope.units import MiB, parse_size

Source = Literal["preset", "config", "harness", "entry", "command"]
SOURCES: tuple[Source, ...] = ("preset", "config", *OWN_KINDS)
"""Keys that say what is measured; a case has exactly one of them."""
RANKS: Final = ("first", "last", "worst")
MOST_BYTES: Final = 2**63 - 1


def _band(value: object) -> Band | None:
    if value is None or isinstance(value, Band):
        return value
    try:
        return Band.parse(value)
    except InputError as error:
        raise ValueError(str(error)) from None


def _named(value: object) -> object:
    """Turn a list of metrics into a mapping without bands."""
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return dict.fromkeys(value)
    return value


def _metric(name: str) -> str:
    if name not in METRICS:
        raise ValueError(f"unknown metric {shown(name)}; metrics are {', '.join(METRICS)}")
    return name


def _size(value: object) -> str | None:
    if value is None:
        return None
    try:
        if isinstance(value, int | str) and not isinstance(value, bool) and parse_size(value) <= MOST_BYTES:
            return str(value)
    except InputError:
        pass
    raise ValueError(f"{shown(value)} is not the size of a card; give a size such as 80GiB, 512MiB or 1048576")


def _override(text: str) -> str:
    if "=" not in text:
        raise ValueError(f"{shown(text)} is not a section.key=value; write it with =")
    return text


def _fixup(text: str) -> str:
    where, _, repair = text.partition(":")
    if not (where.strip() and repair.strip()):
        raise ValueError(f"{shown(text)} is not a repair; write it as 'RANGE: PATCH-FILE' or 'RANGE: COMMAND'")
    return text


def _rank(value: object) -> object:
    is_number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
    if value is not None and not is_number and value not in RANKS:
        raise ValueError(f"{shown(value)} is not a rank; give a number or {', '.join(RANKS)}")
    return value


class MetricBands(Section):
    """How far one metric may be worse than its baseline."""

    warn: Annotated[Band | None, BeforeValidator(_band)] = Field(default=None)
    """Beyond this it is reported (default: any difference): a size, a share, or a list of both."""
    fail: Annotated[Band | None, BeforeValidator(_band)] = Field(default=None)
    """Beyond this the gate fails."""

    def over(self, other: MetricBands) -> MetricBands:
        """Return these bands, and those of ``other`` where these say nothing."""
        return MetricBands(warn=self.warn or other.warn, fail=self.fail or other.fail)


MetricName = Annotated[str, AfterValidator(_metric)]
Metrics = Annotated[dict[MetricName, MetricBands | None] | None, BeforeValidator(_named)]
Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
Place = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00]+$")]
Override = Annotated[str, AfterValidator(_override)]
Fixup = Annotated[str, AfterValidator(_fixup)]
Limit = Annotated[str | None, BeforeValidator(_size)]
Rank = Annotated[int | str | None, BeforeValidator(_rank)]


class _Shared(Section):
    """What a case may have, and the defaults of all cases."""

    overrides: tuple[Override, ...] = Field(default=(), strict=False)
    """``section.key=value`` each; those of the defaults come first."""
    rank: Rank = None
    """The rank that is played: a number, ``first``, ``last`` or ``worst``."""
    limit: Limit = None
    """A card with so many bytes in all, such as ``80GiB``."""
    metrics: Metrics = None
    """The metrics that count, as a list, or a mapping to bands, whose metrics count beside the default ones; those of a
    case are added to the defaults'."""
    link: tuple[Place, ...] = Field(default=(), strict=False)
    """Files and folders of the checkout that git does not track, and that commits need when they are searched."""
    setup: str | None = None
    """A command that is run in the checkout of each commit that is searched, such as a build."""
    fixup: tuple[Fixup, ...] = Field(default=(), strict=False)
    """Repairs of commits that are searched, ``RANGE: PATCH-FILE`` or ``RANGE: COMMAND`` each."""
    _chooses: bool = PrivateAttr(default=False)

    @property
    def chooses(self) -> bool:
        """Whether the metrics are a list: then no others count."""
        return self._chooses

    @model_validator(mode="wrap")
    @classmethod
    def _keep_kind(cls, value: Any, handler: ModelWrapValidatorHandler[_Shared]) -> _Shared:
        made = handler(value)
        made._chooses = isinstance(value, dict) and isinstance(value.get("metrics"), list)
        return made


class DefaultsDocument(_Shared):
    """``defaults:`` of a suite."""


class CaseDocument(_Shared):
    """One of ``cases:``."""

    name: Name
    """Name of the case in reports and in the baseline."""
    preset: str | None = None
    """The bundled transformer under a preset."""
    config: Place | None = None
    """The bundled transformer under a configuration file; the path is from the suite's folder."""
    dialect: Literal["megatron", "bridge", "nemo"] | None = Field(default=None, alias="from")
    """With ``config``: whose names the file has, where not oomscope's own."""
    harness: Place | None = None
    """Your own code through a harness file; the path is from the suite's folder."""
    entry: str | None = None
    """Your own code through a function of the checkout, ``pkg.module:function``."""
    command: str | None = None
    """Your training program as it is, started in the checkout and recorded; with one of the next two keys a program
    that measures itself."""
    metric_regex: str | None = None
    """With ``command``: finds the bytes in what it prints, by its one group; it is not recorded."""
    snapshot_glob: str | None = None
    """With ``command``: the memory snapshots that it writes itself, from the root of the checkout."""
    repo: Place | None = None
    """With ``harness``, ``entry`` or ``command``: the checkout under test (default: the suite's folder)."""

    @model_validator(mode="after")
    def _check_source(self) -> CaseDocument:
        given = [key for key in SOURCES if getattr(self, key) is not None]
        if len(given) != 1:
            text = " and ".join(given) or "nothing"
            raise ValueError(f"{text} to measure; give one of {', '.join(SOURCES)}")
        for key, value, owners in (
            ("repo", self.repo, OWN_KINDS),
            ("from", self.dialect, ("config",)),
            ("metric_regex", self.metric_regex, ("command",)),
            ("snapshot_glob", self.snapshot_glob, ("command",)),
            ("link", self.link or None, OWN_KINDS),
            ("setup", self.setup, OWN_KINDS),
            ("fixup", self.fixup or None, OWN_KINDS),
        ):
            if value is not None and given[0] not in owners:
                raise ValueError(f"{key} without {' or '.join(owners)}; name one, or leave {key} out")
        if self.metric_regex is not None and self.snapshot_glob is not None:
            raise ValueError("command with both metric_regex and snapshot_glob; give one or none")
        return self


class SuiteDocument(Section):
    """A suite file."""

    cases: tuple[CaseDocument, ...] = Field(strict=False)
    """What is measured."""
    defaults: DefaultsDocument = DefaultsDocument()
    """What all cases have, unless they say otherwise."""


Model = TypeVar("Model", bound=BaseModel)
BOUNDS = Bounds(bytes=2 * MiB, nodes=60_000)
"""A thousand entries of a baseline, each with bands, which are read in a few seconds."""


def read_document(path: Path, model: type[Model]) -> tuple[Model, Tree]:
    """Return the document in the YAML file ``path`` as ``model``, and the tree that knows its lines.

    Raises:
        InvalidConfigError: it cannot be read, is not YAML, or is not such a document; all problems are listed.
    """
    source = str(path)
    tree, problems = read_yaml(read_file(path, BOUNDS), source, BOUNDS)
    if not isinstance(tree, Mapping):
        keys = ", ".join(f"{key}:" for key in model.model_fields)
        problems.append(Problem("holds no mapping of keys", f"{source}:{tree.line}", f"give {keys}"))
    if problems:
        raise InvalidConfigError(problems)
    try:
        return model.model_validate(tree.value), tree
    except ValidationError as error:
        details = error.errors(include_url=False)
    raise InvalidConfigError(list(dict.fromkeys(_problem(detail, tree, source, model) for detail in details)))


def line_of(tree: Tree, path: Sequence[str | int]) -> int:
    """Return the line at which what ``path`` leads to begins, or the innermost part of the way that is there."""
    line = tree.line
    for step in path:
        if isinstance(tree, Mapping) and step in tree.entries:
            line, tree = tree.entries[str(step)]
        elif isinstance(tree, Items) and isinstance(step, int) and step < len(tree.items):
            tree = tree.items[step]
            line = tree.line
        else:
            break
    return line


def _problem(detail: Any, tree: Tree, source: str, model: type[BaseModel]) -> Problem:
    path = [step for step in detail["loc"] if step != "[key]"]
    where = f"{source}:{line_of(tree, path)}"
    name = "".join(f"[{step}]" if isinstance(step, int) else f".{step[:100]}" for step in path).removeprefix(".")
    if detail["type"] == "extra_forbidden":
        close = get_close_matches(str(path[-1]), _keys(model), n=1)
        return Problem(f"unknown key {name}", where, f"did you mean {close[0]}?" if close else "leave it out")
    if detail["type"] == "missing":
        return Problem(f"{name} is missing", where, "give it")
    if "error" in detail.get("ctx", {}):
        text, remedy = str(detail["ctx"]["error"]), None
    else:
        message = str(detail["msg"])
        text, remedy = message[:1].lower() + message[1:], f"it is {shown(detail['input'])}"
    return Problem(f"{name}: {text}" if name else text, where, remedy)


def _keys(model: type[BaseModel]) -> list[str]:
    """Return the keys of ``model`` and of the models inside it."""
    schema = model.model_json_schema()
    return [key for part in (schema, *schema.get("$defs", {}).values()) for key in part.get("properties", {})]
