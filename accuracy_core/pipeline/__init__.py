"""What each stage of a run does, without any orchestrator: plain functions over files in the run directory."""
