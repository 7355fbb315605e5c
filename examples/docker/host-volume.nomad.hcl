# Data that outlives the allocation. The node offers it: CARAVAN_AGENT_HOST_VOLUMES=data=/srv/data
job "host-volume" {
  type = "batch"

  group "app" {
    volume "store" {
      type        = "host"
      source      = "data"
      access_mode = "single-node-single-writer"
    }

    task "writer" {
      driver = "docker"

      volume_mount {
        volume      = "store"
        destination = "${NOMAD_TASK_DIR}/store"
      }

      config {
        image   = "busybox:1"
        command = "/bin/sh"
        args    = ["-c", "echo kept > /local/store/${NOMAD_JOB_NAME}"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
