(computation "ENTRY"? @context name: (computation_name) @name) @item
