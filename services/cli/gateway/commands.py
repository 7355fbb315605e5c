"""The commands `caravan ui`, `caravan operator webhook` and `caravan operator api`."""

from services.cli.command_spec import (
    ArgumentSpec,
    CommandSpec,
    Needs,
    flag_argument,
    option_argument,
)

COMMANDS = (
    CommandSpec(
        ("ui",),
        "open the console in a browser, signed in",
        "gateway.console:open_console",
        (
            flag_argument("print_only", "print the address without opening a browser"),
            option_argument(
                "port", "with --from-file: port on 127.0.0.1; 0: a free one", int, default=0
            ),
        ),
        {"": "gateway.console:ConsoleResult"},
        Needs.LOG,
        "The address works once, within ten minutes. It is printed too. CARAVAN_GATEWAY_URL names another gateway than "
        "that of the selected cluster. With --from-file it serves the console on an export, or on the result of "
        "`caravan simulate --out`, until Ctrl-C: on loopback, without a bus, and nothing can be changed.",
        ("ui", "ui --print-only", "ui --from-file ./export"),
    ),
    CommandSpec(
        ("operator", "webhook"),
        "show the delivery state of webhooks, annotations and traces",
        "gateway.webhooks:status",
        (),
        {"": "gateway.webhooks:WebhookResult"},
        details="Webhooks, Grafana annotations and the export of traces. Exits with 1 where one is disabled.",
        examples=("operator webhook", "operator webhook --json | jq '.targets[].behind'"),
    ),
    CommandSpec(
        ("operator", "api"),
        "send a request to the HTTP API and print the answer",
        "gateway.api:send",
        (
            ArgumentSpec("path", "path of the API", metavar="PATH"),
            option_argument(
                "method", "method (default: GET, with data PUT)", flag="-X", metavar="METHOD"
            ),
            option_argument(
                "data",
                "body of the request: text, @FILE, or - for standard input",
                flag="-d",
                metavar="DATA",
            ),
            option_argument(
                "header", "header to send; repeatable", list, flag="--header", metavar="NAME:VALUE"
            ),
        ),
        {"": "gateway.api:ApiResult"},
        details="Signs in with the selected context. Exits with 1 for a status of 400 or above.",
        examples=("operator api /v1/nodes", "operator api -X DELETE /v1/job/web"),
    ),
)
