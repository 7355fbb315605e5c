# How a service leaves: out of the catalog first, then a signal, then time to end.
job "shutdown" {
  update {
    min_healthy_time = "1s"
  }

  group "web" {
    shutdown_delay = "1s"

    network {
      port "http" {}
    }

    service {
      name     = "shutdown"
      port     = "http"
      provider = "nomad"
    }

    task "server" {
      driver       = "raw_exec"
      kill_signal  = "SIGTERM"
      kill_timeout = "10s"

      config {
        command = "/bin/sh"
        args    = ["-c", "trap 'exit 0' TERM; while :; do sleep 0.2; done"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
