"""Count the docstrings and comments that are written in the dialect which the style sheet forbids.

    python -m tests.architecture.prose [--list] PATH...

A text is one docstring or one run of comment lines. It counts once if it holds one of the words below: relative
clauses in the place of a subject ("whoever asks", "nobody waits"), persons without need ("somebody", "his"), and
turns that no manual uses ("is told", "of its own", "anew", "had any more"). psycopg and django.db have 0.6 % of them.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from pathlib import Path

DIALECT = re.compile(
    r"""\b(?:
        nobody|somebody|anybody|everybody|whoever|whomever|whatever|his|him|himself
      | anew|thereby|hereby|whereof|aside|meanwhile|beforehand|at[ ]all|any[ ]?more|else's
      | (?:of|for)[ ](?:its|their|one's)[ ]own|behind[ ](?:its|their)|in[ ]the[ ]midst
      | so[ ](?:many|long|much)[ ](?:seconds|times|that|of)|that[ ]is[ ]all|by[ ]and[ ]by|there[ ]and[ ]then
      | (?:is|are|was|were|be|being)[ ]told|tells?[ ](?:of|that|who|what)|(?:sees?|seen)[ ]to[ ](?:it|that)
      | takes?[ ](?:leave|away)|be[ ]had|knows?[ ]of|goes?[ ]on|looks?(?:ed)?[ ](?:after|at)
      | stands?[ ](?:in|there|at|for)[ ](?:the[ ])?(?:line|queue|way)
      | who[ ](?:is|are|was|were|has|have|had|holds?|held|asks?|asked|comes?|came|waits?|waited|wants?|takes?|gets?|got)
      | who[ ](?:does|did|can|cannot)
      | what[ ](?:is|was|has|had|it|they)[ ](?:to|left|not|still|asked|said)
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)


def texts(path: Path) -> list[tuple[int, str]]:
    """The docstrings and the runs of comments of one file, each with its line."""
    source = path.read_text()
    found = [
        (node.body[0].lineno, ast.get_docstring(node) or "")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and ast.get_docstring(node)
    ]
    last = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or re.match(r"#\s*(?:noqa|type:|pragma|!)", token.string):
            continue
        line, column = token.start
        alone = not token.line[:column].strip()
        if alone and last == line - 1 and found:
            found[-1] = (found[-1][0], f"{found[-1][1]} {token.string.lstrip('# ')}")
        else:
            found.append((line, token.string.lstrip("# ")))
        last = line if alone else -1
    return found


def count(paths: list[Path]) -> tuple[int, list[str]]:
    """How many texts there are, and those in the dialect as "path:line: words: text"."""
    total, bad = 0, []
    for path in paths:
        for line, text in texts(path):
            total += 1
            words = DIALECT.findall(text)
            if words:
                bad.append(f"{path}:{line}: [{', '.join(words)}] {' '.join(text.split())[:150]}")
    return total, bad


def main(arguments: list[str]) -> None:
    names = [name for name in arguments if not name.startswith("-")] or ["django_distlock"]
    paths = [
        file for name in names for file in (sorted(Path(name).rglob("*.py")) if Path(name).is_dir() else [Path(name)])
    ]
    total, bad = count(paths)
    if "--list" in arguments:
        print("\n".join(bad))
    print(f"{len(bad)} of {total} docstrings and comments: {len(bad) / total:.1%}")


if __name__ == "__main__":
    main(sys.argv[1:])
