# A container and a plain process in one group: the process stops with its leader.
job "mixed" {
  update {
    min_healthy_time = "1s"
  }

  group "app" {
    shutdown_delay = "1s"

    task "app" {
      driver       = "docker"
      leader       = true
      kill_signal  = "SIGINT"
      kill_timeout = "5s"

      config {
        image   = "busybox:1"
        command = "/bin/sh"
        args    = ["-c", "trap 'exit 0' INT; touch /alloc/data/begun; while true; do sleep 1; done"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }

    task "watch" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "until test -e $NOMAD_ALLOC_DIR/data/begun; do sleep 1; done; exec sleep 100000"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
