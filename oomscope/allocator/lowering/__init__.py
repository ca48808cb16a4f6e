"""The engine's functions as LLVM takes them: a small part of Python, in which every value is an int64.

What the hot modules are written in needs no inference of types: parameters are whole numbers, arrays of them
(``Memory``) or named tuples of such arrays, all that is computed is a whole number, or a pair of them, and what is
called is another such function. So each function is lowered straight from its syntax tree to LLVM's instructions, and
those that the entry reaches make one module, which LLVM sees as a whole. What lies outside that part of Python is
refused by name.

Two things are as in Python only for values that the engine meets: numbers wrap at 64 bits, and an index counts from the
start of its array, never from its end, and lies inside it.
"""
