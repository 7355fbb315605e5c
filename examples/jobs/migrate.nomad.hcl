# A disk whose data stays with the allocation on its node, and how many leave a drained node at once.
job "migrate" {
  update {
    min_healthy_time = "1s"
  }

  group "store" {
    count = 2

    migrate {
      max_parallel     = 1
      health_check     = "task_states"
      min_healthy_time = "1s"
      healthy_deadline = "2m"
    }

    ephemeral_disk {
      size   = 300
      sticky = true
    }

    task "main" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo $NOMAD_ALLOC_INDEX >> $NOMAD_ALLOC_DIR/data/log; exec sleep 100000"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
