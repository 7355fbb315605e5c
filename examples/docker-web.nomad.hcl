# A web server in a container: a port of the node mapped to one inside, a page from the task's own directory.
job "docker-web" {
  type = "service"

  # Healthy after a second, so that the example does not take long; the default is 10s.
  update {
    min_healthy_time = "1s"
  }

  group "web" {
    count = 2

    network {
      port "http" {
        to = 8080
      }
    }

    task "server" {
      driver = "docker"

      config {
        image      = "docker.io/library/busybox:1.36"
        entrypoint = ["/bin/sh", "-c"]
        args       = ["echo \"hello from $NOMAD_ALLOC_NAME\" > /local/index.html; exec httpd -f -p $NOMAD_PORT_http -h /local"]
        ports      = ["http"]
        init       = true

        readonly_rootfs = true
      }

      resources {
        cpu        = 100
        memory     = 32
        memory_max = 64
      }
    }
  }
}
