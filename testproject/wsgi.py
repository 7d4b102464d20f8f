"""The demo as a WSGI application; serves its static files itself, so that no web server is needed in front."""

from __future__ import annotations

import os

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
application = StaticFilesHandler(get_wsgi_application())
