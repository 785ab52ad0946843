[
  (computation_body)
  (inline_computation)
  (operands)
  (group)
  (literal_array)
  (recovery_table)
] @indent.begin @indent

[
  "}"
  ")"
] @indent.branch @outdent

(comment) @indent.ignore
