# A job that is dispatched with a payload:
#   caravan job dispatch --meta kind=small --payload FILE parameterized
job "parameterized" {
  type = "batch"

  parameterized {
    payload       = "required"
    meta_required = ["kind"]
  }

  group "app" {
    task "app" {
      driver = "docker"

      dispatch_payload {
        file = "input"
      }

      config {
        image   = "busybox:1"
        command = "/bin/sh"
        args    = ["-c", "test -s /local/input && test \"$NOMAD_META_kind\" = small"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
