"""Programs bring torch 2.4 or newer: what that lacks must not be looked up when the modules of a probe are imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import oomscope

FOLDER = Path(oomscope.__file__).parent
MODULES = [path for name in ("probe", "capture", "virtual") for path in sorted((FOLDER / name).rglob("*.py"))]
LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is evaluated when a module is imported, and what decorates its functions."""
    yield node
    children = node.decorator_list if isinstance(node, LATER[:2]) else ast.iter_child_nodes(node)
    for child in children:
        if not isinstance(child, ast.Lambda):
            yield from run_at_import(child)


def names_too_much(node: ast.AST) -> bool:
    """Whether a node asks for an operation, or imports from inside a module in C, which torch 2.4 cannot."""
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").startswith("torch._C.") and (node.module or "").count(".") > 2
    of = node.value if isinstance(node, ast.Attribute) else None
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
        of = node.args[0]
    return of is not None and ast.unparse(of) in {"aten", "torch.ops.aten"}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("from torch._C._dynamo.eval_frame import set_eval_frame", 1),
        ("from torch._C._dynamo import eval_frame", 0),
        ("KERNELS = {'a': wide(aten.a), **{name: getattr(aten, name) for name in names}}", 2),
        ("aten = torch.ops.aten\ndef f(x): return aten.a(x)", 0),
        ("class A:\n    @wide(torch.ops.aten.a)\n    def f(self): return aten.a", 1),
    ],
)
def test_what_is_named_too_much_is_seen(source: str, count: int) -> None:
    assert sum(map(names_too_much, run_at_import(ast.parse(source)))) == count


def test_no_operation_and_no_inner_module_of_torch_is_named_at_import() -> None:
    found = [
        f"{path.relative_to(FOLDER)}:{node.lineno}"
        for path in MODULES
        for node in run_at_import(ast.parse(path.read_text(encoding="utf-8")))
        if names_too_much(node)
    ]
    assert found == []
