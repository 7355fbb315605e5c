"""The command `caravan status`."""

from services.cli.command_spec import (
    AT_OPTION,
    LIMIT_OPTION,
    VERBOSE_FLAG,
    ArgumentSpec,
    CommandSpec,
    Needs,
)

COMMANDS = (
    CommandSpec(
        ("status",),
        "show the object with an id: a job, node, allocation, evaluation, deployment or rollout",
        "any_id.status:status",
        (
            ArgumentSpec(
                "any_id",
                "id or unique prefix (default: list jobs)",
                metavar="ID",
                default="",
            ),
            LIMIT_OPTION,
            VERBOSE_FLAG,
            AT_OPTION,
        ),
        {
            "": "schemas.job_answers:JobsAnswer",
            "of a job": "schemas.job_answers:JobAnswer",
            "of a node": "schemas.node_answers:NodeAnswer",
            "of an allocation": "schemas.node_answers:AllocAnswer",
            "of an evaluation": "schemas.evaluation_answers:EvalAnswer",
            "of a deployment": "schemas.answers:DeploymentAnswer",
            "of a rollout": "schemas.rollout_answers:RolloutAnswer",
        },
        Needs.LOG,
        details="A job with exactly this id is shown even where other ids begin with it.",
        examples=("status", "status web", "status 5f2c"),
    ),
)
