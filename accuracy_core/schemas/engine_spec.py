"""The engine under test: one description that drives the server and the offline engine alike."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, JsonValue, ValidationError, field_validator, model_validator

from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas.base import Schema, fingerprint
from accuracy_core.schemas.fault_spec import FaultSpec


class Platform(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"
    NEURON = "neuron"


#: documented short names in a `server_config` dict -> field of EngineSpec
_ALIASES = {"tp_degree": "tensor_parallel_size", "tp_size": "tensor_parallel_size", "model_path": "model"}
#: engine arguments that are fields here; they may not be given a second time through `engine_args`
OWN_ARGUMENTS = (
    "model", "dtype", "tensor_parallel_size", "max_model_len", "max_num_seqs", "kv_cache_dtype", "quantization",
    "hf_overrides", "additional_config", "trust_remote_code", "seed",
)  # fmt: skip


class EngineSpec(Schema):
    """Target under test. Every vLLM engine argument can be given: common ones as fields, the rest in `engine_args`."""

    engine: str = Field("vllm", description="name in the engine registry: vllm, vllm-server or transformers")
    platform: Platform = Field(Platform.CPU, description="device family")
    model: str = Field(min_length=1, description="HF folder or id, or `embedded` for the bundled tiny model")
    tokenizer: str | None = Field(None, description="folder or id of the tokenizer when it is not the model's")
    dtype: Literal["bfloat16", "float16", "float32", "auto"] = Field("bfloat16", description="dtype of the target")
    tensor_parallel_size: int = Field(1, ge=1, le=1024, description="device cores the model is sharded over")
    max_model_len: int | None = Field(None, ge=8, description="longest prompt plus output, in tokens")
    max_num_seqs: int = Field(8, ge=1, description="largest batch of the server")
    kv_cache_dtype: str = Field("auto", description="dtype of the KV cache")
    quantization: str | None = Field(None, description="vLLM quantisation method")
    hf_overrides: dict[str, JsonValue] = Field(default_factory=dict, description="overrides of the checkpoint's config")
    additional_config: dict[str, JsonValue] = Field(default_factory=dict, description="the platform plugin's config")
    trust_remote_code: bool = Field(False, description="run code that the checkpoint ships; off unless you mean it")
    seed: int = Field(0, ge=0, description="seed of the engine")
    num_threads: int = Field(1, ge=1, le=256, description="OMP threads of a CPU engine; 1 is fastest on small machines")
    env: dict[str, str] = Field(default_factory=dict, description="environment of the engine's process; never logged")
    python: str | None = Field(
        None, description="engine's interpreter; default: $ASSAY_ENGINE_PYTHON, else .venv-engine"
    )
    engine_args: dict[str, JsonValue] = Field(default_factory=dict, description="any further vLLM engine argument")
    fault: FaultSpec | None = Field(None, description="fault injected on purpose, to prove that it is found")

    @field_validator("engine_args")
    @classmethod
    def _named_as_in_python(cls, given: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """`block-size`, as vLLM's own command line writes it, is `block_size` to whoever looks for it here."""
        named = {name.replace("-", "_"): value for name, value in given.items()}
        if len(named) < len(given):
            raise ValueError("engine_args names an argument twice, with dashes and with underscores")
        return named

    @model_validator(mode="after")
    def _no_argument_twice(self) -> EngineSpec:
        twice = sorted(set(self.engine_args) & set(OWN_ARGUMENTS))
        if twice:
            raise ValueError(f"engine_args repeats {', '.join(twice)}: set the field of that name instead")
        return self

    @classmethod
    def from_server_config(cls, config: Mapping[str, Any] | EngineSpec) -> EngineSpec:
        """Accept the documented `{"server": {"model": …, "tp_degree": 8, "max_model_len": 256}}`, or a flat mapping.

        Keys that are no field of EngineSpec are engine arguments. Raises ConfigurationError with what is wrong.
        """
        if isinstance(config, EngineSpec):
            return config
        server = config.get("server", config)
        if not isinstance(server, Mapping):
            raise ConfigurationError(
                f"server_config['server'] must be a mapping, got {type(server).__name__}",
                fix='pass {"server": {"model": "/path/to/model", "tp_degree": 8, "max_model_len": 256}}',
            )
        fields: dict[str, Any] = {}
        extra: dict[str, Any] = dict(server.get("engine_args", {}))
        for key, value in server.items():
            name = _ALIASES.get(str(key), str(key))
            if name == "engine_args":
                continue
            (fields if name in cls.model_fields else extra)[name] = value
        try:
            return cls(**fields, engine_args=extra)
        except ValidationError as error:
            raise ConfigurationError(
                f"server_config is not usable: {error}", fix="see EngineSpec for the fields"
            ) from error

    def identity(self, model_fingerprint: str) -> str:
        """sha256 over everything that may change a result: the checkpoint by its content, all else as it is.

        Values of `env` go into the hash and are never stored.
        """
        spec = self.model_dump(mode="json", exclude={"schema_version", "python", "model"})
        return fingerprint({"spec": spec, "model": model_fingerprint})

    def redacted(self) -> EngineSpec:
        """A copy that may be written down: values in `env` are replaced."""
        return self.model_copy(update={"env": dict.fromkeys(self.env, "<set>")})
