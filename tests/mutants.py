"""Makes mutants of a source file from its syntax tree: one small edit of the text each.

Edits that no test could notice are left out as far as the tree tells: annotations (but for the rules of `Annotated`),
docstrings, asserts, texts of messages, printing and logging, `__repr__`, abstract methods, code for type checkers.
"""

import ast
import builtins
from dataclasses import dataclass
from itertools import accumulate, pairwise

SWAPS = {"//": "*", "%": "*", "**": "*"}
PAIRS = "+ -, * /, & |, << >>, and or, < <=, > >=, == !=, is is_not, in not_in, min max, any all, mean sum"
for one, other in (pair.replace("_", " ").split(" ", 1) for pair in PAIRS.split(", ")):
    SWAPS |= {one: other, other: one}
DROPPED = {"abs", "clone", "copy", "deepcopy", "detach", "reversed", "sorted", "sqrt"}  # f(x) and x.f() become x
UNORDERED = {"isinstance", "max", "min", "zip"}  # arguments that may be swapped
UNSEEN = {"cast", "debug", "exception", "info", "print", "warn", "warning", "NewType", "TypeVar"}
UNSEEN_KEYWORDS = {"daemon", "encoding", "indent", "name", "non_blocking", "repr", "stacklevel", "strict", "timeout"}
UNSEEN_FUNCTIONS = {"__repr__", "__str__", "abstractmethod", "overload"}  # names, and names of decorators
ORDERS = ast.Lt | ast.LtE | ast.Gt | ast.GtE
TINY = 1e-6  # floats below it guard divisions


@dataclass(frozen=True, order=True)
class Mutant:
    """`new` replaces `old`, which begins at byte `start`. `function` is the innermost one, "" outside of all."""

    start: int
    line: int
    old: str
    new: str
    function: str

    def of(self, source: str) -> str:
        text = source.encode()
        return (text[: self.start] + self.new.encode() + text[self.start + len(self.old.encode()) :]).decode()

    def is_one(self, source: str) -> bool:
        """Returns whether the edited text is another program: a few edits change nothing, or break the syntax."""
        try:
            return ast.dump(ast.parse(self.of(source))) != ast.dump(ast.parse(source))
        except SyntaxError:
            return False


def mutants(source: str) -> list[Mutant]:
    """Returns the mutants of a file in the order of its text. A few are none: see `Mutant.is_one`."""
    tree = ast.parse(source)
    owners: dict[int, str] = {}
    for name, function in functions(tree).items():  # outer functions come before inner ones
        owners |= dict.fromkeys(range(function.body[0].lineno, (function.end_lineno or 0) + 1), name)
    maker = _Maker(source)
    maker.visit(tree)
    made = {(start, source.encode().count(b"\n", 0, start) + 1, old, new) for start, old, new in maker.made}
    return sorted(Mutant(*each, owners.get(each[1], "")) for each in made)


def functions(tree: ast.AST, outer: str = "") -> dict[str, ast.FunctionDef]:
    """Returns the functions of a tree by qualified name, inner ones too."""
    found: dict[str, ast.FunctionDef] = {}
    for child in ast.iter_child_nodes(tree):
        name = f"{outer}.{child.name}".strip(".") if isinstance(child, ast.FunctionDef | ast.ClassDef) else outer
        if isinstance(child, ast.FunctionDef):
            found[name] = child
        found |= functions(child, name)
    return found


def line_starts(source: str) -> list[int]:
    return [0, *accumulate(map(len, source.encode().splitlines(keepends=True)))]


def name_of(node: ast.AST | None) -> str:
    """Returns the last name of `a`, `x.a`, `a(...)` or `x.a(...)`."""
    node = node.func if isinstance(node, ast.Call) else node
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


