"""Statements: where a function goes, and what it keeps on its way."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from types import FunctionType

from llvmlite import ir

from oomscope.allocator.lowering.expressions import ZERO, Expressions
from oomscope.allocator.lowering.signature import INT, Array, parameters_of, refusal, tree_of


def lower(source: FunctionType, function: ir.Function, declared: Callable[[FunctionType], ir.Function]) -> None:
    """Fill ``function`` with what ``source`` does.

    Every variable has a slot on the stack; LLVM makes values of them.

    Raises:
        SyntaxError: something in it has no lowering.
    """
    _Statements(source, function, declared).lower()


class _Statements:
    def __init__(
        self, source: FunctionType, function: ir.Function, declared: Callable[[FunctionType], ir.Function]
    ) -> None:
        self._source = source
        self._function = function
        self._builder = ir.IRBuilder(function.append_basic_block())
        self._expressions = Expressions(source, self._builder, declared)
        self._after_loops: list[ir.Block] = []

    def lower(self) -> None:
        tree = tree_of(self._source)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._variable(node.id)
        arguments = iter(self._function.args)
        for parameter in parameters_of(self._source):
            if not parameter.fields:
                self._builder.store(next(arguments), self._variable(parameter.name))
            for field in parameter.fields:
                self._expressions.arrays[parameter.name, field] = Array(next(arguments), next(arguments))
        self._body(tree.body)
        if not self._builder.block.is_terminated:
            self._builder.ret(ir.Constant(self._function.function_type.return_type, None))

    def _variable(self, name: str) -> ir.Value:
        if name not in self._expressions.variables:
            self._expressions.variables[name] = self._builder.alloca(INT)
        return self._expressions.variables[name]

    def _body(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            if self._builder.block.is_terminated:
                return
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Expr(value=ast.Constant()):
                pass
            case ast.Expr(value=ast.Call() as call):
                self._expressions.value(call)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=value):
                self._unpack(targets, value)
            case ast.Assign(targets=targets, value=value):
                computed = self._expressions.value(value)
                for target in targets:
                    self._builder.store(computed, self._expressions.place(target))
            case ast.AugAssign(target=target, op=operator, value=value):
                place = self._expressions.place(target)
                before = self._builder.load(place)
                self._builder.store(self._expressions.arithmetic(node, before, operator, value), place)
            case ast.Return(value=value):
                self._return(value)
            case ast.Break():
                self._builder.branch(self._after_loops[-1])
            case ast.If(test=test, body=then, orelse=other):
                self._if(test, then, other)
            case ast.While(test=test, body=body, orelse=[]):
                self._while(test, body)
            case ast.For(target=target, iter=ast.Call(func=ast.Name(id="range"), args=bounds), body=body, orelse=[]):
                self._for(node, target, bounds, body)
            case _:
                raise refusal(self._source, node)

    def _unpack(self, targets: list[ast.expr], node: ast.expr) -> None:
        if not isinstance(node, ast.Call):
            raise refusal(self._source, node)
        computed = self._expressions.value(node)
        for index, target in enumerate(targets):
            self._builder.store(self._builder.extract_value(computed, index), self._expressions.place(target))

    def _return(self, node: ast.expr | None) -> None:
        if node is None:
            self._builder.ret(ZERO)
        elif isinstance(node, ast.Tuple):
            returned: ir.Value = ir.Constant(self._function.function_type.return_type, ir.Undefined)
            for index, each in enumerate(node.elts):
                returned = self._builder.insert_value(returned, self._expressions.value(each), index)
            self._builder.ret(returned)
        else:
            self._builder.ret(self._expressions.value(node))

    def _if(self, test: ast.expr, then: list[ast.stmt], other: list[ast.stmt]) -> None:
        blocks = [self._function.append_basic_block() for _ in range(2)]
        after = self._function.append_basic_block()
        self._builder.cbranch(self._expressions.truth(test), *blocks)
        for block, statements in zip(blocks, (then, other), strict=True):
            self._builder.position_at_end(block)
            self._body(statements)
            self._go_to(after)
        self._builder.position_at_end(after)

    def _while(self, test: ast.expr, body: list[ast.stmt]) -> None:
        testing, inside, after = (self._function.append_basic_block() for _ in range(3))
        self._go_to(testing)
        self._builder.position_at_end(testing)
        self._builder.cbranch(self._expressions.truth(test), inside, after)
        self._builder.position_at_end(inside)
        self._loop(body, after)
        self._go_to(testing)
        self._builder.position_at_end(after)

    def _for(self, node: ast.For, target: ast.expr, bounds: list[ast.expr], body: list[ast.stmt]) -> None:
        """Count in a slot of its own: as in Python, what the body does to the name does not steer the loop."""
        start, stop = ([ast.Constant(0), *bounds] if len(bounds) == 1 else bounds)[:2]
        step = self._expressions.constant(bounds[2]) if len(bounds) == 3 else 1
        if not step:
            raise refusal(self._source, node)
        with self._builder.goto_entry_block():
            counter = self._builder.alloca(INT)
        self._builder.store(self._expressions.value(start), counter)
        end = self._expressions.value(stop)
        testing, inside, after = (self._function.append_basic_block() for _ in range(3))
        self._go_to(testing)
        self._builder.position_at_end(testing)
        count = self._builder.load(counter)
        self._builder.cbranch(self._builder.icmp_signed("<" if step > 0 else ">", count, end), inside, after)
        self._builder.position_at_end(inside)
        self._builder.store(count, self._expressions.place(target))
        self._builder.store(self._builder.add(count, ir.Constant(INT, step)), counter)
        self._loop(body, after)
        self._go_to(testing)
        self._builder.position_at_end(after)

    def _loop(self, body: list[ast.stmt], after: ir.Block) -> None:
        self._after_loops.append(after)
        self._body(body)
        self._after_loops.pop()

    def _go_to(self, block: ir.Block) -> None:
        if not self._builder.block.is_terminated:
            self._builder.branch(block)
