# A balancer whose servers are the instances of a service, wherever they are: HAProxy, with Debian's package on the node.
# Run it with `caravan up --raw-exec`, then: caravan job scale balanced web 3
job "balanced" {
  # Healthy after a second, so that the example does not take long; the default is 10s.
  update {
    min_healthy_time = "1s"
  }

  group "balancer" {
    network {
      port "http" {}
    }

    service {
      name     = "front"
      port     = "http"
      provider = "nomad"
    }

    task "haproxy" {
      driver = "raw_exec"

      # -W: a master, which at SIGHUP starts workers with the new file. Those before them finish what they began.
      config {
        command = "/usr/sbin/haproxy"
        args    = ["-W", "-f", "local/haproxy.cfg"]
      }

      template {
        destination   = "local/haproxy.cfg"
        change_mode   = "signal"
        change_signal = "SIGHUP"
        splay         = "0s"
        data          = <<-EOT
          defaults
            mode http
            timeout connect 2s
            timeout client 30s
            timeout server 30s
            # A server that is gone is not an error of the client: another one is tried.
            retries 3
            option redispatch 1

          frontend front
            bind :{{ env "NOMAD_PORT_http" }}
            default_backend web

          backend web
            balance roundrobin
          {{- range nomadService "web" }}
            server {{ .AllocID }} {{ .Address }}:{{ .Port }}
          {{- end }}
        EOT
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }

  group "web" {
    count = 1

    network {
      port "http" {}
    }

    service {
      name     = "web"
      port     = "http"
      provider = "nomad"

      check {
        type     = "http"
        path     = "/"
        interval = "1s"
        timeout  = "2s"
      }
    }

    restart {
      attempts = 5
      interval = "10m"
      delay    = "1s"
      mode     = "delay"
    }

    task "server" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "cd local; echo \"$NOMAD_ALLOC_NAME\" > index.html; exec python3 -m http.server \"$NOMAD_PORT_http\""]
      }

      resources {
        cpu    = 50
        memory = 64
      }
    }
  }
}
