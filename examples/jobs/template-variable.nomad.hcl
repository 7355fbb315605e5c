# A file and variables from an item of a variable. Put it first:
#   caravan var put nomad/jobs/template-variable password=secret
job "template-variable" {
  type = "batch"

  group "app" {
    task "reader" {
      driver = "raw_exec"

      template {
        destination = "secrets/app.env"
        env         = true
        change_mode = "restart"
        data        = <<-EOT
          {{ with nomadVar "nomad/jobs/template-variable" }}PASSWORD={{ .password }}{{ end }}
        EOT
      }

      template {
        destination = "local/app.conf"
        change_mode = "noop"
        perms       = "0640"
        data        = "job = {{ env \"NOMAD_JOB_NAME\" }}"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "test \"$PASSWORD\" = secret && grep -q 'job = template-variable' local/app.conf"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
