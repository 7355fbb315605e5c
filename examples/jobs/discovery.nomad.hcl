# Two groups, of which one waits for the service of the other, and follows it.
job "discovery" {
  update {
    min_healthy_time = "1s"
  }

  group "backend" {
    network {
      port "api" {}
    }

    service {
      name     = "discovery-backend"
      port     = "api"
      provider = "nomad"
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

  group "frontend" {
    task "client" {
      driver = "raw_exec"

      template {
        destination   = "local/backends"
        change_mode   = "signal"
        change_signal = "SIGHUP"
        data          = <<-EOT
          {{ range nomadService "discovery-backend" }}{{ .Address }}:{{ .Port }}
          {{ end }}
        EOT
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "trap : HUP; grep -q : local/backends || exit 1; while :; do sleep 1; done"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
