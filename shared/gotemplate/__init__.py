"""Templates as Nomad's users write them: Go's template language with the functions of consul-template.

Text to tree in `syntax/`, tree and values to text in `execution.py`, functions in `functions/`. Pure: no clock, file or
network; what a template reads comes through the caller's `TemplateData`.
"""
