# Groups of their own counts and networks, and one that waits for nothing.
job "many-groups" {
  update {
    max_parallel     = 2
    min_healthy_time = "1s"
  }

  group "api" {
    count = 2

    network {
      mode = "host"
      port "http" {}
      port "metrics" {}
    }

    task "server" {
      driver = "raw_exec"

      config {
        command = "/bin/sleep"
        args    = ["100000"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }

  group "worker" {
    count = 3

    disconnect {
      lost_after = "10m"
      replace    = true
    }

    task "main" {
      driver = "raw_exec"

      config {
        command = "/bin/sleep"
        args    = ["100000"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }

  group "idle" {
    count = 0

    task "main" {
      driver = "raw_exec"

      config {
        command = "/bin/true"
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
