# Variables, locals, functions and blocks that are made from a list.
variable "labels" {
  type    = list(string)
  default = ["http", "admin"]
}

locals {
  prefix = upper("app")
}

job "dynamic-blocks" {
  update {
    min_healthy_time = "1s"
  }

  group "app" {
    count = length(var.labels)

    network {
      dynamic "port" {
        for_each = var.labels
        labels   = [port.value]
        content {}
      }
    }

    task "main" {
      driver = "raw_exec"

      env = {
        NAME   = "${local.prefix}-${join("-", var.labels)}"
        CONFIG = jsonencode({ ports = var.labels })
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "test \"$NAME\" = APP-http-admin && test -n \"$NOMAD_PORT_admin\" && exec sleep 100000"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
