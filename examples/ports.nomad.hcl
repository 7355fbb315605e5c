# Ports: one that the cluster picks on each node, and one with a number, which only one allocation of a node can have.
job "ports" {
  # Healthy after a second, so that the example does not take long; the default is 10s.
  update {
    min_healthy_time = "1s"
  }

  group "web" {
    count = 1

    network {
      port "http" {}

      port "admin" {
        static = 18080
      }
    }

    task "server" {
      driver = "raw_exec"

      config {
        command = "/usr/bin/env"
        args    = ["python3", "-m", "http.server", "--bind", "127.0.0.1", "${NOMAD_PORT_http}"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
