"""What runs in the engine's own interpreter: standard library, torch, safetensors and vLLM only; Python 3.9 syntax."""
