# A signed identity, as a file and in a variable, and a secret that is filled in. Put the variable first:
#   caravan var put nomad/jobs/identity-secret token=abc
job "identity-secret" {
  type = "batch"

  group "app" {
    task "login" {
      driver = "raw_exec"

      identity {
        name = "vendor"
        aud  = ["vendor.example"]
        ttl  = "1h"
        file = true
        env  = true
      }

      secret "login" {
        provider = "nomad"
        path     = "nomad/jobs/identity-secret"
      }

      env {
        TOKEN = "${secret.login.token}"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "test \"$TOKEN\" = abc && test -n \"$NOMAD_TOKEN_vendor\" && test -s secrets/nomad_vendor.jwt"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
