# Work on demand, with a payload as a file and meta as variables:
#   echo data | caravan job dispatch --meta kind=small --payload - dispatch
job "dispatch" {
  type = "batch"

  parameterized {
    payload       = "required"
    meta_required = ["kind"]
    meta_optional = ["owner"]
  }

  meta {
    owner = "ops"
  }

  group "work" {
    task "convert" {
      driver = "raw_exec"

      dispatch_payload {
        file = "input.txt"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "test -s local/input.txt && test \"$NOMAD_META_kind\" = small && test -n \"$NOMAD_META_OWNER\""]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
