"""The two databases behind one interface: statements, transactions, failures, locks, time."""
