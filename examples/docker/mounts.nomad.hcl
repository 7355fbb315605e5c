# An image that is read only, with a file of a template, a directory in memory and one of the task mounted over it.
job "mounts" {
  type = "batch"

  group "app" {
    task "app" {
      driver = "docker"

      template {
        destination = "local/app.conf"
        data        = "mode = {{ env \"NOMAD_META_mode\" }}\n"
      }

      config {
        image           = "busybox:1"
        command         = "/bin/sh"
        args            = ["-c", "grep -q 'mode = safe' /srv/app.conf && echo x > /scratch/a && echo x > /srv/data/a && ! touch /srv/app.conf && ! touch /bin/a"]
        readonly_rootfs = true

        mount {
          type     = "bind"
          source   = "local/app.conf"
          target   = "/srv/app.conf"
          readonly = true
        }

        mount {
          type   = "tmpfs"
          target = "/scratch"

          tmpfs_options {
            size = 1000000
          }
        }

        volumes = ["data:/srv/data"]
      }

      meta {
        mode = "safe"
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
