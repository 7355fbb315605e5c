"""The options of driver java: a Java program as an isolated process. An allow-list, as in `exec.py`."""

import msgspec

from shared.jobspec.drivers.exec import ISOLATION, NEVER, IsolationOptions, isolation
from shared.jobspec.drivers.options import Json, Option, OptionFault, by_name, read_options

#: Every option that is acted on.
OPTIONS = by_name(
    Option("jar_path", "text", "the archive to run, from the task's directory"),
    Option("class", "text", "the class to run, instead of an archive"),
    Option("class_path", "text", "where classes are looked for"),
    Option("jvm_options", "list", "options of the virtual machine, each beginning with a dash"),
    Option("args", "list", "arguments of the program"),
    Option("work_dir", "text", "working directory, from the task's own"),
    *ISOLATION,
)


class JavaOptions(IsolationOptions, frozen=True, kw_only=True):
    """What a task asks for."""

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


def read_java(config: Json) -> tuple[JavaOptions, tuple[OptionFault, ...]]:
    """Read the options. Faults, if any, stand beside what could be read."""
    values, faults = read_options(config, OPTIONS, NEVER)
    if bool(config.get("jar_path")) == bool(config.get("class")):
        faults.append(OptionFault("jar_path", "either jar_path or class must be named"))
    for index, text in enumerate(values.get("jvm_options", ())):
        if not text.startswith("-") and "${" not in text:
            # A word without a dash would be taken for the class.
            message = f"must begin with a dash, was {text[:40]!r}"
            faults.append(OptionFault(f"jvm_options[{index}]", message))
    if values.get("class", "").startswith("-"):
        faults.append(OptionFault("class", "must be a class"))
    if ".." in values.get("work_dir", "").split("/"):
        faults.append(OptionFault("work_dir", "must not lead out of the task's directory"))
    values = isolation(values, faults)
    values["class_name"] = values.pop("class", "")
    return JavaOptions(**values), tuple(faults)
