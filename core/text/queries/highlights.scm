; HLO text. The capture names are those that Neovim, Helix and Zed agree on; `hloscope.core.text.highlight` maps them
; to its own classes. An outer capture is meant for the whole of its text: shapes and layouts are one colour each.

(comment) @comment

[
  "HloModule"
  "ENTRY"
  "ROOT"
] @keyword

(table_kind) @keyword

(string) @string
(number) @number
(parameter_number) @number
(dim_labels) @number
(sizes) @number
(padding) @number
(boolean) @boolean
(elided) @comment

(attribute_name) @property

(enumeration) @constant

(element_type) @type
(dimensions) @type
(layout) @attribute

(module_name) @module
(computation_name) @function
(computation name: (computation_name) @function.definition)
(opcode) @function.builtin
(instruction_name) @variable
(instruction name: (instruction_name) @variable.definition)
(parameter_name) @variable.parameter
(name) @variable

(unfinished) @error

["(" ")" "[" "]" "{" "}"] @punctuation.bracket
["," ":"] @punctuation.delimiter
["=" "->" "<="] @operator
