"""The tests of python-nomad 2.1.0 that fail, each with its reason. One that passes must leave the list."""

_ACL = "ACL tokens and policies are not built"
_VARIABLES = "variables are not built"

#: Test -> why it fails.
EXPECTED = {
    **{
        f"test_acl.py::test_{name}": _ACL
        for name in (
            *("create_bootstrap", "list_tokens", "create_token", "list_all_tokens", "update_token"),
            *("get_token", "delete_token", "get_self_token", "get_policies", "create_policy"),
            *("get_policy", "update_policy", "delete_policy"),
        )
    },
    **{
        f"test_variable.py::test_{name}": _VARIABLES
        for name in (
            *("create_variable", "create_variable_in_namespace", "create_variable_with_cas"),
            *("get_variable_and_check_value", "get_variable_in_namespace"),
            *("get_no_exist_variable", "variable_getitem_exist", "variable_exist"),
            *("variable_no_exist", "variable_getitem_not_exist", "delete_variable"),
            *("delete_variable_in_namespace", "delete_variable_with_cas"),
        )
    },
    **{
        f"test_variables.py::test_{name}": _VARIABLES
        for name in (
            *("get_variables", "get_variables_with_prefix", "get_variables_with_prefix_no_exist"),
            *("get_variables_from_namespace", "iter_variables", "variables_not_exist"),
            *("variables_exist", "variables_getitem_exist", "variables_getitem_not_exist"),
        )
    },
    "test_event.py::test_get_event_stream_with_customized_topic": (
        "waits for an event of a drain that changes nothing: there is no such fact"
    ),
    "test_job.py::test_dispatch_job_idempotency": (
        "registers the job under an id that is not the one in its file, which Nomad refuses, too"
    ),
    "test_job.py::test_delete_job_with_invalid_purge_param_raises": (
        "the library does not check the parameter, against any server"
    ),
    "test_job.py::test_delete_job_with_purge": (
        "the test before it has purged the job, since the library did not check its parameter"
    ),
}
