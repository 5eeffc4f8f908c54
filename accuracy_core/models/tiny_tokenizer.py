"""Tokenizer of the embedded model: byte-level, without merges, the same on every architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BOS, EOS, UNK, PAD = "<s>", "</s>", "<unk>", "<pad>"
BOS_ID, EOS_ID, UNK_ID, PAD_ID = range(4)
CONTEXT_LENGTH = 256  # tokens

# The template writes BOS itself, as most published ones do: rendered text tokenised with special tokens has two.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'assistant' %}{{ ' ' + m['content'] + eos_token }}"
    "{% elif m['content'].endswith('\\nA:') %}{{ m['content'] }}"
    "{% else %}{{ 'Q: ' + m['content'] + '\\nA:' }}{% endif %}{% endfor %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """256 bytes and 4 special tokens, ids 0 to 259; adds BOS; pads on the left.

    Byte-level because some tokenizer classes replace the pre-tokenizer of a saved character-level one and lose blanks.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    alphabet = [BOS, EOS, UNK, PAD, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE(vocab={text: index for index, text in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, BOS_ID)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNK,
        pad_token=PAD,
        model_max_length=CONTEXT_LENGTH,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
