"""Expressions: what becomes a number, and where numbers are kept."""

from __future__ import annotations

import ast
from collections.abc import Callable
from types import FunctionType

from llvmlite import ir

from oomscope.allocator.lowering.signature import INT, Array, parameters_of, refusal

ZERO = ir.Constant(INT, 0)
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
INSTRUCTIONS: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.BitAnd: "and_",
    ast.BitOr: "or_",
    ast.BitXor: "xor",
    ast.LShift: "shl",
    ast.RShift: "ashr",
}

Compute = Callable[[], ir.Value]


class Expressions:
    """Lowers the expressions of one function at the place where ``builder`` stands.

    ``variables`` has the slot of each local name, ``arrays`` what each array parameter is, by the parameter's name and
    the field (``""`` where it is no named tuple). ``declared`` returns what a called function is in the module.
    """

    def __init__(
        self, source: FunctionType, builder: ir.IRBuilder, declared: Callable[[FunctionType], ir.Function]
    ) -> None:
        self.source = source
        self.builder = builder
        self.declared = declared
        self.variables: dict[str, ir.Value] = {}
        self.arrays: dict[tuple[str, str], Array] = {}

    def value(self, node: ast.expr) -> ir.Value:
        """Return what an expression comes to; a condition is 1 or 0."""
        known = self.constant(node)
        if known is not None:
            return ir.Constant(INT, known)
        match node:
            case ast.Name() | ast.Subscript():
                return self.builder.load(self.place(node))
            case ast.BinOp(left=left, op=operator, right=right):
                return self.arithmetic(node, self.value(left), operator, right)
            case ast.UnaryOp(op=ast.USub() | ast.Invert() as operator, operand=operand):
                flip = self.builder.neg if isinstance(operator, ast.USub) else self.builder.not_
                return flip(self.value(operand))
            case ast.Compare() | ast.UnaryOp(op=ast.Not()):
                return self.builder.zext(self.truth(node), INT)
            case ast.IfExp(test=test, body=then, orelse=other):
                return self._choose(self.truth(test), lambda: self.value(then), lambda: self.value(other))
            case ast.BoolOp(op=operator, values=operands):
                return self._deciding(operator, operands)
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return self._call(node, name, arguments)
        raise refusal(self.source, node)

    def truth(self, node: ast.expr) -> ir.Value:
        """Return one bit: whether an expression is true."""
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in COMPARISONS:
                return self.builder.icmp_signed(COMPARISONS[type(operator)], self.value(left), self.value(right))
            case ast.Compare():
                raise refusal(self.source, node)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.builder.not_(self.truth(operand))
        return self.builder.icmp_signed("!=", self.value(node), ZERO)

    def constant(self, node: ast.expr | None) -> int | None:
        """Return the number that an expression is whatever happens, else None."""
        match node:
            case ast.Constant(value=int() as number):
                return int(number)
            case ast.Name(id=name) if name not in self.variables:
                known = self.source.__globals__.get(name)
                return int(known) if isinstance(known, int) else None
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                opposite = self.constant(operand)
                return None if opposite is None else -opposite
        return None

    def place(self, node: ast.expr) -> ir.Value:
        """Return where a variable, or an entry of an array, is kept."""
        match node:
            case ast.Name(id=name) if name in self.variables:
                return self.variables[name]
            case ast.Subscript(value=array, slice=index) if not isinstance(index, ast.Slice):
                return self.builder.gep(self._array(array).first, [self.value(index)], source_etype=INT)
        raise refusal(self.source, node)

    def arithmetic(self, node: ast.AST, left: ir.Value, operator: ast.operator, operand: ast.expr) -> ir.Value:
        """Return ``left`` with ``operand``, which is still to be computed; ``node`` is what is refused otherwise."""
        right = self.value(operand)
        if type(operator) in INSTRUCTIONS:
            return getattr(self.builder, INSTRUCTIONS[type(operator)])(left, right)
        if not isinstance(operator, ast.FloorDiv | ast.Mod):
            raise refusal(self.source, node)
        is_rest, by = isinstance(operator, ast.Mod), self.constant(operand)
        if by is None or by <= 0 or by & (by - 1):
            return self._divide(left, right, is_rest=is_rest)
        if is_rest:
            return self.builder.and_(left, ir.Constant(INT, by - 1))
        return self.builder.ashr(left, ir.Constant(INT, by.bit_length() - 1))

    def _divide(self, left: ir.Value, right: ir.Value, *, is_rest: bool) -> ir.Value:
        """Return the quotient rounded down, or the rest that it leaves: the processor rounds towards 0."""
        rest = self.builder.srem(left, right)
        has_other_sign = self.builder.icmp_signed("<", self.builder.xor(rest, right), ZERO)
        is_off = self.builder.and_(has_other_sign, self.builder.icmp_signed("!=", rest, ZERO))
        if is_rest:
            return self.builder.select(is_off, self.builder.add(rest, right), rest)
        return self.builder.sub(self.builder.sdiv(left, right), self.builder.zext(is_off, INT))

    def _deciding(self, operator: ast.boolop, operands: list[ast.expr]) -> ir.Value:
        """Return the operand that decides; those after it are not computed."""
        if len(operands) == 1:
            return self.value(operands[0])
        first = self.value(operands[0])
        is_true = self.builder.icmp_signed("!=", first, ZERO)
        if isinstance(operator, ast.And):
            return self._choose(is_true, lambda: self._deciding(operator, operands[1:]), lambda: first)
        return self._choose(is_true, lambda: first, lambda: self._deciding(operator, operands[1:]))

    def _choose(self, test: ir.Value, then: Compute, other: Compute) -> ir.Value:
        """Return one of two values, of which only that one is computed."""
        blocks = [self.builder.append_basic_block() for _ in range(2)]
        after = self.builder.append_basic_block()
        self.builder.cbranch(test, *blocks)
        computed = []
        for block, compute in zip(blocks, (then, other), strict=True):
            self.builder.position_at_end(block)
            computed.append((compute(), self.builder.block))
            self.builder.branch(after)
        self.builder.position_at_end(after)
        chosen = self.builder.phi(INT)
        for value, block in computed:
            chosen.add_incoming(value, block)
        return chosen

    def _call(self, node: ast.Call, name: str, arguments: list[ast.expr]) -> ir.Value:
        called = self.source.__globals__.get(name)
        if isinstance(called, FunctionType):
            given = [
                self._given(each.fields, node) for each, node in zip(parameters_of(called), arguments, strict=True)
            ]
            return self.builder.call(self.declared(called), [value for each in given for value in each])
        if name == "len" and len(arguments) == 1:
            return self._array(arguments[0]).length
        if name in {"min", "max"} and len(arguments) == 2:
            left, right = (self.value(each) for each in arguments)
            is_left = self.builder.icmp_signed("<=" if name == "min" else ">=", left, right)
            return self.builder.select(is_left, left, right)
        raise refusal(self.source, node)

    def _given(self, fields: tuple[str, ...], node: ast.expr) -> list[ir.Value]:
        if not fields:
            return [self.value(node)]
        if fields != ("",):
            raise refusal(self.source, node)
        array = self._array(node)
        return [array.first, array.length]

    def _array(self, node: ast.expr) -> Array:
        match node:
            case ast.Name(id=name) if (name, "") in self.arrays:
                return self.arrays[name, ""]
            case ast.Attribute(value=ast.Name(id=name), attr=field) if (name, field) in self.arrays:
                return self.arrays[name, field]
        raise refusal(self.source, node)
