"""The helpers for users' tests, inside a TestCase."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import TestCase

from django_distlock.editing.testing import being_edited, edit_fields, is_being_edited
from testproject.articles.models import Article


class TestHelpers(TestCase):
    databases = {"default"}  # noqa: RUF012

    def setUp(self) -> None:
        self.article = Article.objects.create(title="A bridge opens", body="On Saturday.")
        self.user = User.objects.create(username="eve", is_staff=True, is_superuser=True)
        self.client.force_login(self.user)
        self.path = f"/articles/{self.article.pk}/"
        self.data = {"title": "New", "body": "...", "section": "news"}

    def test_a_page_posts_its_fields_back(self) -> None:
        fields = edit_fields(self.client.get(self.path))
        assert set(fields) == {"distlock_edit", "distlock_edit_lease", "distlock_edit_tab"}
        assert self.client.post(self.path, {**fields, **self.data}).status_code == 302
        assert self.client.post(self.path, {**fields, **self.data}).status_code == 409

    def test_being_edited(self) -> None:
        with being_edited(self.article, by="Ada"):
            assert is_being_edited(self.article)
            refused = self.client.post(self.path, self.data)
            assert refused.status_code == 409
            assert "Ada is editing this now." in refused.content.decode()
            with pytest.raises(AssertionError), being_edited(self.article):
                pass
        assert not is_being_edited(self.article)
        assert self.client.post(self.path, self.data).status_code == 302

    def test_being_edited_by_a_user(self) -> None:
        with being_edited(self.article, by=self.user):
            assert self.client.post(self.path, self.data).status_code == 302
