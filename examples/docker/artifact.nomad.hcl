# A configuration of the node's own folder, unpacked where the container reads it. The node allows it:
# CARAVAN_AGENT_ARTIFACT_FILES=FOLDER
variable "folder" {
  type = string
}

job "artifact" {
  type = "batch"

  group "app" {
    task "app" {
      driver = "docker"

      artifact {
        source      = "${var.folder}/greeting.txt"
        destination = "local/files"
      }

      config {
        image   = "busybox:1"
        command = "/bin/grep"
        args    = ["hello", "/local/files/greeting.txt"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
