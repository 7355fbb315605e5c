# The shape of the job files of Nomad's million container challenge: resources with disk and network, as files had them
# then. It runs as it is.
job "million" {
  datacenters = ["dc1"]
  type        = "batch"

  constraint {
    attribute = "${node.class}"
    value     = "class_1"
  }

  group "logger" {
    count = 1000

    restart {
      mode     = "fail"
      attempts = 3
      interval = "5m"
      delay    = "2s"
    }

    task "log" {
      driver = "docker"

      config {
        image        = "docker.io/library/busybox:1.37"
        command      = "sleep"
        args         = ["3600"]
        network_mode = "host"
      }

      env {
        NODE_CLASS = "${node.class}"
      }

      resources {
        cpu    = 20
        memory = 15
        disk   = 10

        network {
          mbits = 1
          port "http" {}
        }
      }
    }
  }
}
