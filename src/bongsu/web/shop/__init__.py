"""The demo shop's page, and the routes behind it."""
