"""HCL text to a syntax tree."""
