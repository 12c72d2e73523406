"""How a training ended when it raised: interrupted, or failed in one line, out of memory by name."""

from __future__ import annotations

_KINDS = ("OutOfMemory", "ResourceExhausted")  # torch, tensorflow
_WORDS = ("out of memory", "can't allocate memory", "resource_exhausted")  # CUDA, the CPU allocator, XLA


def interrupts(error: BaseException) -> bool:
    """True for Ctrl-C and SIGTERM, raised as themselves or, by Lightning, as a SystemExit."""
    return not isinstance(error, Exception)


def one_line(error: BaseException) -> str:
    """The kind of error and its first line; what ran out of memory says so in the same words everywhere."""
    kind, text = type(error).__name__, str(error)
    memory = isinstance(error, MemoryError) or any(k in kind for k in _KINDS)
    memory = memory or any(words in text.lower() for words in _WORDS)
    head = f"{kind}: {text.strip().splitlines()[0]}" if text.strip() else kind
    return f"out of memory: {head}" if memory else head
