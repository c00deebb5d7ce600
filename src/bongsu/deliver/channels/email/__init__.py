"""E-mail through an SMTP server."""
