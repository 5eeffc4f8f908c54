"""The KV comparison of one prompt as HTML: a page of its own, and the same body for the report."""

from accuracy_core.prompts.kv_page.page import kv_body, kv_page, kv_script, kv_style, save_page
from accuracy_core.prompts.kv_page.view import headline, pattern_text

__all__ = ["headline", "kv_body", "kv_page", "kv_script", "kv_style", "pattern_text", "save_page"]