class _Maker(ast.NodeVisitor):
    def __init__(self, source: str) -> None:
        self.text, self.lines = source.encode(), line_starts(source)
        self.made: list[tuple[int, str, str]] = []  # first byte, old and new text

    def span(self, node: ast.AST) -> tuple[int, int]:
        assert (
            isinstance(node, ast.expr | ast.stmt | ast.keyword) and node.end_lineno and node.end_col_offset is not None
        )
        return self.lines[node.lineno - 1] + node.col_offset, self.lines[node.end_lineno - 1] + node.end_col_offset

    def source(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.text[start:end].decode()

    def edit(self, start: int, end: int, new: str) -> None:
        self.made.append((start, self.text[start:end].decode(), new))

    def replace(self, node: ast.AST, new: str) -> None:
        self.edit(*self.span(node), new)

    def swap(self, left: ast.expr, right: ast.expr) -> None:
        """Swaps the operator between two operands."""
        start, end = self.span(left)[1], self.span(right)[0]
        operator = self.text[start:end].decode().strip("() \n")
        if operator in SWAPS:
            at = self.text.index(operator.encode(), start)
            self.edit(at, at + len(operator.encode()), SWAPS[operator])

    def negate(self, test: ast.expr) -> None:
        """Negates a condition, where swapping its operator does not do so already."""
        swapped = isinstance(test, ast.Compare) and len(test.ops) == 1 and not isinstance(test.ops[0], ORDERS)
        if not swapped and not isinstance(test, ast.Constant | ast.UnaryOp):
            self.replace(test, f"(not ({self.source(test)}))")

    def visit(self, node: ast.AST) -> None:
        match node:
            case ast.JoinedStr() | ast.Assert() | ast.Expr(value=ast.Constant()):
                return
            case ast.Raise(exc=error):
                if name_of(error) != "NotImplementedError":
                    self.replace(node, "pass")
                return
            case ast.FunctionDef(name=name, decorator_list=decorators):
                if not {name, *map(name_of, decorators)} & UNSEEN_FUNCTIONS:
                    for child in (node.args, *node.body):
                        self.visit(child)
                return
            case ast.ClassDef(body=body):
                for child in body:
                    self.visit(child)
                return
            case ast.arg(annotation=annotation) | ast.AnnAssign(annotation=annotation, target=ast.Name()):
                self.rules(annotation)
                if isinstance(node, ast.AnnAssign) and node.value:
                    self.visit(node.value)
                return
            case ast.Call() if name_of(node) in UNSEEN:
                return
            case ast.Call():
                self.call(node)
            case ast.keyword(arg=name) if name in UNSEEN_KEYWORDS:
                return
            case ast.Expr(value=ast.Call() as call) if name_of(call) not in UNSEEN:
                self.replace(node, "pass")
            case ast.AugAssign(target=target, value=value):
                self.replace(node, "pass")
                start, end = self.span(target)[1], self.span(value)[0]
                operator = self.text[start:end].decode().strip()
                self.edit(start, end, f" {SWAPS.get(operator[:-1], operator[:-1])}= ")
            case ast.Continue() | ast.Break():
                self.replace(node, "pass")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]) | ast.AnnAssign(value=ast.expr()):
                self.replace(node, "pass")
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(value)):
                    self.replace(node, "pass")  # the name keeps the value that it had
            case ast.If(test=test, body=body):
                if name_of(test) == "TYPE_CHECKING" or "__main__" in self.source(test):
                    return
                self.negate(test)
                for child in body:
                    if isinstance(child, ast.Return):
                        self.replace(child, "pass")
            case ast.While(test=test) | ast.IfExp(test=test):
                self.negate(test)
            case ast.comprehension(ifs=tests):
                for test in tests:
                    self.negate(test)
            case ast.With(items=[ast.withitem(context_expr=entered, optional_vars=None)]):
                if "lock" not in self.source(entered).lower():
                    self.edit(self.span(node)[0], self.span(entered)[1], "if True")
            case ast.BinOp(op=ast.BitOr(), right=right) if self.source(right) == "None":
                return  # a type
            case ast.BinOp(left=left, right=right):
                if not isinstance(left, ast.JoinedStr) and not (
                    isinstance(left, ast.Constant) and isinstance(left.value, str)
                ):
                    self.swap(left, right)
            case ast.BoolOp(values=values):
                for left, right in pairwise(values):
                    self.swap(left, right)
            case ast.Compare(left=left, comparators=others):
                for before, after in pairwise([left, *others]):
                    self.swap(before, after)
            case ast.UnaryOp(operand=operand):
                self.replace(node, self.source(operand))
            case ast.Constant(value=bool(value)):
                self.replace(node, str(not value))
            case ast.Constant(value=int(value)):
                self.replace(node, str(value + 1))
            case ast.Constant(value=float(value)) if value == 0 or abs(value) > TINY:
                self.replace(node, repr(2 * value or 1.0))
            case _:
                pass
        self.generic_visit(node)

    def rules(self, annotation: ast.expr | None) -> None:
        """Visits the rules of `Annotated[int, Ge(1)]`."""
        match annotation:
            case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[_, *rules])):
                for rule in rules:
                    self.visit(rule)
            case _:
                pass

    def call(self, node: ast.Call) -> None:
        name, arguments = name_of(node), node.args
        if name in SWAPS:
            self.replace(node.func, self.source(node.func).removesuffix(name) + SWAPS[name])
        ours = isinstance(node.func, ast.Name) and name.islower() and not hasattr(builtins, name)
        kept = [*arguments, *([node.func.value] if isinstance(node.func, ast.Attribute) else [])]
        if (name in DROPPED and len(arguments) < 2) or (ours and len(arguments) == 1 and not node.keywords):
            self.replace(node, self.source(kept[0]))
        if len(arguments) > 1 and name not in UNORDERED and not isinstance(arguments[1], ast.Starred):
            start, end = self.span(arguments[0])[0], self.span(arguments[1])[1]
            self.edit(start, end, f"{self.source(arguments[1])}, {self.source(arguments[0])}")
        for dropped in node.keywords if name[:1].islower() else []:
            if dropped.arg not in UNSEEN_KEYWORDS:
                others = [self.source(each) for each in (*arguments, *node.keywords) if each is not dropped]
                self.replace(node, f"{self.source(node.func)}({', '.join(others)})")
