"""Nodes of the tree-sitter grammar of Python as nodes of the standard library's ``ast``, which the finder reads.

``ast`` serves here as a set of plain records alone: its parser refuses a whole file for one fault, and this one does
not. What stands where the grammar found a fault is left out: an argument, an entry or a keyword is missing from its
list, and a part that a node cannot be without becomes ``HOLE``, a name that no program binds.

Lines are 1-based and columns count UTF-8 bytes from 0, as in ``ast``. Raises nothing: unknown kinds become names whose
identifier is their text.
Source: ``tree-sitter/tree-sitter-python:grammar.js``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hloscope.core.pallas.python_expressions import BINARY, SKIPPED, ExpressionReader, field, in_context, parts

if TYPE_CHECKING:
    from tree_sitter import Node


class NodeReader(ExpressionReader):
    """Turns the nodes of one parse into ``ast`` nodes; ``row`` is the line of the file, from 0, that it begins at."""

    def __init__(self, row: int = 0) -> None:
        super().__init__(row)
        self._statements: dict[str, Callable[[Node], Sequence[ast.stmt]]] = {
            "expression_statement": self._expression_statement, "return_statement": self._return,
            "function_definition": lambda n: [self._function(n, [])],
            "class_definition": lambda n: [self._class(n, [])], "decorated_definition": self._decorated,
            "if_statement": lambda n: [self._if(n)],
            "for_statement": self._for, "while_statement": self._while, "with_statement": self._with,
            "try_statement": self._try, "match_statement": self._match, "import_statement": self._import,
            "import_from_statement": self._import_from, "future_import_statement": self._import_from,
            "global_statement": self._global, "nonlocal_statement": self._global, "delete_statement": self._delete,
            "assert_statement": self._assert, "raise_statement": self._raise, "type_alias_statement": self._type_alias,
            "pass_statement": lambda n: [ast.Pass(**self.at(n))],
            "break_statement": lambda n: [ast.Break(**self.at(n))],
            "continue_statement": lambda n: [ast.Continue(**self.at(n))],
        }  # fmt: skip

    # statements

    def body(self, node: Node | None) -> list[ast.stmt]:
        """The statements among the children of a node, in order; what a fault swallowed is searched for them too."""
        found: list[ast.stmt] = []
        for one in () if node is None else node.named_children:
            found.extend(self.statement(one))
        return found

    def statement(self, node: Node) -> Sequence[ast.stmt]:
        """A node that stands where a statement may: none, one, or what a fault left whole."""
        make = self._statements.get(node.type)
        if make is not None:
            return make(node)
        if node.type in ("ERROR", "block"):
            return self.body(node)
        if node.type in self.expressions and not node.is_missing:
            return [ast.Expr(self.expression(node), **self.at(node))]
        return [] if node.type in SKIPPED else self.body(node)

    def _expression_statement(self, node: Node) -> list[ast.stmt]:
        inside = parts(node)
        if len(inside) == 1 and inside[0].type == "assignment":
            return self._assignment(node, inside[0])
        if len(inside) == 1 and inside[0].type == "augmented_assignment":
            one = inside[0]
            sign = field(one, "operator")
            operator = BINARY.get("" if sign is None else sign.type[:-1], ast.Add)()
            target: Any = self.stored(field(one, "left"))
            return [ast.AugAssign(target, operator, self.expression(field(one, "right")), **self.at(node))]
        if len(inside) > 1 or any(one.type == "," for one in node.children):
            return [ast.Expr(self.as_tuple(node), **self.at(node))]
        return [ast.Expr(self.expression(one), **self.at(node)) for one in inside]

    def _assignment(self, node: Node, one: Node) -> list[ast.stmt]:
        kind = field(one, "type")
        if kind is not None:
            left = field(one, "left")
            target: Any = self.stored(left)
            value = None if field(one, "right") is None else self.expression(field(one, "right"))
            simple = int(left is not None and left.type == "identifier")
            return [ast.AnnAssign(target, self.expression(kind), value, simple, **self.at(node))]
        targets = [self.stored(field(one, "left"))]
        right = field(one, "right")
        while right is not None and right.type == "assignment":
            targets.append(self.stored(field(right, "left")))
            right = field(right, "right")
        return [ast.Assign(targets, self.expression(right), **self.at(node))]

    def _return(self, node: Node) -> list[ast.stmt]:
        inside = parts(node)
        return [ast.Return(self.expression(inside[0]) if inside else None, **self.at(node))]

    def _decorated(self, node: Node) -> list[ast.stmt]:
        definition = field(node, "definition")
        words = [
            self.expression(next(iter(parts(one)), None)) for one in node.named_children if one.type == "decorator"
        ]
        if definition is None:
            return []
        return [
            self._class(definition, words)
            if definition.type == "class_definition"
            else self._function(definition, words)
        ]

    def _function(self, node: Node, decorators: list[ast.expr]) -> ast.stmt:
        make = ast.AsyncFunctionDef if node.children and node.children[0].type == "async" else ast.FunctionDef
        returns = field(node, "return_type")
        out = make(
            self.text(field(node, "name")), self.arguments(field(node, "parameters")),
            self.body(field(node, "body")), decorators, None if returns is None else self.expression(returns),
            **self.at(node),
        )  # fmt: skip
        return _with_type_parameters(out)

    def _class(self, node: Node, decorators: list[ast.expr]) -> ast.stmt:
        bases, keywords = self.given(field(node, "superclasses"))
        name = self.text(field(node, "name"))
        return _with_type_parameters(
            ast.ClassDef(name, bases, keywords, self.body(field(node, "body")), decorators, **self.at(node))
        )

    def _if(self, node: Node, alternatives: Sequence[Node] | None = None) -> ast.stmt:
        rest = node.children_by_field_name("alternative") if alternatives is None else alternatives
        otherwise: list[ast.stmt] = []
        if rest and rest[0].type == "elif_clause":
            otherwise = [self._if(rest[0], rest[1:])]
        elif rest:
            otherwise = self.body(field(rest[0], "body"))
        end = alternatives[-1] if alternatives else node
        place = self.at(node) | {"end_lineno": self.at(end)["end_lineno"], "end_col_offset": end.end_point.column}
        return ast.If(
            self.expression(field(node, "condition")), self.body(field(node, "consequence")), otherwise, **place
        )

    def _for(self, node: Node) -> list[ast.stmt]:
        make = ast.AsyncFor if node.children[0].type == "async" else ast.For
        target, over = self.stored(field(node, "left")), self.expression(field(node, "right"))
        return [make(target, over, self.body(field(node, "body")), self._else(node), **self.at(node))]

    def _while(self, node: Node) -> list[ast.stmt]:
        test = self.expression(field(node, "condition"))
        return [ast.While(test, self.body(field(node, "body")), self._else(node), **self.at(node))]

    def _else(self, node: Node) -> list[ast.stmt]:
        found = [one for one in node.named_children if one.type == "else_clause"]
        return self.body(field(found[0], "body")) if found else []

    def _with(self, node: Node) -> list[ast.stmt]:
        make = ast.AsyncWith if node.children[0].type == "async" else ast.With
        items: list[ast.withitem] = []
        for clause in node.named_children:
            for one in clause.named_children if clause.type == "with_clause" else ():
                value = field(one, "value")
                within = parts(value) if value is not None else []
                alone = value is not None and value.type == "parenthesized_expression" and len(within) == 1
                if alone and within[0].type == "as_pattern":
                    value = within[0]  # with (a as b)
                if one.type != "with_item" or value is None:
                    continue
                if value.type == "as_pattern":
                    items.append(ast.withitem(self.expression(parts(value)[0]), self._alias(value)))
                elif value.type == "tuple":  # with (a, b as c)
                    items += [
                        ast.withitem(self.expression(parts(x)[0] if x.type == "as_pattern" else x), self._alias(x))
                        for x in parts(value)
                    ]
                else:
                    items.append(ast.withitem(self.expression(value), None))
        return [make(items, self.body(field(node, "body")), **self.at(node))]

    def _alias(self, node: Node) -> ast.expr | None:
        alias = field(node, "alias") if node.type == "as_pattern" else None
        return None if alias is None else self.stored(next(iter(parts(alias)), None))

    def _try(self, node: Node) -> list[ast.stmt]:
        handlers: list[ast.ExceptHandler] = []
        last: list[ast.stmt] = []
        make: Any = ast.Try
        for one in node.named_children:
            if one.type == "except_clause":
                kinds = [x for x in parts(one) if x.type != "block"]
                caught = kinds[0] if kinds else None
                alias = field(one, "alias")
                if caught is not None and caught.type == "as_pattern":
                    alias = field(caught, "alias")
                    caught = parts(caught)[0]
                kind = None
                if len(kinds) > 1 and alias is None:
                    kind = ast.Tuple([self.expression(x) for x in kinds], ast.Load(), **self.at(one))
                elif caught is not None:
                    kind = self.expression(caught)
                block = next((x for x in one.named_children if x.type == "block"), None)
                name = None if alias is None else self.text(alias)
                handlers.append(ast.ExceptHandler(kind, name, self.body(block), **self.at(one)))
                if any(x.type in ("*", "except*") for x in one.children):
                    make = ast.TryStar
            elif one.type == "finally_clause":
                last = self.body(next((x for x in one.named_children if x.type == "block"), None))
        return [make(self.body(field(node, "body")), handlers, self._else(node), last, **self.at(node))]

    def _match(self, node: Node) -> list[ast.stmt]:
        subjects = [self.expression(one) for one in node.children_by_field_name("subject")]
        several = len(subjects) != 1 or any(one.type == "," for one in node.children)
        subject = ast.Tuple(subjects, ast.Load(), **self.at(node)) if several else subjects[0]
        cases: list[ast.match_case] = []
        for one in (field(node, "body") or node).named_children:
            if one.type != "case_clause":
                continue
            names: list[ast.pattern] = [
                ast.MatchAs(None, name, **self.at(one))
                for x in one.named_children
                if x.type == "case_pattern"
                for name in self._captured(x)
            ]
            guard = field(one, "guard")
            test = None if guard is None else self.expression(next(iter(parts(guard)), None))
            pattern = ast.MatchSequence(names, **self.at(one))
            cases.append(ast.match_case(pattern, test, self.body(field(one, "consequence"))))
        return [ast.Match(subject, cases, **self.at(node))]

    def _captured(self, node: Node) -> Iterator[str]:
        """Names that a pattern binds. What it compares with is no part of what is read here."""
        inside = parts(node)
        if node.type == "dotted_name":
            if len(inside) == 1:
                yield self.text(node)
            return
        if node.type == "splat_pattern" or (node.type == "as_pattern" and len(inside) > 1):
            if inside and inside[-1].type == "identifier":
                yield self.text(inside[-1])
        skip = 1 if node.type in ("class_pattern", "keyword_pattern") else 0
        for one in inside[skip:]:
            yield from self._captured(one)

    def _import(self, node: Node) -> list[ast.stmt]:
        return [ast.Import(self._aliases(node.children_by_field_name("name")), **self.at(node))]

    def _import_from(self, node: Node) -> list[ast.stmt]:
        module = field(node, "module_name")
        level, name = 0, "__future__" if node.type == "future_import_statement" else ""
        if module is not None:
            words = self.text(module).replace(" ", "")
            name = words.lstrip(".")
            level = len(words) - len(name)
        names = self._aliases(node.children_by_field_name("name"))
        if any(one.type == "wildcard_import" for one in node.named_children):
            names = [ast.alias("*", None, **self.at(node))]
        return [ast.ImportFrom(name or None, names, level, **self.at(node))]

    def _aliases(self, nodes: Sequence[Node]) -> list[ast.alias]:
        found: list[ast.alias] = []
        for one in nodes:
            alias = field(one, "alias") if one.type == "aliased_import" else None
            named = field(one, "name") if one.type == "aliased_import" else one
            found.append(ast.alias(self.text(named), None if alias is None else self.text(alias), **self.at(one)))
        return found

    def _global(self, node: Node) -> list[ast.stmt]:
        make = ast.Global if node.type == "global_statement" else ast.Nonlocal
        return [make([self.text(one) for one in parts(node)], **self.at(node))]

    def _delete(self, node: Node) -> list[ast.stmt]:
        inside = parts(node)
        if len(inside) == 1 and inside[0].type == "expression_list":
            inside = parts(inside[0])
        return [ast.Delete([in_context(self.expression(one), ast.Del()) for one in inside], **self.at(node))]

    def _assert(self, node: Node) -> list[ast.stmt]:
        inside = [self.expression(one) for one in parts(node)]
        return [ast.Assert(inside[0], inside[1] if len(inside) > 1 else None, **self.at(node))] if inside else []

    def _raise(self, node: Node) -> list[ast.stmt]:
        cause = field(node, "cause")
        inside = [one for one in parts(node) if one != cause]
        raised = self.expression(inside[0]) if inside else None
        return [ast.Raise(raised, None if cause is None else self.expression(cause), **self.at(node))]

    def _type_alias(self, node: Node) -> list[ast.stmt]:
        left = self.expression(field(node, "left"))
        target = left.value if isinstance(left, ast.Subscript) else left
        return [ast.Assign([in_context(target, ast.Store())], self.expression(field(node, "right")), **self.at(node))]


def _with_type_parameters(node: ast.stmt) -> ast.stmt:
    if "type_params" in node._fields:  # since Python 3.12
        setattr(node, "type_params", [])
    return node
