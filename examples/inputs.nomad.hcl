# What a task is given before it starts: an artifact, a file that is rendered from it, and variables.
#
# The artifact is a file of the node, which the agent's operator allows:
#
#   mkdir -p /tmp/greetings && echo 'Good morning from {{ env "NOMAD_JOB_NAME" }}.' > /tmp/greetings/morning.tpl
#   CARAVAN_AGENT_ARTIFACT_FILES=/tmp/greetings caravan up --raw-exec
#   caravan job run examples/inputs.nomad.hcl
#   caravan alloc logs 'inputs.app[0]' greet
job "inputs" {
  type = "batch"

  group "app" {
    task "greet" {
      driver = "raw_exec"

      artifact {
        source      = "file:///tmp/greetings/morning.tpl"
        destination = "local/templates"
      }

      # Rendered after the artifact is there.
      template {
        source      = "local/templates/morning.tpl"
        destination = "local/greeting.txt"
        perms       = "0600"
      }

      # Each line becomes a variable of the task.
      template {
        data        = <<-EOT
          # Quotes keep blanks, as in a shell.
          GREETER="the {{ env "NOMAD_TASK_NAME" | toUpper }} task"
          {{ range $at, $name := "first,second" | split "," }}
          NAME_{{ add $at 1 }}={{ $name }}
          {{- end }}
        EOT
        destination = "secrets/greeter.env"
        env         = true
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "cat local/greeting.txt; echo \"$GREETER: $NAME_1, $NAME_2\""]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
