"""Functions that read what the caller's `TemplateData` has, and the scratch pad of a pass."""

# The types of parameters are in the kinds of each row.
# pyright: reportUnknownLambdaType=false

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from shared.gotemplate.data import NamedInstance, ServiceName, Variable
from shared.gotemplate.errors import TemplateError
from shared.gotemplate.functions.registry import TemplateFunction, template_function
from shared.gotemplate.layouts.time_layout import RFC3339, time_text
from shared.gotemplate.values import GoObject, ObjectMap, Value, sorted_items

_SERVICE = re.compile(r"(?:[\w\-]+\.)?(?P<name>[\w\-]+)(?:@[\w.\-]+)?")


def _known(execution: Any, key: str, value: Value) -> bool:
    """Note the use of a key, and that it is missing."""
    execution.used[key] = None
    if value is None:
        execution.missing[key] = None
    return value is not None


# ---- environment, files, time ----


@template_function("env", "text")
def _env(execution: Any, name: str) -> Value:
    """Return a variable of the task's environment, or an empty text."""
    return execution.data.env(name) or ""


@template_function("mustEnv", "text")
def _must_env(execution: Any, name: str) -> Value:
    """Return a variable of the task's environment; an empty one is an error."""
    value = execution.data.env(name)
    if not value:
        raise TemplateError(f"required environment variable {name[:80]} is empty")
    return value


@template_function("envOrDefault", "text text")
def _env_or_default(execution: Any, name: str, default: str) -> Value:
    """Return a variable of the task's environment, or a default where it is not set."""
    value = execution.data.env(name)
    return default if value is None else value


@template_function("file", "text")
def _file(execution: Any, path: str) -> Value:
    """Return the content of a file of the task."""
    if not path:
        return ""
    content = execution.data.file(path.strip())
    return content if _known(execution, f"file({path.strip()[:200]})", content) else ""


