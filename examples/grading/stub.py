"""Where a submission starts."""


def build(config, weights):
    raise NotImplementedError("return step(token_ids, cache) -> logits")
