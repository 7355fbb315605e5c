# A service with a port that the cluster picks, and an HTTP check that decides its health.
job "service-check" {
  update {
    min_healthy_time = "1s"
    health_check     = "checks"
  }

  group "web" {
    network {
      port "http" {}
    }

    service {
      name     = "service-check"
      port     = "http"
      provider = "nomad"
      tags     = ["v1", "public"]

      check {
        type     = "http"
        path     = "/"
        interval = "1s"
        timeout  = "2s"

        check_restart {
          limit = 3
          grace = "30s"
        }
      }
    }

    task "server" {
      driver = "raw_exec"

      config {
        command = "/usr/bin/env"
        args    = ["python3", "-m", "http.server", "--directory", "local", "${NOMAD_PORT_http}"]
      }

      resources {
        cpu    = 20
        memory = 64
      }
    }
  }
}
