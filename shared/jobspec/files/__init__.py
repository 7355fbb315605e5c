"""Job files: HCL, JSON, YAML and TOML to one document with line numbers."""
