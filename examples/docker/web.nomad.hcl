# A web server whose page is a template, with a service, a check from inside, and a rolling update.
job "web" {
  update {
    max_parallel     = 1
    min_healthy_time = "1s"
    healthy_deadline = "2m"
  }

  group "web" {
    count = 2

    network {
      port "http" {
        to = 8080
      }
    }

    service {
      name = "web"
      port = "http"
      tags = ["docker"]

      check {
        type     = "script"
        task     = "server"
        command  = "/bin/wget"
        args     = ["-q", "-O", "-", "http://127.0.0.1:8080/index.html"]
        interval = "2s"
        timeout  = "2s"
      }
    }

    task "server" {
      driver = "docker"

      config {
        image   = "busybox:1"
        command = "/bin/busybox"
        args    = ["httpd", "-f", "-p", "${NOMAD_PORT_http}", "-h", "/local/www"]
        ports   = ["http"]

        labels {
          job = "${NOMAD_JOB_NAME}"
        }
      }

      template {
        destination = "local/www/index.html"
        change_mode = "noop"
        data        = "instance {{ env \"NOMAD_ALLOC_INDEX\" }} of {{ env \"NOMAD_JOB_NAME\" }}\n"
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
