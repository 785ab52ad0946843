"""What the server answers: one feature a file, declared in one table (`hloscope.lsp.features.table`)."""
