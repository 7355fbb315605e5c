# A task that fails at its first try and is started again on its node; later it would move to another one.
job "restart-reschedule" {
  type = "batch"

  group "flaky" {
    restart {
      attempts = 2
      interval = "5m"
      delay    = "1s"
      mode     = "fail"
    }

    reschedule {
      attempts       = 3
      interval       = "1h"
      delay          = "5s"
      delay_function = "constant"
      unlimited      = false
    }

    task "try" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "test -e local/tried || { touch local/tried; exit 1; }"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
