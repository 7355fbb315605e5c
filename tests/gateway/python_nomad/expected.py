"""The tests of python-nomad 2.1.0 that fail, each with its reason. One that passes must leave the list."""

_ACL = "ACL tokens and policies are not built"

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
