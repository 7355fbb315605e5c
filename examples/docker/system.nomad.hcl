# One container on each node, without a network.
job "system" {
  type = "system"

  group "agent" {
    restart {
      attempts = 3
      interval = "1m"
      delay    = "5s"
      mode     = "delay"
    }

    network {
      mode = "none"
    }

    task "agent" {
      driver = "docker"

      config {
        image   = "busybox:1"
        command = "/bin/sleep"
        args    = ["100000"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
