/**
 * Tree-sitter grammar of XLA's HLO text, after openxla/xla:xla/hlo/parser/{hlo_lexer,hlo_parser}.cc.
 *
 * It reads all printed forms (long, short, canonical; old and new) and more than XLA accepts: opcodes, element types
 * and attributes are open sets, and definitions may come after uses. Attribute values whose inside is irregular
 * (sharding, metadata, raw backend configs) are balanced groups with typed leaves.
 */

// Attributes whose value names computations or holds them in braces.
const COMPUTATION_KEYS = [
  'to_apply', 'calls', 'condition', 'body', 'select', 'scatter', 'true_computation', 'false_computation',
  'branch_computations', 'called_computations',
];

// Attributes whose value is one balanced group, a string or a word, and gets a node type of its own.
const GROUP_KEYS = {
  metadata: 'metadata',
  sharding: 'sharding',
  window: 'window',
  backend_config: 'backend_config',
  frontend_attributes: 'frontend_attributes',
  origin: 'origin',
  statistics: 'statistics',
  input_output_alias: 'input_output_alias',
  buffer_donor: 'buffer_donor',
  source_target_pairs: 'source_target_pairs',
  slice: 'slice_ranges',
};

const comma_separated = rule => optional(seq(rule, repeat(seq(',', rule))));

