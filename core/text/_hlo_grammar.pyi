"""The grammar of HLO text (core/text/grammar), built at installation where there is a C compiler."""

def language() -> object:
    """A capsule named ``tree_sitter.Language``, for `tree_sitter.Language`."""
