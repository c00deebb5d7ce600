"""What browsers load: the bell for any site, and the demo's page."""
