"""What an operator does, without HTTP and without a terminal: shown by the API, the CLI and the dashboard."""
