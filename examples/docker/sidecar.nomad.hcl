# A step before the main container, a sidecar that follows its log, and a last step: all see one directory.
job "sidecar" {
  update {
    min_healthy_time = "1s"
  }

  group "app" {
    task "prepare" {
      driver = "docker"

      lifecycle {
        hook = "prestart"
      }

      config {
        image   = "busybox:1"
        command = "/bin/sh"
        args    = ["-c", "echo ready > /alloc/data/state"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }

    task "follow" {
      driver = "docker"

      lifecycle {
        hook    = "poststart"
        sidecar = true
      }

      config {
        image   = "busybox:1"
        command = "/bin/tail"
        args    = ["-F", "/alloc/logs/main.stdout.0"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }

    task "main" {
      driver = "docker"
      leader = true

      config {
        image   = "busybox:1"
        command = "/bin/sh"
        args    = ["-c", "grep -q ready ${NOMAD_ALLOC_DIR}/data/state && echo begun && exec sleep 100000"]
        init    = true
      }

      logs {
        max_files     = 2
        max_file_size = 1
      }

      resources {
        cpu        = 20
        memory     = 16
        memory_max = 64
      }
    }
  }
}
