# Steps before and after the main task, which share the allocation's directory.
job "prestart-poststop" {
  type = "batch"

  group "app" {
    task "fetch" {
      driver = "raw_exec"

      lifecycle {
        hook = "prestart"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "echo 42 > $NOMAD_ALLOC_DIR/data/answer"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }

    task "main" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "test $(cat $NOMAD_ALLOC_DIR/data/answer) = 42"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }

    task "upload" {
      driver = "raw_exec"

      lifecycle {
        hook = "poststop"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "cp $NOMAD_ALLOC_DIR/data/answer $NOMAD_TASK_DIR/"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
