"""What stands on a page, read as a person would."""

from __future__ import annotations

import re
from html import unescape
from typing import TYPE_CHECKING

from django.contrib.admin.utils import quote

from django_distlock.operations.admin.rows import LockRows
from tests.operations.admin.people import LIST

if TYPE_CHECKING:
    from django.test import Client

    from django_distlock.operations.admin.rows import LockRow

_ROW = re.compile(r"<tr>(.*?)</tr>", re.DOTALL)
_CELL = re.compile(r'<t[hd] class="field-(\w+)[^"]*">(.*?)</t[hd]>', re.DOTALL)


def text(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def rows(html: str) -> list[dict[str, str]]:
    """The rows of the list: column -> text. Below it are tables of what users have locked, of other tests perhaps."""
    body = html.partition('id="result_list"')[2].partition("<tbody>")[2].partition("</tbody>")[0]
    return [{column: text(cell) for column, cell in _CELL.findall(row)} for row in _ROW.findall(body)]


def names(client: Client, query: str = "") -> list[str]:
    """The names on the list with a query, in order."""
    answer = client.get(f"{LIST}?{query}")
    assert answer.status_code == 200, f"{answer.status_code} {answer.headers}"
    return [row["name"] for row in rows(answer.text)]


def row_of(using: str, name: str) -> LockRow:
    """The held lock with this name."""
    (row,) = [row for row in LockRows().of(using).rows if row.info.name == name]
    return row


def address(row: LockRow, what: str = "change") -> str:
    return f"{LIST}{quote(row.pk)}/{what}/"
