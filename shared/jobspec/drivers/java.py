"""The options of driver java: a Java program as an isolated process. An allow-list, as in `exec.py`."""

import msgspec

from shared.jobspec.drivers.exec import (
    ISOLATION_OPTIONS,
    REFUSED_OPTIONS,
    IsolationOptions,
    normalize_caps,
)
from shared.jobspec.drivers.options import (
    Option,
    OptionDiagnostic,
    OptionValues,
    option_table,
    read_options,
)

#: Every option that is acted on.
OPTIONS = option_table(
    Option("jar_path", "text", "the archive to run, relative to the task's directory"),
    Option("class", "text", "the class to run if there is no archive"),
    Option("class_path", "text", "the class path"),
    Option("jvm_options", "list", "options of the virtual machine, each starting with a dash"),
    Option("args", "list", "arguments of the program"),
    Option("work_dir", "text", "working directory, relative to the task's"),
    *ISOLATION_OPTIONS,
)


class JavaOptions(IsolationOptions, frozen=True, kw_only=True):
    """The options of a task."""

    jar_path: str = ""
    class_name: str = msgspec.field(default="", name="class")
    class_path: str = ""
    jvm_options: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    work_dir: str = ""

    @property
    def command(self) -> tuple[str, ...]:
        """Arguments of `java`."""
        words = list(self.jvm_options)
        if self.class_path:
            words += ["-cp", self.class_path]
        words += ["-jar", self.jar_path] if self.jar_path else [self.class_name]
        return (*words, *self.args)


def read_java(config: OptionValues) -> tuple[JavaOptions, tuple[OptionDiagnostic, ...]]:
    """Read the options: those that are valid, and all errors."""
    values, faults = read_options(config, OPTIONS, REFUSED_OPTIONS)
    if bool(config.get("jar_path")) == bool(config.get("class")):
        faults.append(OptionDiagnostic("jar_path", "set either jar_path or class"))
    for index, text in enumerate(values.get("jvm_options", ())):
        if not text.startswith("-") and "${" not in text:
            # java takes the first argument without a dash as the class.
            message = f"must start with a dash, was {text[:40]!r}"
            faults.append(OptionDiagnostic(f"jvm_options[{index}]", message))
    if values.get("class", "").startswith("-"):
        faults.append(OptionDiagnostic("class", "must be a class name"))
    if ".." in values.get("work_dir", "").split("/"):
        faults.append(OptionDiagnostic("work_dir", "must not lead out of the task's directory"))
    values = normalize_caps(values)
    values["class_name"] = values.pop("class", "")
    return JavaOptions(**values), tuple(faults)
