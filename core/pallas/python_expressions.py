"""Expressions of the tree-sitter grammar of Python as nodes of the standard library's ``ast``.

See ``python_nodes.py``, which adds the statements. Lines are 1-based and columns count UTF-8 bytes from 0, as in
``ast``. Raises nothing: kinds that are not known here become names whose identifier is their text.
Source: ``tree-sitter/tree-sitter-python:grammar.js``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tree_sitter import Node

HOLE = "…"
"""Stands for what is missing; no identifier of Python."""

BINARY: Mapping[str, type[ast.operator]] = {
    "+": ast.Add, "-": ast.Sub, "*": ast.Mult, "/": ast.Div, "//": ast.FloorDiv, "%": ast.Mod, "**": ast.Pow,
    "@": ast.MatMult, "<<": ast.LShift, ">>": ast.RShift, "&": ast.BitAnd, "|": ast.BitOr, "^": ast.BitXor,
}  # fmt: skip
_UNARY: Mapping[str, type[ast.unaryop]] = {"-": ast.USub, "+": ast.UAdd, "~": ast.Invert}
_COMPARE: Mapping[str, type[ast.cmpop]] = {
    "<": ast.Lt, "<=": ast.LtE, "==": ast.Eq, "!=": ast.NotEq, ">=": ast.GtE, ">": ast.Gt, "in": ast.In,
    "not in": ast.NotIn, "is": ast.Is, "is not": ast.IsNot,
}  # fmt: skip
SKIPPED = frozenset({"comment", "line_continuation", "ERROR"})
_CONVERSIONS = {"!r": 114, "!s": 115, "!a": 97}


class ExpressionReader:
    """Turns the expressions of one parse into ``ast`` nodes; ``row`` is the line of the file it begins at, from 0."""

    def __init__(self, row: int = 0) -> None:
        self._row = row
        self.expressions: dict[str, Callable[[Node], ast.expr]] = {
            "identifier": self._name, "integer": self._number, "float": self._number, "string": self._strings,
            "concatenated_string": self._strings, "true": lambda n: self._constant(n, True),
            "false": lambda n: self._constant(n, False), "none": lambda n: self._constant(n, None),
            "ellipsis": lambda n: self._constant(n, ...), "attribute": self._attribute, "member_type": self._attribute,
            "call": self._call, "tuple": self.as_tuple, "expression_list": self.as_tuple, "list": self._list,
            "set": self._set, "dictionary": self._dictionary, "parenthesized_expression": self._inside,
            "binary_operator": self._binary, "unary_operator": self._unary, "not_operator": self._not,
            "boolean_operator": self._boolean, "comparison_operator": self._comparison, "lambda": self._lambda,
            "conditional_expression": self._conditional, "named_expression": self._named, "subscript": self._subscript,
            "slice": self._slice, "list_splat": self._starred, "splat_type": self._starred, "await": self._await,
            "parenthesized_list_splat": self._inside, "yield": self._yield, "list_comprehension": self._comprehension,
            "set_comprehension": self._comprehension, "dictionary_comprehension": self._comprehension,
            "generator_expression": self._comprehension, "type": self._inside, "generic_type": self._generic_type,
            "union_type": self._binary, "dotted_name": self._dotted, "pattern_list": self.as_tuple,
            "tuple_pattern": self.as_tuple, "list_pattern": self._list, "list_splat_pattern": self._starred,
            "as_pattern": self._inside,
        }  # fmt: skip

    # expressions

    def expression(self, node: Node | None) -> ast.expr:
        """A node that stands where an expression may; ``HOLE`` for what is missing."""
        if node is None:
            return ast.Name(HOLE, ast.Load(), lineno=1, col_offset=0, end_lineno=1, end_col_offset=0)
        make = self.expressions.get(node.type)
        return ast.Name(self.text(node), ast.Load(), **self.at(node)) if make is None else make(node)

    def stored(self, node: Node | None) -> ast.expr:
        """The same as a target."""
        return in_context(self.expression(node), ast.Store())

    def _name(self, node: Node) -> ast.expr:
        return ast.Name(self.text(node), ast.Load(), **self.at(node))

    def _dotted(self, node: Node) -> ast.expr:
        words = parts(node)
        out = self.expression(words[0] if words else None)
        for one in words[1:]:
            out = ast.Attribute(out, self.text(one), ast.Load(), **self.at(node))
        return out

    def _constant(self, node: Node, value: Any) -> ast.expr:
        return ast.Constant(value, **self.at(node))

    def _number(self, node: Node) -> ast.expr:
        return self._literal(node, node)

    def _literal(self, node: Node, place: Node) -> ast.expr:
        text = self.text(node)
        try:
            return ast.Constant(ast.literal_eval(text), **self.at(place))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return ast.Name(HOLE, ast.Load(), **self.at(place))

    def _strings(self, node: Node) -> ast.expr:
        pieces = parts(node) if node.type == "concatenated_string" else [node]
        if not any(x.type == "interpolation" for one in pieces for x in one.named_children):
            if not any("f" in _prefix(one) for one in pieces):
                found = [self._literal(one, one) for one in pieces]
                texts: list[Any] = [one.value for one in found if isinstance(one, ast.Constant)]
                if len(texts) == len(found) and len({type(one) for one in texts}) == 1:
                    whole = texts[0]
                    for one in texts[1:]:
                        whole = whole + one
                    return self._constant(node, whole)
        values: list[ast.expr] = []
        for one in pieces:
            for x in one.named_children:
                if x.type == "interpolation":
                    conversion = _CONVERSIONS.get(self.text(field(x, "type_conversion")), -1)
                    inside = self.expression(field(x, "expression"))
                    values.append(ast.FormattedValue(inside, conversion, None, **self.at(x)))
                elif x.type == "string_content":
                    values.append(self._constant(x, self.text(x)))
        return ast.JoinedStr(values, **self.at(node))

    def _attribute(self, node: Node) -> ast.expr:
        inside = parts(node)
        owner, name = (field(node, "object"), field(node, "attribute")) if node.type == "attribute" else (
            inside[0] if inside else None, inside[-1] if inside else None)  # fmt: skip
        value, starred = _without_star(self.expression(owner))
        return starred(ast.Attribute(value, self.text(name), ast.Load(), **self.at(node)))

    def _call(self, node: Node) -> ast.expr:
        given = field(node, "arguments")
        called, starred = _without_star(self.expression(field(node, "function")))
        if given is not None and given.type == "generator_expression":
            return starred(ast.Call(called, [self.expression(given)], [], **self.at(node)))
        arguments, keywords = self.given(given)
        return starred(ast.Call(called, arguments, keywords, **self.at(node)))

    def given(self, node: Node | None) -> tuple[list[ast.expr], list[ast.keyword]]:
        """The arguments and keywords of a call or a class."""
        arguments: list[ast.expr] = []
        keywords: list[ast.keyword] = []
        for one in parts(node) if node is not None else ():
            if one.type == "keyword_argument":
                value = self.expression(field(one, "value"))
                keywords.append(ast.keyword(self.text(field(one, "name")), value, **self.at(one)))
            elif one.type == "dictionary_splat":
                keywords.append(ast.keyword(None, self.expression(next(iter(parts(one)), None)), **self.at(one)))
            else:
                arguments.append(self.expression(one))
        return arguments, keywords

    def _entries(self, node: Node) -> list[ast.expr]:
        return [self.expression(one) for one in parts(node)]

    def as_tuple(self, node: Node) -> ast.expr:
        """All parts of a node, as a tuple."""
        return ast.Tuple(self._entries(node), ast.Load(), **self.at(node))

    def _list(self, node: Node) -> ast.expr:
        return ast.List(self._entries(node), ast.Load(), **self.at(node))

    def _set(self, node: Node) -> ast.expr:
        return ast.Set(self._entries(node), **self.at(node))

    def _dictionary(self, node: Node) -> ast.expr:
        keys: list[ast.expr | None] = []
        values: list[ast.expr] = []
        for one in parts(node):
            splat = one.type == "dictionary_splat"
            keys.append(None if splat else self.expression(field(one, "key")))
            values.append(self.expression(next(iter(parts(one)), None) if splat else field(one, "value")))
        return ast.Dict(keys, values, **self.at(node))

    def _inside(self, node: Node) -> ast.expr:
        return self.expression(next(iter(parts(node)), None))

    def _binary(self, node: Node) -> ast.expr:
        inside = parts(node)
        left = field(node, "left") or (inside[0] if inside else None)
        right = field(node, "right") or (inside[-1] if len(inside) > 1 else None)
        operator = field(node, "operator")
        sign = BINARY.get("|" if operator is None else operator.type, ast.Add)
        return ast.BinOp(self.expression(left), sign(), self.expression(right), **self.at(node))

    def _unary(self, node: Node) -> ast.expr:
        operator = field(node, "operator")
        sign = _UNARY.get("" if operator is None else operator.type, ast.USub)
        return ast.UnaryOp(sign(), self.expression(field(node, "argument")), **self.at(node))

    def _not(self, node: Node) -> ast.expr:
        return ast.UnaryOp(ast.Not(), self.expression(field(node, "argument")), **self.at(node))

    def _boolean(self, node: Node) -> ast.expr:
        word = field(node, "operator")
        sign = ast.Or if word is not None and word.type == "or" else ast.And
        first = self.expression(field(node, "left"))
        left = field(node, "left")
        flat = left is not None and left.type == "boolean_operator" and isinstance(first, ast.BoolOp)
        same = flat and isinstance(first, ast.BoolOp) and isinstance(first.op, sign)
        values = list(first.values) if same and isinstance(first, ast.BoolOp) else [first]
        return ast.BoolOp(sign(), [*values, self.expression(field(node, "right"))], **self.at(node))

    def _comparison(self, node: Node) -> ast.expr:
        operands = self._entries(node)
        words = [_COMPARE.get(one.type, ast.Eq)() for one in node.children_by_field_name("operators")]
        if len(operands) < 2 or len(words) != len(operands) - 1:
            return operands[0] if operands else self.expression(None)
        return ast.Compare(operands[0], words, operands[1:], **self.at(node))

    def _lambda(self, node: Node) -> ast.expr:
        arguments = self.arguments(field(node, "parameters"))
        return ast.Lambda(arguments, self.expression(field(node, "body")), **self.at(node))

    def _conditional(self, node: Node) -> ast.expr:
        value, test, other, *_ = [*parts(node), None, None, None]
        return ast.IfExp(self.expression(test), self.expression(value), self.expression(other), **self.at(node))

    def _named(self, node: Node) -> ast.expr:
        target: Any = self.stored(field(node, "name"))
        return ast.NamedExpr(target, self.expression(field(node, "value")), **self.at(node))

    def _subscript(self, node: Node) -> ast.expr:
        value, starred = _without_star(self.expression(field(node, "value")))
        words = [self.expression(one) for one in node.children_by_field_name("subscript")]
        several = len(words) != 1 or any(one.type == "," for one in node.children) or isinstance(words[0], ast.Starred)
        index = ast.Tuple(words, ast.Load(), **self.at(node)) if several else words[0]
        return starred(ast.Subscript(value, index, ast.Load(), **self.at(node)))

    def _slice(self, node: Node) -> ast.expr:
        places: list[ast.expr | None] = [None, None, None]
        number = 0
        for one in node.children:
            if one.type == ":":
                number = min(number + 1, 2)
            elif one.type not in SKIPPED:
                places[number] = self.expression(one)
        return ast.Slice(*places, **self.at(node))

    def _generic_type(self, node: Node) -> ast.expr:
        inside = parts(node)
        given = parts(inside[1]) if len(inside) > 1 else []
        words = [self.expression(one) for one in given]
        index = words[0] if len(words) == 1 else ast.Tuple(words, ast.Load(), **self.at(node))
        return ast.Subscript(self.expression(inside[0] if inside else None), index, ast.Load(), **self.at(node))

    def _starred(self, node: Node) -> ast.expr:
        return ast.Starred(self._inside(node), ast.Load(), **self.at(node))

    def _await(self, node: Node) -> ast.expr:
        return ast.Await(self._inside(node), **self.at(node))

    def _yield(self, node: Node) -> ast.expr:
        inside = parts(node)
        if any(one.type == "from" for one in node.children):
            return ast.YieldFrom(self._inside(node), **self.at(node))
        return ast.Yield(self.expression(inside[0]) if inside else None, **self.at(node))

    def _comprehension(self, node: Node) -> ast.expr:
        loops: list[ast.comprehension] = []
        for one in node.named_children:
            if one.type == "for_in_clause":
                later = int(any(x.type == "async" for x in one.children))
                over = self.expression(field(one, "right"))
                loops.append(ast.comprehension(self.stored(field(one, "left")), over, [], later))
            elif one.type == "if_clause" and loops:
                loops[-1].ifs.append(self._inside(one))
        body = field(node, "body")
        if node.type == "dictionary_comprehension":
            key, value = (None, None) if body is None else (field(body, "key"), field(body, "value"))
            return ast.DictComp(self.expression(key), self.expression(value), loops, **self.at(node))
        make: Any = {"list_comprehension": ast.ListComp, "set_comprehension": ast.SetComp}.get(
            node.type, ast.GeneratorExp
        )
        return make(self.expression(body), loops, **self.at(node))

    # parameters

    def arguments(self, node: Node | None) -> ast.arguments:
        """The parameters of a function or a lambda."""
        before: list[ast.arg] = []
        plain: list[ast.arg] = []
        words: list[ast.arg] = []
        defaults: list[ast.expr] = []
        word_defaults: list[ast.expr | None] = []
        rest: ast.arg | None = None
        others: ast.arg | None = None
        by_word = False
        for one in parts(node) if node is not None else ():
            kind = field(one, "type")
            inner = parts(one)[0] if one.type == "typed_parameter" and parts(one) else one
            value = field(one, "value")
            if one.type == "positional_separator":
                before, plain = plain, []
            elif one.type == "keyword_separator":
                by_word = True
            elif inner.type == "list_splat_pattern":
                rest, by_word = self._argument(inner, kind), True
            elif inner.type == "dictionary_splat_pattern":
                others = self._argument(inner, kind)
            else:
                named = field(one, "name") if value is not None else inner
                argument = self._argument(named or one, kind)
                if by_word:
                    words.append(argument)
                    word_defaults.append(None if value is None else self.expression(value))
                else:
                    plain.append(argument)
                    if value is not None:
                        defaults.append(self.expression(value))
        return ast.arguments(before, plain, rest, words, word_defaults, others, defaults)

    def _argument(self, node: Node, kind: Node | None) -> ast.arg:
        inside = parts(node) if node.type.endswith("splat_pattern") else [node]
        name = self.text(inside[0] if inside else None)
        return ast.arg(name, None if kind is None else self.expression(kind), **self.at(node))

    # leaves

    def at(self, node: Node) -> dict[str, Any]:
        """Where a node stands, as the attributes of an ``ast`` node."""
        (row, column), (end_row, end_column) = node.start_point, node.end_point
        return {"lineno": self._row + row + 1, "col_offset": column,
                "end_lineno": self._row + end_row + 1, "end_col_offset": end_column}  # fmt: skip

    def text(self, node: Node | None) -> str:
        """The source of a node; ``HOLE`` for none."""
        text = b"" if node is None else node.text
        return (text or b"").decode("utf-8", "replace") or HOLE


def parts(node: Node) -> list[Node]:
    """Named children that are neither comments nor faults."""
    return [one for one in node.named_children if one.type not in SKIPPED]


def field(node: Node, name: str) -> Node | None:
    """A child by its name in the grammar."""
    return node.child_by_field_name(name)


def _prefix(node: Node) -> str:
    start = node.named_children[0] if node.named_children else None
    text = b"" if start is None or start.type != "string_start" else start.text
    return (text or b"").decode("utf-8", "replace").lower()


def _without_star(node: ast.expr) -> tuple[ast.expr, Callable[[ast.expr], ast.expr]]:
    """In a set the grammar reads ``*a.b`` as ``(*a).b``: the star goes around what the node is part of."""
    if not isinstance(node, ast.Starred):
        return node, lambda whole: whole

    def starred(whole: ast.expr) -> ast.expr:
        start: dict[str, Any] = {"lineno": node.lineno, "col_offset": node.col_offset}
        whole.lineno, whole.col_offset = node.value.lineno, node.value.col_offset
        end: dict[str, Any] = {"end_lineno": whole.end_lineno, "end_col_offset": whole.end_col_offset}
        return ast.Starred(whole, ast.Load(), **start, **end)

    return node.value, starred


def in_context(node: ast.expr, context: ast.expr_context) -> ast.expr:
    """A target, or what is deleted, with all its parts; changes and returns the node."""
    if isinstance(node, ast.Tuple | ast.List):
        for one in node.elts:
            in_context(one, context)
    elif isinstance(node, ast.Starred):
        in_context(node.value, context)
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript | ast.Tuple | ast.List | ast.Starred):
        node.ctx = context
    return node