module.exports = grammar({
  name: 'hlo',

  word: $ => $._word,

  extras: $ => [/[\s\uFEFF]/, $.comment],

  externals: $ => [$.unfinished, $._error_sentinel],

  inline: $ => [$._number, $._string],

  conflicts: $ => [
    // `f32[4] {`: a layout if a number or a colon comes next, else a body, a literal or a group.
    [$.shape],
  ],

  rules: {
    source_file: $ => seq(repeat($._item), repeat($.module)),

    // ------------------------------------------------------------------ module
    module: $ => seq($.module_header, repeat($._item)),

    module_header: $ => seq(
      'HloModule',
      field('name', name($, $.module_name)),
      optional(':'),
      optional($._attributes),
    ),

    _item: $ => choice(
      $.stack_table,
      $.computation,
      $.instruction,
      alias($._unnamed_instruction, $.instruction),
    ),

    stack_table: $ => seq(
      field('kind', alias(choice('FileNames', 'FunctionNames', 'FileLocations', 'StackFrames'), $.table_kind)),
      repeat($.table_row),
    ),

    table_row: $ => seq(
      field('id', $.number),
      field('value', choice(alias($._line_string, $.string), $.group)),
    ),

    // ------------------------------------------------------------------ computation
    computation: $ => seq(
      optional('ENTRY'),
      field('name', name($, $.computation_name)),
      optional(field('signature', $.signature)),
      field('body', $.computation_body),
      optional($._attributes),
    ),

    signature: $ => seq(
      '(', comma_separated($.parameter), ')',
      optional(seq('->', field('result', $._shape))),
    ),

    parameter: $ => seq(field('name', name($, $.parameter_name)), optional(':'), field('shape', $._shape)),

    computation_body: $ => seq('{', repeat($.instruction), '}'),

    inline_computation: $ => seq('{', repeat1($.instruction), '}'),

    // ------------------------------------------------------------------ instruction
    instruction: $ => seq(
      optional('ROOT'),
      field('name', name($, $.instruction_name)),
      '=',
      optional(field('shape', $._shape)),
      choice(
        seq($._call, optional($._attributes)),
        seq(optional(field('opcode', alias($._word, $.opcode))), $.unfinished),
      ),
    ),

    // A text may be one instruction without a name; its shape is then needed.
    _unnamed_instruction: $ => seq(
      optional('ROOT'),
      field('shape', $._shape),
      $._call,
      optional($._attributes),
    ),

    _call: $ => choice(
      seq(field('opcode', alias('constant', $.opcode)), '(', optional(field('literal', $.literal)), ')'),
      seq(field('opcode', alias('parameter', $.opcode)), '(', optional(field('number', alias($.number, $.parameter_number))), ')'),
      seq(field('opcode', alias($._word, $.opcode)), field('operands', $.operands)),
    ),

    operands: $ => seq('(', comma_separated($.operand), choice(')', seq(optional(','), $.unfinished))),

    operand: $ => choice(
      seq(
        optional(field('shape', $._shape)),
        field('name', name($, $.instruction_name)),
        repeat(seq('#', field('tuple_index', $.number))),
        optional(':'),
      ),
      seq(optional(field('shape', $._shape)), $._call),
      // The canonical form leaves the names out.
      field('shape', $._shape),
    ),

    // ------------------------------------------------------------------ shape
    _shape: $ => choice($.shape, $.tuple_shape, $.buffer_shape),

    shape: $ => seq(
      field('element_type', alias($._word, $.element_type)),
      field('dimensions', $.dimensions),
      optional(field('layout', $.layout)),
    ),

    tuple_shape: $ => seq('(', comma_separated($._shape), choice(')', seq(optional(','), $.unfinished))),

    buffer_shape: $ => seq(token(/b\(/), $._shape, ')'),

    dimensions: $ => seq(
      '[',
      comma_separated(choice(alias($.number, $.dimension), $.bounded_dimension, $.unbounded_dimension)),
      choice(']', seq(optional(','), $.unfinished)),
    ),

    bounded_dimension: $ => seq('<=', choice(alias($.number, $.dimension), $.unbounded_dimension)),

    unbounded_dimension: _ => '?',

    layout: $ => seq(
      '{',
      choice(
        seq($.minor_to_major, optional(seq(':', repeat($._layout_item)))),
        seq(':', repeat($._layout_item)),
      ),
      choice('}', $.unfinished),
    ),

    minor_to_major: $ => seq(alias($.number, $.dimension), repeat(seq(',', alias($.number, $.dimension)))),

    _layout_item: $ => choice(
      $.tiles,
      $.memory_space,
      $.element_size,
      $.tail_padding,
      $.split_config,
      $.index_type,
      $.pointer_type,
      $.layout_field,
    ),

    tiles: $ => seq('T', repeat1($.tile)),

    tile: $ => seq('(', comma_separated(choice(alias($.number, $.dimension), $.combined_dimension)), ')'),

    combined_dimension: _ => '*',

    memory_space: $ => seq('S', '(', $.number, ')'),

    element_size: $ => seq('E', '(', $.number, ')'),

    tail_padding: $ => seq('L', '(', $.number, ')'),

    split_config: $ => seq('SC', repeat1(alias($.tuple, $.split))),

    index_type: $ => seq('#', '(', alias($._word, $.element_type), ')'),

    pointer_type: $ => seq('*', '(', alias($._word, $.element_type), ')'),

    // D(..), M(..), P(..) and what newer releases add.
    layout_field: $ => seq($._word, repeat1($.tuple)),

    program_shape: $ => seq('(', comma_separated($._shape), ')', '->', field('result', $._shape)),

    // ------------------------------------------------------------------ literal
    literal: $ => $._literal_value,

    _literal_value: $ => choice($._number, $.boolean, $.literal_array, $.literal_tuple),

    literal_array: $ => seq('{', repeat(choice($._literal_value, ',', $.elided)), '}'),

    literal_tuple: $ => seq('(', repeat(choice($._literal_value, ',')), ')'),

    // The old form of a tuple's literal: `(s32[2]{0} {1, 2}, pred[] true)`.
    _shaped_tuple: $ => seq('(', seq($.shape, $.literal), repeat(seq(',', $.shape, $.literal)), ')'),

    elided: _ => '...',

    // ------------------------------------------------------------------ attribute
    _attributes: $ => repeat1(seq(',', choice($.attribute, $.unfinished))),

    attribute: $ => choice(
      keyed($, choice(...COMPUTATION_KEYS), $._computations),
      keyed($, choice('control-predecessors', 'control_predecessors'), $.instruction_list),
      ...Object.entries(GROUP_KEYS).map(([key, type]) =>
        keyed($, key, choice(alias($.group, $[type]), $._string, alias($._word, $.enumeration))),
      ),
      keyed($, 'replica_groups', choice(alias($.group, $.replica_groups), $.iota, $.list, $.mesh)),
      // What follows a mesh: its order of devices, and the axes of the replica groups.
      keyed($, 'device_ids', seq($.tuple, optional($.group))),
      keyed($, 'entry_computation_layout', seq('{', $.program_shape, '}')),
      keyed($, choice('operand_layout_constraints', 'outfeed_shape'), choice($._shape, $.shape_list)),
      keyed($, 'literal', choice(seq($._shape, $.literal), alias($._shaped_tuple, $.literal_tuple))),
      keyed($, 'origin_recovery_table', $.recovery_table),
      keyed($, $._word, $._value),
    ),

    _computations: $ => choice(
      name($, $.computation_name),
      $.computation_list,
      $.inline_computation,
    ),

    computation_list: $ => seq(
      '{', comma_separated(choice(name($, $.computation_name), $.inline_computation)), '}',
    ),

    instruction_list: $ => seq('{', comma_separated(name($, $.instruction_name)), choice('}', $.unfinished)),

    shape_list: $ => seq('{', comma_separated($._shape), '}'),

    recovery_table: $ => seq('{', repeat(choice($._group_item, $.recovery_module)), '}'),

    // A module in quotes, its own strings escaped.
    recovery_module: $ => seq('"', choice($.module, repeat1($._item)), '"'),

    mesh: $ => seq('mesh', $.list, repeat($.group)),

    _value: $ => choice(
      $._string,
      $._number,
      $.boolean,
      alias($._word, $.enumeration),
      alias($._percent_name, $.name),
      $.dim_labels,
      $.sizes,
      $.padding,
      $.iota,
      $.list,
      $.group,
      $.tuple,
      $.shape,
      $.mesh,
    ),

    // ------------------------------------------------------------------ balanced groups
    group: $ => seq('{', repeat($._group_item), choice('}', $.unfinished)),
    list: $ => seq('[', repeat($._group_item), choice(']', $.unfinished)),
    tuple: $ => seq('(', repeat($._group_item), choice(')', $.unfinished)),

    _group_item: $ => choice($.pair, $._leaf, ',', ':', '=', '->', '<=', '?', '*', '#', '...', $._other),

    pair: $ => prec.right(1, seq(
      field('key', choice(alias($._word, $.attribute_name), $._string)),
      choice('=', ':'),
      optional(field('value', $._leaf)),
    )),

    _leaf: $ => choice(
      $._string,
      $._number,
      $.boolean,
      alias($._word, $.enumeration),
      alias($._percent_name, $.name),
      $.dim_labels,
      $.sizes,
      $.padding,
      $.iota,
      $.list,
      $.group,
      $.tuple,
    ),

    // [2,2]<=[4] and [2,2]<=[2,2]T(1,0): devices counted up, after a reshape and a transpose.
    iota: $ => prec.right(1, seq(
      field('tile', $.list), '<=', field('reshape', $.list), optional(field('transpose', $.transpose)),
    )),

    transpose: $ => seq(token(/T\(/), comma_separated($.number), ')'),

    // ------------------------------------------------------------------ tokens
    _word: _ => /[A-Za-z_][A-Za-z0-9_.\-]*/,

    _percent_name: _ => token(choice(/%[A-Za-z0-9_.\-]+/, /%"[^"\\\r\n]*"/)),

    _number: $ => choice(
      $.number,
      alias(choice('inf', 'nan'), $.number),
      alias($._payload_nan, $.number),
    ),

    number: _ => token(choice(/-?[0-9]+(\.[0-9]*)?([eE][+\-]?[0-9]+)?/, '-inf', '-nan')),

    _payload_nan: _ => token(/-?nan\(0x[0-9a-fA-F]+\)/),

    boolean: _ => choice('true', 'false'),

    dim_labels: _ => token(/[0-9a-z?]+_[0-9a-z?]+->[0-9a-z?]+/),

    sizes: _ => token(/[0-9]+(x[0-9]+)+/),

    padding: _ => token(/-?[0-9]+_-?[0-9]+(_-?[0-9]+)?(x-?[0-9]+_-?[0-9]+(_-?[0-9]+)?)*/),

    // A string may go on over lines, but not over what looks like an instruction or a table's row: a quote that is
    // still being typed then breaks its own line, not the rest of the file.
    string: _ => token(choice(
      /"([^"\\\r\n]|\\[^\r\n])*([\r\n]+[ \t]*(([^"\\\r\n=0-9 \t]|\\[^\r\n])([^"\\\r\n=]|\\[^\r\n]|=[ ]?\\[^\r\n]|=[^"\\\r\n= ]|=[ ][^"\\\r\n=a-z(])*)?)*"/,
      /'([^'\\\r\n]|\\[^\r\n])*'/,
    )),

    _escaped_string: _ => token(/\\"([^"\\\r\n]|\\[^"\r\n])*\\"/),

    _string: $ => choice($.string, alias($._escaped_string, $.string)),

    _line_string: _ => token(/"([^"\\\r\n]|\\[^\r\n])*"/),

    // Any other character inside a balanced group.
    _other: _ => token(prec(-1, /[^\s{}()\[\]",=:]/)),

    comment: _ => token(choice(/\/\/[^\r\n]*/, /\/\*[^*]*\*+([^/*][^*]*\*+)*\//)),
  },
});

/** A name with or without its percent sign, as one node of the given type; keywords that are ordinary names included. */
function name($, type) {
  return choice(
    alias($._word, type),
    alias($._percent_name, type),
    alias('constant', type),
    alias('parameter', type),
  );
}

/** `key=value` with named fields. */
function keyed($, key, value) {
  return seq(
    field('key', alias(key, $.attribute_name)),
    choice(seq('=', field('value', choice(value, $.unfinished))), $.unfinished),
  );
}
