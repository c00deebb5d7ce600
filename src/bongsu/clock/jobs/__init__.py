"""The scheduled jobs, one file each."""
