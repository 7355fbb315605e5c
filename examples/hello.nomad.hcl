# Three tasks that say hello until they are stopped. Run it: caravan job run examples/hello.nomad.hcl
variable "count" {
  type    = number
  default = 3
}

variable "greeting" {
  default = "hello"
}

job "hello" {
  datacenters = ["*"]
  type        = "service"

  # Healthy after a second, so that the example does not take long; the default is 10s.
  update {
    min_healthy_time = "1s"
  }

  group "greeters" {
    count = var.count

    # A task that dies is started again on its node.
    restart {
      attempts = 5
      interval = "10m"
      delay    = "1s"
      mode     = "delay"
    }

    task "greet" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "while :; do echo \"$GREETING from $NOMAD_ALLOC_NAME\"; sleep 1; done"]
      }

      env {
        GREETING = var.greeting
        NODE     = "${node.unique.name}"
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
