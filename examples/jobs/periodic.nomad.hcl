# A report each night, never two at once. Run it now: caravan job periodic force periodic
job "periodic" {
  type = "batch"

  periodic {
    crons            = ["30 3 * * *"]
    time_zone        = "Europe/Berlin"
    prohibit_overlap = true
  }

  group "report" {
    task "write" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo \"report of $NOMAD_JOB_PARENT_ID\""]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
