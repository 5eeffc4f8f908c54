"""Runs on a Prefect server somewhere: started, followed, cancelled and fetched over its HTTP API."""
