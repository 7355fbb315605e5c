# A file of the node as an artifact, a template made from it, and variables. The operator allows the folder:
#   CARAVAN_AGENT_ARTIFACT_FILES=/srv/files
variable "folder" {
  default = "/srv/files"
}

job "artifact-template-env" {
  type = "batch"

  group "app" {
    task "reader" {
      driver = "raw_exec"

      artifact {
        source      = "file://${var.folder}/greeting.tpl"
        destination = "local/in"
      }

      template {
        source      = "local/in/greeting.tpl"
        destination = "local/greeting"
      }

      env {
        NAME = "world"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "test \"$(cat local/greeting)\" = 'hello world'"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
