"""An UpdateView with an inline formset: its rows belong to the version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.forms import inlineformset_factory
from django.http import HttpResponse, HttpResponseRedirect
from django.template import Context, Template
from django.urls import path
from django.views.generic import UpdateView

from django_distlock.editing import EditLockMixin
from testproject.articles.models import Article, Source
from tests.editing import site as views
from tests.editing.admin.test_rows import Controls

if TYPE_CHECKING:
    from tests.editing.people import Person

SourceFormSet = inlineformset_factory(Article, Source, fields=["name"], extra=1)
PAGE = Template(
    '{% load editing %}<form id="all" method="post" autocomplete="off">{% csrf_token %}{% edit_lock form.instance %}'
    "{{ form.as_div }}{{ formset.as_div }}</form>"
)


class Everything(EditLockMixin, UpdateView):  # type: ignore[type-arg]
    """As the books have it."""

    model = Article
    form_class = views.ArticleForm
    edit_lock_inlines = (SourceFormSet,)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        data = self.request.POST if self.request.method == "POST" else None
        kwargs.setdefault("formset", SourceFormSet(data, instance=self.object))
        return super().get_context_data(**kwargs)

    def form_valid(self, form: Any) -> HttpResponse:
        formset = SourceFormSet(self.request.POST, instance=self.object)
        if not formset.is_valid():
            return self.form_invalid(form)
        form.save()
        formset.save()
        return HttpResponseRedirect("/done/")

    def render_to_response(self, context: dict[str, Any], **kwargs: Any) -> HttpResponse:
        return HttpResponse(PAGE.render(Context({**context, "request": self.request, "csrf_token": "x"})))


class Row(EditLockMixin, UpdateView):  # type: ignore[type-arg]
    """A row on a page of its own."""

    model = Source
    fields = ("name",)
    template_name = "editing_site/form.html"
    success_url = "/done/"


urlpatterns = [
    views.beats,
    path("all/<int:pk>/", Everything.as_view()),
    path("row/<int:pk>/", Row.as_view()),
]
pytestmark = pytest.mark.usefixtures("site")


@pytest.fixture
def sources(article: Article) -> list[Source]:
    return [Source.objects.create(article=article, name=name) for name in ("one", "three", "two")]


def names() -> list[str]:
    return list(Source.objects.order_by("name").values_list("name", flat=True))


def opened(person: Person, article: Article) -> dict[str, Any]:
    return dict(Controls(person.client.get(f"/all/{article.pk}/"), "all").fields)


@pytest.mark.usefixtures("atomic_requests")
def test_nobody_else_has_saved(ada: Person, article: Article, sources: list[Source]) -> None:
    fields = opened(ada, article)
    fields |= {"body": "By Ada.", "sources-1-name": "by Ada", "sources-3-name": "another"}
    assert ada.client.post(f"/all/{article.pk}/", fields).status_code == 302
    assert names() == ["another", "by Ada", "one", "two"]
    assert Article.objects.get().body == "By Ada."


@pytest.mark.parametrize("way", ["view", "new", "deleted"])
def test_a_row_that_was_written_meanwhile(
    ada: Person, bo: Person, article: Article, sources: list[Source], way: str
) -> None:
    """Bo has not touched the row; the formset would write its old text all the same."""
    fields = {**opened(bo, article), "body": "By Bo.", "sources-2-name": "by Bo"}
    if way == "view":
        address = f"/row/{sources[0].pk}/"
        assert ada.client.post(address, {**ada.open(address), "name": "by Ada"}).status_code == 302
    elif way == "new":
        Source.objects.create(article=article, name="by Ada")
    else:
        sources[0].delete()
    before = names()
    answer = bo.ask("claim", fields["distlock_edit"][0], lease="a" * 32)
    assert (answer["state"], bool(answer["changed"])) == ("held", True), "the page learns of it"
    refused = bo.client.post(f"/all/{article.pk}/", fields)
    assert refused.status_code == 409
    text = refused.content.decode()
    assert "By Bo." in text
    assert ">\nby Bo</textarea>" in text
    assert names() == before
    assert Article.objects.get().body == "On Saturday."

    choice = {**Controls(refused).fields, "distlock_edit_choice": "review"}
    again = bo.client.post(f"/all/{article.pk}/", choice)
    assert again.status_code == 200
    assert 'value="by Bo"' in again.content.decode()
    assert bo.client.post(f"/all/{article.pk}/", Controls(again, "all").fields).status_code == 302
    assert names() == sorted(["by Bo", "one", "three", *(["by Ada"] if way == "new" else [])])


def test_what_is_no_inline_formset_is_refused() -> None:
    wrong = type("Wrong", (Everything,), {"edit_lock_inlines": (Source,)})
    with pytest.raises(ImproperlyConfigured, match="edit_lock_inlines"):
        wrong.as_view()
