"""The text of notifications: templates, and Korean particles."""
