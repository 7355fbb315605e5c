# Limits of a container, its user, and what it may not do.
job "limits" {
  type = "batch"

  group "app" {
    restart {
      attempts = 1
      delay    = "1s"
      mode     = "fail"
    }

    task "app" {
      driver = "docker"
      user   = "1000:1000"

      config {
        image      = "busybox:1"
        entrypoint = ["/bin/sh", "-c"]
        args       = ["test $(id -u) = 1000 && test $(ulimit -n) = 256 && test $(hostname) = limited && grep -q '192.0.2.9.*db' /etc/hosts"]
        hostname   = "limited"
        pids_limit = 20
        cap_drop   = ["all"]
        shm_size   = 1000000

        ulimit {
          nofile = "256:256"
        }

        extra_hosts = ["db:192.0.2.9"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
