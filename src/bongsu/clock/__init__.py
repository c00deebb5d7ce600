"""Scheduled jobs and their runs: leased, fenced, resumed by any process from the last saved step."""
