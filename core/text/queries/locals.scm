; Instruction names live in their computation; computation names live in the module. Names of called computations and
; of control predecessors refer like operands do.

(module) @local.scope
(computation) @local.scope
(inline_computation) @local.scope

(instruction name: (instruction_name) @local.definition.var)
(computation name: (computation_name) @local.definition.function)

(operand name: (instruction_name) @local.reference)
(instruction_list (instruction_name) @local.reference)
(attribute value: (computation_name) @local.reference)
(computation_list (computation_name) @local.reference)
