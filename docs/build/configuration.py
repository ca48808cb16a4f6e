"""The reference pages of configuration and rules, written from the schema and the table so that they cannot disagree.

``make docs`` writes both; a test compares them with what is checked in.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from itertools import takewhile
from pathlib import Path

from pydantic.fields import FieldInfo

from oomscope.config.key_lookup import SECTIONS, accepts, key_schema
from oomscope.config.presets import preset_names, read_preset
from oomscope.config.rules.check import RULES
from oomscope.config.schema import Section

_CONFIGURATION = """\
# Configuration

A configuration is a YAML file of sections and keys. Keys are named as Megatron-Core names them; what is not given
has the default below. `preset: NAME` at the top lays the file upon a preset. `section.key=value` on the command line
lays a value upon the file: `recompute.recompute_modules=[mlp]` is a list, `model.kv_channels=` is null.

```yaml
preset: llama3-8b
parallel:
  tensor_model_parallel_size: 8
recompute:
  recompute_granularity: full
  recompute_method: block
  recompute_num_layers: 8
allocator:
  conf: expandable_segments:True
device:
  gpu: h100-80gb
```

Which values may be combined is on the page [rules](rules.md). `oomscope config show` prints a whole configuration,
`oomscope config schema` its JSON Schema, `oomscope config check` what is wrong with it.

Sizes are bytes; `80GiB` and `80G` are binary, `80GB` is decimal.

This page is written by `make docs`.
"""

_RULES = """\
# Rules

What is refused or warned about, in the order of the checks: where several rules are broken, the first is the one that
Megatron would name.

- **error**: Megatron refuses it, or breaks on it.
- **not modelled**: Megatron runs it, and this version of oomscope cannot measure it. It is refused, so that no number
  is printed for something else.
- **warning**: it is accepted and does not do what it seems to.

This page is written by `make docs`.

Names in italics stand for values of the configuration, *found* for what the rule found.

| rule | severity | what is wrong | keys | remedy | source |
|---|---|---|---|---|---|
"""


def configuration_page() -> str:
    """Return docs/configuration.md."""
    presets = [f"- `{name}`: {_leading_comment(read_preset(name))}" for name in preset_names()]
    sections = [_section(name, model) for name, model in SECTIONS.items()]
    return "\n".join([_CONFIGURATION, "## Presets\n", *presets, "", *sections])


def _leading_comment(text: str) -> str:
    """Return the comment that a preset begins with, which says what it is and whence its numbers come, as one line."""
    comment = takewhile(lambda line: line.startswith("#"), text.splitlines())
    return " ".join(line.removeprefix("#").strip() for line in comment)


def rules_page() -> str:
    """Return docs/rules.md."""
    rows = [
        f"| {rule.id} | {rule.severity.replace('_', ' ')} | {_cell(_template(rule.message))} | "
        f"{', '.join(f'`{key}`' for key in rule.keys.split())} | {_cell(rule.remedy)} | {_cell(rule.source)} |\n"
        for rule in RULES
    ]
    return _RULES + "".join(rows)


def _template(message: str) -> str:
    """Return a rule's message with names in place of values."""
    return re.sub(r"\{(?:\w+\.)*(\w+)(?:\[\d+\])?\}", r"*\1*", message)


def _section(name: str, model: type[Section]) -> str:
    table = "| key | accepts | default | meaning |\n|---|---|---|---|\n"
    head = f"## {name}\n\n{inspect.cleandoc(model.__doc__ or '').replace('``', '`')}\n\n"
    return head + table + "".join(_key(name, key, info) for key, info in model.model_fields.items())


def _key(section: str, key: str, info: FieldInfo) -> str:
    default = "required" if info.is_required() else f"`{json.dumps(key_schema(section, key)['default'])}`"
    meaning = _cell(info.description or "")
    return f"| `{key}` | {_cell(accepts(section, key))} | {default} | {meaning} |\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("``", "`").split())


def write_pages(directory: Path) -> list[Path]:
    """Write both pages into ``directory`` and return their paths."""
    pages = {"configuration.md": configuration_page(), "rules.md": rules_page()}
    paths = [directory / name for name in pages]
    for path, text in zip(paths, pages.values(), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


if __name__ == "__main__":
    for written in write_pages(Path(sys.argv[1])):
        sys.stdout.write(f"Wrote {written}\n")
