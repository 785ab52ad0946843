"""HLO text: a reader that recovers, a printer in XLA's format, and a columnar index for viewing."""

from hloscope.core.text.printer import PrintOptions, module_lines, print_instruction, print_module
from hloscope.core.text.reader import load_module, parse_module

__all__ = ["PrintOptions", "load_module", "module_lines", "parse_module", "print_instruction", "print_module"]
