# A service that is updated one allocation at a time, and goes back by itself when a version does not come up.
# docs/updates.md uses it: caravan job run --var release=2 examples/rolling.nomad.hcl
variable "release" {
  default = "1"
}

variable "canaries" {
  type    = number
  default = 0
}

job "shop" {
  type = "service"

  update {
    max_parallel = 1
    canary       = var.canaries
    auto_revert  = true

    # Short, so that examples do not take long. The defaults are 10s, 5m and 10m.
    min_healthy_time = "1s"
    healthy_deadline = "20s"

    # 0: the first unhealthy allocation fails the deployment.
    progress_deadline = "0s"
  }

  group "web" {
    count = 3

    restart {
      attempts = 0
      mode     = "fail"
    }

    task "server" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo \"release $RELEASE\"; test \"$RELEASE\" != broken && exec sleep 100000"]
      }

      env {
        RELEASE = var.release
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
