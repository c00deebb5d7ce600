"""The tables: migrations, and the check that a database has them."""
