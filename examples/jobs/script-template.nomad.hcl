# A program that stands in the job file, with mode 0755.
job "script-template" {
  type = "batch"

  group "app" {
    task "main" {
      driver = "raw_exec"

      template {
        destination     = "local/run.sh"
        perms           = "0755"
        left_delimiter  = "[["
        right_delimiter = "]]"
        data            = <<-EOT
          #!/bin/sh
          echo "this is [[ env "NOMAD_TASK_NAME" ]] with {{ braces }}" > "$NOMAD_TASK_DIR/out"
          grep -q 'main with {{ braces }}' "$NOMAD_TASK_DIR/out"
        EOT
      }

      config {
        command = "local/run.sh"
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
