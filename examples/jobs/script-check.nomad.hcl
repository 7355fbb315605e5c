# A check that is a command in the task, and a service of the task itself.
job "script-check" {
  update {
    min_healthy_time = "1s"
  }

  group "app" {
    task "worker" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "touch local/ready; exec sleep 100000"]
      }

      service {
        name     = "script-check"
        provider = "nomad"

        check {
          name     = "is ready"
          type     = "script"
          command  = "/bin/sh"
          args     = ["-c", "test -e local/ready"]
          interval = "1s"
          timeout  = "5s"
        }
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