@template_function("timestamp", "text…")
def _timestamp(execution: Any, *layouts: str) -> Value:
    """Return the time in UTC: in RFC 3339, by a layout of Go, or `unix` for the seconds."""
    if len(layouts) > 1:
        raise TemplateError(f"wrong number of arguments, expected 0 or 1, but got {len(layouts)}")
    now_ns = execution.data.now_ns()
    if layouts == ("unix",):
        return str(now_ns // 1_000_000_000)
    return time_text(now_ns, layouts[0] if layouts else RFC3339)


@template_function("executeTemplate", "text any…")
def _execute(execution: Any, name: str, *dot: Value) -> Value:
    """Return the text of a definition: `executeTemplate name` or `executeTemplate name value`."""
    if len(dot) > 1:
        raise TemplateError(f"wrong number of arguments, expected 1 or 2, but got {len(dot) + 1}")
    return execution.run(name, *dot)


# ---- services ----


def _instance(one: NamedInstance) -> GoObject:
    fields = {
        "ID": one.id,
        "Name": one.name,
        "Node": one.node,
        "Address": one.address,
        "Port": one.port,
        "Datacenter": one.datacenter,
        "Tags": list(one.tags),
        "JobID": one.job_id,
        "AllocID": one.alloc_id,
    }
    return GoObject("NomadService", fields)


@template_function("nomadServices", "text…")
def _services(execution: Any, *_options: str) -> Value:
    """List all services: .Name and .Tags."""
    found = execution.data.services()
    if not _known(execution, "nomad.services", found):
        return []
    return [GoObject("NomadServicesSnippet", _snippet(one)) for one in found]


def _snippet(one: ServiceName) -> Mapping[str, Value]:
    return {"Name": one.name, "Tags": list(one.tags)}


@template_function("nomadService", "any any…")
def _service(execution: Any, *arguments: Value) -> Value:
    """List the instances of a service: `nomadService name`, or n of them by a key: `nomadService n key name`."""
    if len(arguments) not in {1, 3}:
        raise TemplateError("expected arguments <service> or <count> <key> <service>")
    *choice, service = arguments
    if not isinstance(service, str):
        raise TemplateError("expected a text for <service>")
    found = _SERVICE.fullmatch(service)
    if found is None:
        raise TemplateError("invalid name of a service")
    _check_choice(choice)
    instances = execution.data.service(found["name"])
    if not _known(execution, f"nomad.service({service})", instances):
        return []
    return [_instance(one) for one in _chosen(list(instances), choice)]


def _check_choice(choice: list[Value]) -> None:
    if choice and (isinstance(choice[0], bool) or not isinstance(choice[0], int)):
        raise TemplateError("expected a number for <count>")
    if choice and not isinstance(choice[1], str):
        raise TemplateError("expected a text for <key>")


def _chosen(instances: list[NamedInstance], choice: list[Value]) -> list[NamedInstance]:
    """Choose n instances by a key: the same for the same key as long as they stay (rendezvous hash)."""
    if not choice:
        return instances
    count, key = choice
    ranked = sorted(instances, key=lambda one: (_rank(key, one), one.id))
    return ranked[: max(count, 0)]


def _rank(key: str, one: NamedInstance) -> str:
    return sha256(f"{key}\0{one.id}".encode("utf-8", "surrogateescape")).hexdigest()


#: A query of Consul: tag, name, datacenter, node to be near to, and which checks pass, in the old spelling.
_QUERY = re.compile(
    r"(?:(?P<tag>[\w=:.\-]+)\.)?(?P<name>[\w\-]+)(?:@(?P<dc>[\w.\-]+))?(?P<near>~[\w.\-]+)?(?:\|(?P<health>[\w,]+))?"
)
_PASSING, _ANY = "passing", "any"
_STATUSES = (_PASSING, "warning", "critical")


@template_function("service", "text text…")
def _checked_service(execution: Any, query: str, *healths: str) -> Value:
    """List the instances whose checks pass: `service "tag.name@datacenter"`; with `"any"` others too.

    Fields and order are those of consul-template; the services are the cluster's own.
    """
    found = _QUERY.fullmatch(query)
    if found is None:
        raise TemplateError("invalid query of a service")
    if found["near"]:
        raise TemplateError("instances are not ordered by distance: remove ~ and what follows")
    wanted = _wanted_statuses([*healths, *([found["health"]] if found["health"] else [])])
    instances = execution.data.service(found["name"], checked=True)
    if not _known(execution, f"health.service({query[:200]})", instances):
        return []
    chosen = [
        one
        for one in instances
        if _consul_status(one) in wanted
        and found["tag"] in {None, *one.tags}
        and found["dc"] in {None, one.datacenter}
    ]
    return [_checked_instance(one) for one in sorted(chosen, key=lambda one: (one.node, one.id))]


def _wanted_statuses(healths: list[str]) -> frozenset[str]:
    """Return the statuses that a call asks for; without a word about them those that pass."""
    names = [one.strip() for text in healths for one in text.split(",") if one.strip()]
    if not {_ANY, *_STATUSES}.issuperset(names):
        raise TemplateError(f"unknown status, expected any, {', '.join(_STATUSES)}")
    return frozenset(_STATUSES) if _ANY in names else frozenset(names or [_PASSING])


def _consul_status(one: NamedInstance) -> str:
    """Return the status in Consul's words: a check without a result, and one of a silent node, are critical."""
    return one.status if one.status in _STATUSES else "critical"


def _checked_instance(one: NamedInstance) -> GoObject:
    fields = {
        "ID": one.id,
        "Name": one.name,
        "Node": one.node,
        "NodeAddress": one.address,
        "NodeDatacenter": one.datacenter,
        "Address": one.address,
        "Port": one.port,
        "Tags": sorted(one.tags),
        "ServiceMeta": dict(one.meta),
        "Status": _consul_status(one),
    }
    return GoObject("HealthService", fields)


@template_function("services", "text…")
def _consul_services(execution: Any, *_options: str) -> Value:
    """List all services, as `nomadServices` does: .Name and .Tags."""
    return _services(execution)


# ---- variables ----


def _meta(one: Variable) -> GoObject:
    fields = {
        "Namespace": one.namespace,
        "Path": one.path,
        "CreateIndex": one.create_index,
        "ModifyIndex": one.modify_index,
    }
    return GoObject("NomadVarMeta", fields, text=one.path)


def _items(one: Variable) -> ObjectMap:
    """Return the items of a variable: texts with methods, in a map with methods."""
    found = ObjectMap()
    meta = _meta(one)
    for key, value in one.items.items():
        methods = {
            "Metadata": TemplateFunction("Metadata", "", lambda _execution: meta),
            "Parent": TemplateFunction("Parent", "", lambda _execution: found),
        }
        found[key] = GoObject("NomadVarItem", {"Key": key, "Value": value}, methods, text=value)
    pairs = [(key, item.fields["Value"]) for key, item in sorted_items(found)]
    tuples = [GoObject("NomadVarItem", {"K": key, "V": value}) for key, value in pairs]
    found.methods = {
        "Keys": TemplateFunction("Keys", "", lambda _execution: [key for key, _ in pairs]),
        "Values": TemplateFunction("Values", "", lambda _execution: [value for _, value in pairs]),
        "Tuples": TemplateFunction("Tuples", "", lambda _execution: tuples),
        "Metadata": TemplateFunction("Metadata", "", lambda _execution: meta),
        "Parent": TemplateFunction("Parent", "", lambda _execution: meta),
    }
    return found


@template_function("nomadVar", "text")
def _variable(execution: Any, path: str) -> Value:
    """Return the items of a variable; one that does not exist is waited for."""
    if not path:
        return ObjectMap()
    one = execution.data.variable(path)
    return _items(one) if _known(execution, f"nomad.var.block({path[:200]})", one) else ObjectMap()


@template_function("nomadVarExists", "text")
def _variable_exists(execution: Any, path: str) -> Value:
    """Return whether a variable exists."""
    exists = execution.data.variable_exists(path) if path else False
    return (
        exists if not path or _known(execution, f"nomad.var.get({path[:200]})", exists) else False
    )


def _list(execution: Any, prefixes: tuple[str, ...], *, waits: bool) -> Value:
    if len(prefixes) > 1:
        raise TemplateError("takes one prefix or none")
    prefix = prefixes[0] if prefixes else ""
    found = execution.data.variables(prefix)
    key = f"nomad.var.list({prefix[:200]})"
    _known(execution, key, None if waits and not found else found)
    return [_meta(one) for one in found or ()]


@template_function("nomadVarList", "text…")
def _variable_list(execution: Any, *prefixes: str) -> Value:
    """List the variables below a prefix; each prints its path."""
    return _list(execution, prefixes, waits=False)


@template_function("nomadVarListSafe", "text…")
def _variable_list_safe(execution: Any, *prefixes: str) -> Value:
    """List the variables below a prefix; an empty list is waited for."""
    return _list(execution, prefixes, waits=True)


# ---- secrets of Vault ----


@template_function("secret", "text text…")
def _secret(execution: Any, path: str, *written: str) -> Value:
    """Return a secret of Vault: .Data .LeaseID .LeaseDuration .Renewable; one that does not exist is waited for."""
    if written:
        raise TemplateError("a secret with data to write is not built yet; only reads are")
    found = execution.data.secret(path.strip()) if path.strip() else None
    if not _known(execution, f"vault.read({path.strip()[:200]})", found) or found is None:
        return None
    fields = {
        "RequestID": "",
        "LeaseID": found.lease_id,
        "LeaseDuration": found.lease_s,
        "Renewable": found.is_renewable,
        "Data": dict(found.data),
    }
    return GoObject("Secret", fields)


@template_function("secrets", "text")
def _secrets(execution: Any, path: str) -> Value:
    """List the names of secrets of Vault below a path; there may be none."""
    found = execution.data.secret_names(path.strip()) if path.strip() else ()
    return list(found) if _known(execution, f"vault.list({path.strip()[:200]})", found) else []


# ---- scratch ----


def _scratch_map(execution: Any, key: str) -> dict[str, Value]:
    found = execution.scratch.setdefault(key, {})
    if not isinstance(found, dict):
        raise TemplateError(f"{key[:40]!r} is not a map")
    return found


def _set(execution: Any, key: str, value: Value) -> Value:
    execution.scratch[key] = value
    return ""


def _set_new(execution: Any, key: str, value: Value) -> Value:
    execution.scratch.setdefault(key, value)
    return ""


def _map_set(execution: Any, key: str, name: str, value: Value) -> Value:
    _scratch_map(execution, key)[name] = value
    return ""


def _map_set_new(execution: Any, key: str, name: str, value: Value) -> Value:
    _scratch_map(execution, key).setdefault(name, value)
    return ""


def _map_values(execution: Any, key: str) -> Value:
    found = execution.scratch.get(key)
    execution.charge(len(found) if isinstance(found, dict) else 1)
    return [one for _, one in sorted_items(found)] if isinstance(found, dict) else []


_SCRATCH = GoObject(
    "Scratch",
    {},
    {
        name: TemplateFunction(name, kinds, body, is_light=True)
        for name, kinds, body in (
            ("Key", "text", lambda execution, key: key in execution.scratch),
            ("Get", "text", lambda execution, key: execution.scratch.get(key)),
            ("Set", "text any", _set),
            ("SetX", "text any", _set_new),
            ("MapSet", "text text any", _map_set),
            ("MapSetX", "text text any", _map_set_new),
            ("MapValues", "text", _map_values),
        )
    },
    text="scratch",
)


@template_function("scratch", "", is_light=True)
def _scratch(_execution: Any) -> Value:
    """Return the scratch pad of this pass: .Key .Get .Set .SetX .MapSet .MapSetX .MapValues."""
    return _SCRATCH
