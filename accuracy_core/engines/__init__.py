"""Engines under test: the vLLM server, the offline vLLM engine, Hugging Face; and the device cores they run on."""
