"""The demo as a WSGI application; serves its static files itself, so that no web server is needed in front."""

from __future__ import annotations

import os

from django.core.wsgi import get_wsgi_application

from testproject.headers import IsolatedStaticFiles

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
application = IsolatedStaticFiles(get_wsgi_application())
