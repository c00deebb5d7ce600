"""Benchmarks: how fast Bongsu is against a named baseline in the same run. `python -m bench` runs them all."""
