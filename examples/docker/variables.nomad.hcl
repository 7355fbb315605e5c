# Secrets of a variable as a file and as environment. Put it first:
#   caravan var put nomad/jobs/variables password=secret
job "variables" {
  type = "batch"

  group "app" {
    task "reader" {
      driver = "docker"

      identity {
        env  = true
        file = true
      }

      template {
        destination = "secrets/app.env"
        env         = true
        change_mode = "restart"
        data        = "{{ with nomadVar \"nomad/jobs/variables\" }}PASSWORD={{ .password.Value | toJSON }}{{ end }}"
      }

      config {
        image    = "busybox:1"
        command  = "/bin/sh"
        args     = ["-c", "test \"$PASSWORD\" = secret && test -s /secrets/nomad_token && test \"$MODE\" = production && test $(pwd) = /local"]
        work_dir = "/local"
      }

      env {
        MODE = "production"
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
