"""A schema for each tenant, as django-tenants has it."""
