"""The HTTP API: the application, who may call, how errors read, and one router per resource."""
